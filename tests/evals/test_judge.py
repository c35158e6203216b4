"""The LLM judge against a real local server that speaks the API: cached, resumed, retried, and tested fairly."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from copy import copy
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from scdd.cli.main import main
from scdd.core import UserError
from scdd.data.shards import MemoryTokens
from scdd.evals.measure.judge import Matched, estimate_cost, measure_denoised, measure_judge, prompts, verdict
from scdd.evals.measure.judge_client import ASPECTS, JudgeClient, JudgeServer, _remembered, parse_scores, parse_winner
from scdd.evals.measure.model import EvalModel, open_model
from scdd.evals.measure.store import MeasureContext, Store
from scdd.evals.measure.texts import rows
from scdd.samplers.options import GridOptions
from tests import tiny

pytest.importorskip("openai")


class Model:
    """A judge that likes long texts: the score of every aspect is the number of words, the longer text wins."""

    def __init__(self) -> None:
        self.seen: list[dict[str, Any]] = []
        self.spoil = 0  # answers that come out broken first
        self.fail = 0  # requests refused with a server error first

    def answer(self, request: dict[str, Any]) -> str:
        self.seen.append(request)
        if self.spoil:
            self.spoil -= 1
            return "I would rather not say."
        prompt = request["messages"][0]["content"]
        parts = prompt.split("```")
        if "Text A:" in prompt:
            a, b = len(parts[1].split()), len(parts[3].split())
            winner = "tie" if a == b else "A" if a > b else "B"
            return json.dumps({"reasoning": "longer", "winner": winner})
        score = min(10, max(1, len(parts[1].split())))
        answer = json.dumps({aspect: {"reasoning": "words", "score": score} for aspect in ASPECTS})
        return f"```json\n{answer}\n```" if len(self.seen) % 2 else answer


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Model, str]]:
    model = Model()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            assert self.path == "/v1/chat/completions"
            assert self.headers["Authorization"] == "Bearer a-key"
            if model.fail:
                model.fail -= 1
                self.send_response(500)
                self.end_headers()
                return
            message = {"role": "assistant", "content": model.answer(request)}
            choice = {"index": 0, "message": message, "finish_reason": "stop"}
            body = json.dumps(
                {"id": "1", "object": "chat.completion", "created": 0, "model": request["model"], "choices": [choice]}
            ).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    running = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=running.serve_forever, daemon=True)
    thread.start()
    monkeypatch.setenv("OPENAI_API_KEY", "a-key")
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    yield model, f"http://127.0.0.1:{running.server_address[1]}/v1"
    running.shutdown()
    running.server_close()


LONG, SHORT = (["one two three four five", "one two three four", "a b c d e f"], ["one two", "one two three four", "a"])


def test_verdict(server: tuple[Model, str], tmp_path: Path) -> None:
    model, url = server
    asker = JudgeClient(JudgeServer("words", url), tmp_path / "answers.jsonl")
    found = verdict(asker, LONG, SHORT)
    assert found["aspects"]["style"]["first"] == pytest.approx(5.0)
    assert found["aspects"]["style"]["second"] == pytest.approx(7 / 3)
    assert found["wins"] == {"first": 2, "second": 0, "ties": 1, "rate": 1.0, "p": pytest.approx(0.5)}
    assert len(model.seen) == 9 - 1, "two equal texts are graded once"
    assert all(request["model"] == "words" and request["temperature"] == 0.0 for request in model.seen)


def test_answers_are_kept(server: tuple[Model, str], tmp_path: Path) -> None:
    """A new process asks nothing again; a line that a kill cut short is asked again, and only that."""
    model, url = server
    memory = tmp_path / "answers.jsonl"
    found = verdict(JudgeClient(JudgeServer("words", url), memory), LONG, SHORT)
    asked = len(model.seen)
    assert verdict(JudgeClient(JudgeServer("words", url), memory), LONG, SHORT) == found
    assert len(model.seen) == asked
    memory.write_text(memory.read_text()[:-20])
    assert verdict(JudgeClient(JudgeServer("words", url), memory), LONG, SHORT) == found
    assert len(model.seen) == asked + 1
    assert verdict(JudgeClient(JudgeServer("other", url), memory), LONG, SHORT) == found
    assert len(model.seen) > asked + 1, "another model is another question"


def test_another_server_is_another_judge(
    server: tuple[Model, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another server's answers under the same model name were taken for this one's."""
    model, url = server
    memory = tmp_path / "answers.jsonl"
    prompt = prompts(LONG[:1], SHORT[:1], 0)[0][0]
    elsewhere = JudgeClient(JudgeServer("words", "http://127.0.0.1:1/v1"), memory)
    elsewhere._keep(elsewhere._key(prompt), json.dumps({aspect: {"score": 1} for aspect in ASPECTS}))
    assert elsewhere.ask([prompt], parse_scores)[0]["style"] == 1.0
    asker = JudgeClient(JudgeServer("words", url), memory)
    assert not asker.known(prompt)
    assert asker.ask([prompt], parse_scores)[0]["style"] == 5.0
    assert len(model.seen) == 1
    assert JudgeClient(JudgeServer("words", f"{url}/"), memory).known(prompt)
    usual = JudgeClient(JudgeServer("words"), memory)
    assert not usual.known(prompt)
    monkeypatch.setenv("OPENAI_BASE_URL", url)
    assert usual.known(prompt), "the client asks there, too"


