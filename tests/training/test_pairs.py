"""Fine-tuning on pairs, from the recipe to an answer."""

from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path

import pytest
import torch

import scdd
from scdd.assemble import training as build
from scdd.bundle.folder import read
from scdd.cli.main import main
from scdd.core.errors import UserError
from scdd.lm.chat import answer
from scdd.recipe.load import load

from .. import tiny
from ..data.test_pairs import CHAT, TEMPLATE, chat_tokenizer, examples, written
from .conftest import Launch, curve, said, weights
from .test_resume import same

PRETRAINED = ["model={kind: pretrained}", "objective={kind: elbo, steps: null, times: {kind: low-discrepancy}}"]


@pytest.fixture
def sets(tmp_path: Path) -> list[str]:
    """A recipe's changes: fine-tune a tiny model on pairs."""
    start = tiny.checkpoint(tmp_path / "start")
    path = written(tmp_path / "pairs.jsonl", examples(40))
    pairs = f"data={{kind: pairs, path: {path}, length: 40, fill: 4, valid_fraction: 0.2}}"
    return [pairs, f"training.start_from={start}", *PRETRAINED]


def test_a_model_is_fine_tuned_on_pairs_and_answers(
    launch: Launch, tmp_path: Path, sets: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    assert launch(out, sets=[*sets, "training.learning_rate=3e-3", "training.steps=60"]) == [0], said(tmp_path, out)
    held = [line["valid_nelbo"] for line in curve(out) if "valid_nelbo" in line]
    assert held[-1] < 0.7 * held[0], "responses are learnt"
    lm = scdd.load(out)
    assert lm.context == 40
    (sample,) = lm.generate(prompt="river river ", length=24, steps=16)
    assert sample.text.startswith("river river ")
    assert len(lm.tokenizer.encode(sample.text)) < 24, "[EOS] fills the room that an answer does not need"
    capsys.readouterr()
    assert main(["sample", "--model", str(out), "--prompt", "river river ", "--length", "24", "--device", "cpu"]) == 0
    assert capsys.readouterr().out.startswith("river river ")


@pytest.mark.dist
def test_ranks_and_micro_batches_change_nothing_though_responses_differ_in_length(
    launch: Launch, tmp_path: Path, sets: list[str]
) -> None:
    # A large epsilon: AdamW would make steps of gradients that are nothing but rounding.
    sets = [*sets, "training.steps=8", "data.pack=false", "training.epsilon=1e-2"]
    assert launch(tmp_path / "one", sets=sets) == [0]
    assert launch(tmp_path / "micro", sets=[*sets, "training.micro_batch_size=2"]) == [0]
    assert launch(tmp_path / "ddp", 2, [*sets, "training.micro_batch_size=2"]) == [0, 0]
    one = weights(tmp_path / "one")
    for other in ("micro", "ddp"):
        for name, value in weights(tmp_path / other).items():
            torch.testing.assert_close(value, one[name], atol=1e-5, rtol=1e-4, msg=f"{other}: {name}")
        for mine, theirs in zip(curve(tmp_path / "one"), curve(tmp_path / other), strict=True):
            assert mine == pytest.approx(theirs, rel=1e-5), other


def test_a_run_on_chats_goes_on_with_the_same_bits_without_what_it_started_from(launch: Launch, tmp_path: Path) -> None:
    own = chat_tokenizer()
    own.save(tmp_path / "chat.json")
    (tmp_path / "template.jinja").write_text(TEMPLATE)
    lines = [{"messages": CHAT[i : i + 2 + 2 * (i < 2)]} for i in (1, 3)] * 10
    path = written(tmp_path / "chats.jsonl", [*lines, {"messages": [CHAT[0], *CHAT[1:3] * 40]}])
    data = f"{{kind: pairs, path: {path}, length: 96, tokenizer: {tmp_path}/chat.json, chat_template: "
    first = tmp_path / "first"
    sets = [f"data={data}{tmp_path}/template.jinja}}", "training.steps=4"]
    assert launch(first, sets=sets) == [0], said(tmp_path, first)
    assert read(first).extra["chat_template"] == TEMPLATE
    assert "1 pairs are left out" in said(tmp_path, first)
    chatty = scdd.load(first)
    assert isinstance(answer(chatty, CHAT[:2], room=12, steps=8), str)
    with pytest.raises(UserError, match="a message without a text as its content"):
        answer(chatty, [{"role": "user"}])
    with pytest.raises(UserError, match="comes with no chat template"):
        answer(scdd.load(tiny.checkpoint(tmp_path / "mute")), CHAT[:2])
    # From now on tokenizer and template come with the model.
    tuned = [f"data={{kind: pairs, path: {path}, length: 96}}", f"training.start_from={first}", *PRETRAINED]
    assert launch(tmp_path / "calm", sets=tuned) == [0], said(tmp_path, tmp_path / "calm")
    assert launch(tmp_path / "killed", sets=tuned, operation=40) == [-signal.SIGKILL]
    shutil.move(first, tmp_path / "gone")
    (tmp_path / "template.jinja").unlink()
    assert launch(tmp_path / "killed", sets=tuned) == [0], said(tmp_path, tmp_path / "killed")
    assert "resuming from" in said(tmp_path, tmp_path / "killed")
    same(tmp_path / "calm", tmp_path / "killed")


def test_a_run_that_goes_on_does_not_ask_what_it_started_from(
    recipe_file: Path, tmp_path: Path, sets: list[str]
) -> None:
    spec = load(recipe_file, sets)
    first = build.corpus(spec)
    assert first.tokenizer.hash == tiny.tokenizer().hash
    shutil.rmtree(tmp_path / "start")
    again = build.corpus(spec, first.tokenizer.to_str())
    assert again.tokenizer.hash == first.tokenizer.hash
    with pytest.raises(UserError, match=r"^training.start_from: .*start"):
        build.corpus(spec)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (["training.start_from=null", "model={kind: dit, size: nano}"], "data.tokenizer is null"),
        (["data.length=4"], "data.length: no pair fits into 4 tokens"),
        (["data.path=nowhere.jsonl"], "data.path: nowhere.jsonl does not exist"),
        (["data.path=empty.jsonl"], "data.path empty.jsonl holds no pairs"),
        (["data.path=mute.jsonl"], "data.length: no pair fits .* or no response is there to learn"),
        (["data.path=chats.jsonl"], "data.chat_template is missing, and chats.jsonl, line 1 holds messages"),
    ],
)
def test_what_cannot_be_fine_tuned_is_said(
    recipe_file: Path, tmp_path: Path, sets: list[str], changes: list[str], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, lines in {"empty": [], "mute": [{"prompt": "a", "response": ""}], "chats": [{"messages": CHAT}]}.items():
        written(tmp_path / f"{name}.jsonl", lines)
    with pytest.raises(UserError, match=says):
        scdd.train(recipe_file, tmp_path / "run", overrides=[*sets, *changes], device="cpu", progress=False)
    assert not (tmp_path / "run").exists()


def test_prism_and_pairs_do_not_go_together(recipe_file: Path, sets: list[str]) -> None:
    masked = ["process={kind: mdlm, schedule: {kind: masked}}", "objective={kind: prism}"]
    with pytest.raises(UserError, match=r"objective.kind prism does not learn from pairs"):
        load(recipe_file, [*sets, *masked])


def test_an_evaluation_does_not_take_pairs_for_a_text(launch: Launch, tmp_path: Path, sets: list[str]) -> None:
    from scdd.evals.measure.model import open_model
    from scdd.evals.measure.texts import text_rows

    assert launch(tmp_path / "run", sets=[*sets, "training.steps=1"]) == [0]
    with pytest.raises(UserError, match="trained on pairs, which are no running text: name a text"):
        text_rows(open_model(str(tmp_path / "run"), device="cpu"))
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert any("loss" in json.loads(line) for line in lines)