def test_a_server_of_the_environment_is_in_the_settings(
    server: tuple[Model, str],
    tmp_path: Path,
    scdd: EvalModel,
    checkpoints: dict[str, Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """OPENAI_BASE_URL leads elsewhere than the client's own address does."""
    _, url = server
    monkeypatch.setenv("OPENAI_BASE_URL", url)
    context, matched = MeasureContext(Store(tmp_path)), Matched(nfe=2)
    tokenizer = scdd.lm.tokenizer
    text = rows(MemoryTokens.encoded([tiny.TEXT] * 2, tokenizer), tokenizer, 20, 2, whole=True)
    models = scdd, open_model(checkpoints["gidd"], device="cpu")
    texts = [measure_denoised(context, model, scdd, text, matched) for model in models]
    client = JudgeClient(JudgeServer("words"), tmp_path / "answers.jsonl")
    found = measure_judge(context, models, (texts[0], texts[1]), client, matched)
    assert found.settings["base_url"] == url


def test_answers_of_the_usual_address_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their keys have had no address since answers were first kept."""
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    old = hashlib.sha256(json.dumps(["words", 0.0, "a question"]).encode()).hexdigest()
    memory = tmp_path / "answers.jsonl"
    memory.write_text(json.dumps({"key": old, "answer": "kept"}) + "\n")
    for address in (None, "https://api.openai.com/v1", "https://api.openai.com/v1/"):
        assert JudgeClient(JudgeServer("words", address), memory).known("a question")


def test_answers_that_were_cut_or_have_odd_ends_of_lines_cost_no_others(tmp_path: Path) -> None:
    """A kill may cut a line inside a character, and models write U+2028: what is kept was paid for."""
    memory = tmp_path / "answers.jsonl"
    client = JudgeClient(JudgeServer("words", "http://127.0.0.1:1"), memory)
    client._keep("a", "one\u2028two\u0085three")
    with memory.open("ab") as file:
        file.write('3\n{"key": "b", "answer": "é'.encode()[:-1])
    client._keep("c", "four")
    assert _remembered(memory) == {"a": "one\u2028two\u0085three", "c": "four"}


def test_broken_answers_are_asked_again(server: tuple[Model, str], tmp_path: Path) -> None:
    model, url = server
    asker = JudgeClient(JudgeServer("words", url, workers=1), tmp_path / "answers.jsonl")
    grading, _, _ = prompts(LONG[:1], SHORT[:1], 0)
    model.spoil = 2
    assert asker.ask(grading[:1], parse_scores)[0]["clarity"] == 5.0
    assert "not the JSON" in model.seen[-1]["messages"][-1]["content"]
    model.spoil = 3
    with pytest.raises(UserError, match="no usable answer in 3 attempts"):
        asker.ask(grading[1:2], parse_scores)
    assert not asker.known(grading[1])


def test_a_failing_server_is_tried_again_then_named(server: tuple[Model, str], tmp_path: Path) -> None:
    model, url = server
    asker = JudgeClient(JudgeServer("words", url, workers=1), tmp_path / "answers.jsonl")
    model.fail = 1
    grading, pairing, _ = prompts(LONG[:1], SHORT[:1], 0)
    assert asker.ask(grading[:1], parse_scores)[0]["clarity"] == 5.0
    model.fail = 10
    with pytest.raises(UserError, match="check the address"):
        asker.ask(pairing, parse_winner)


@pytest.mark.parametrize(
    "said",
    [
        "[]",
        "nothing",
        '{"clarity": {"score": 3}}',
        json.dumps({aspect: {"score": 11} for aspect in ASPECTS}),
        json.dumps({aspect: {"score": True} for aspect in ASPECTS}),
        json.dumps(dict.fromkeys(ASPECTS, 5)),
        json.dumps({**{aspect: {"score": 5} for aspect in ASPECTS}, "more": 1}),
        "Sure! " + json.dumps({aspect: {"score": 5} for aspect in ASPECTS}),
    ],
)
def test_scores_are_parsed_strictly(said: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        parse_scores(said)


def test_order_is_random_and_fair() -> None:
    first, second = [f"first {i}" for i in range(200)], [f"second {i}" for i in range(200)]
    _, pairing, order = prompts(first, second, 0)
    assert 70 < sum(order) < 130
    for prompt, leads, one in zip(pairing, order, first, strict=True):
        assert (prompt.index(one) < prompt.index("Text B:")) == leads
    # braces in a text are text
    assert "{b}" in prompts(["{b}"], ["x"], 0)[1][0]


def test_cost_comes_first(server: tuple[Model, str], tmp_path: Path) -> None:
    model, url = server
    asker = JudgeClient(JudgeServer("words", url), tmp_path / "answers.jsonl")
    grading, pairing, _ = prompts(LONG, SHORT, 0)
    before = estimate_cost(asker, grading, pairing, (1.0, 10.0))
    assert (before.calls, len(model.seen)) == (9, 0)
    assert before.cost == pytest.approx((before.prompt_tokens + 10 * before.answer_tokens) / 1e6)
    verdict(asker, LONG, SHORT)
    assert estimate_cost(asker, grading, pairing).calls == 0


def test_both_systems_start_from_the_same_noise(
    server: tuple[Model, str], tmp_path: Path, checkpoints: dict[str, Path], scdd: EvalModel, ar: EvalModel
) -> None:
    _, url = server
    tokenizer = scdd.lm.tokenizer
    some = rows(MemoryTokens.encoded([tiny.TEXT] * 6, tokenizer), tokenizer, 20, 6, whole=True)
    gidd = open_model(checkpoints["gidd"], device="cpu")
    context, how = MeasureContext(Store(tmp_path)), Matched(nfe=3)
    texts = tuple(measure_denoised(context, model, scdd, some, how) for model in (scdd, gidd))
    assert len(texts[0].result["texts"]) == 6
    assert texts[0].result != texts[1].result
    again = MeasureContext(Store(tmp_path / "again"), batch_size=2)
    same = measure_denoised(again, scdd, scdd, some, how)
    assert same.result == texts[0].result
    client = JudgeClient(JudgeServer("words", url), tmp_path / "answers.jsonl")
    found = measure_judge(context, (scdd, gidd), texts, client, how)  # type: ignore[arg-type]
    assert found.result["systems"] == ["scdd", "gidd"]
    with pytest.raises(UserError, match="autoregressive"):
        measure_denoised(context, ar, scdd, some, how)


def test_a_system_mends_in_its_own_way(tmp_path: Path, scdd: EvalModel) -> None:
    tokenizer = scdd.lm.tokenizer
    some = rows(MemoryTokens.encoded([tiny.TEXT] * 6, tokenizer), tokenizer, 20, 6, whole=True)
    context, how = MeasureContext(Store(tmp_path)), Matched(nfe=3)
    plain = measure_denoised(context, scdd, scdd, some, how)
    greedy = measure_denoised(context, scdd, scdd, some, how, own={"final": "greedy"})
    assert plain.hash == measure_denoised(context, scdd, scdd, some, how, own={}).hash
    assert plain.hash != greedy.hash
    assert plain.result["texts"] != greedy.result["texts"]
    edited = replace(scdd, lm=copy(scdd.lm))
    edited.lm.sampling = replace(scdd.lm.sampling, temperature=0.3, grid=GridOptions(kind="quadratic"))
    cooler = measure_denoised(context, edited, scdd, some, how)
    assert cooler.hash != plain.hash, "the recipe's temperature is part of what was asked"
    assert (cooler.settings["temperature"], cooler.settings["grid"]) == (0.3, "uniform")
    with pytest.raises(UserError, match="length of scdd cannot be its own"):
        measure_denoised(context, scdd, scdd, some, how, own={"length": 9})


def test_command(
    server: tuple[Model, str],
    tmp_path: Path,
    text: Path,
    checkpoints: dict[str, Path],
    capsys: pytest.CaptureFixture[str],
) -> None:
    model, url = server
    command = [
        *("eval", "judge", f"a={checkpoints['scdd']}", f"b={checkpoints['gidd']}", "--llm", "words", "--base-url", url),
        *("--text", str(text), "--num", "4", "--steps", "2,3", "--out", str(tmp_path / "out"), "--prices", "1,10"),
    ]
    assert main([*command, "--estimate"]) == 0
    assert "24 calls" in capsys.readouterr().err
    assert main(command) == 2
    assert "--yes" in capsys.readouterr().err
    assert not model.seen
    assert main([*command, "--yes"]) == 0
    shown = capsys.readouterr().out
    assert "a against b" in shown
    assert "win rate" in shown
    asked = len(model.seen)
    assert main([*command, "--yes", "--json"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["settings"]["nfe"] for line in lines] == [2, 3]
    assert len(model.seen) == asked
    pytest.importorskip("matplotlib")
    page = tmp_path / "report.html"
    assert main(["report", str(tmp_path / "out"), "--out", str(page)]) == 0
    for made in (page.read_text(), page.with_suffix(".md").read_text()):
        assert "LLM as judge: a against b" in made
        assert "4 texts of text.txt noised to t = 0.8" in made
        assert "Noised text 1 mended in 3 evaluations" in made
        assert lines[0]["hash"] in made
        assert "wins, losses, ties" in made
    capsys.readouterr()
    assert main([*command[:3], "--llm", "words"]) == 2
