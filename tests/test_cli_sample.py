"""sample, infill, correct and score on the command line: pipes, JSON, traces, mistakes, and the live view."""

from __future__ import annotations

import errno
import io
import json
import math
import os
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from scdd.cli.main import main
from scdd.cli.view import follow, odds
from scdd.lm.loading import load
from scdd.lm.results import Sample

from . import tiny

KEYS = {"text", "tokens", "seed", "steps", "nfe", "corrections", "sampler", "final", "process"}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tiny.checkpoint(tmp_path_factory.mktemp("cli") / "model"))


@pytest.fixture
def scdd(model: str, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    def run(*args: str, named: bool = True) -> tuple[int, str, str]:
        code = main([*args, *(["--model", model, "--device", "cpu"] if named else [])])
        out, err = capsys.readouterr()
        return code, out, err

    return run


class Stdin(io.TextIOWrapper):
    def __init__(self, content: bytes) -> None:
        super().__init__(io.BytesIO(content))

    def isatty(self) -> bool:
        return False


def test_sample_prints_plain_text_in_a_pipe(scdd) -> None:
    code, out, err = scdd("sample", "--prompt", "The river", "--length", "12", "--seed", "3")
    assert code == 0
    assert out.startswith("The river")
    assert "\x1b" not in out
    assert err == ""
    assert scdd("sample", "--prompt", "The river", "--length", "12", "--seed", "3")[1] == out
    assert scdd("sample", "--prompt", "The river", "--length", "12", "--seed", "4")[1] != out


def test_sample_json_is_one_object_a_line(scdd) -> None:
    code, out, _ = scdd(
        *("sample", "--num", "3", "--steps", "4", "--seed", "5", "--final", "greedy", "--top-p", "0.9", "--json")
    )
    rows = [json.loads(line) for line in out.splitlines()]
    assert code == 0
    assert len(rows) == 3
    assert all(set(row) >= KEYS for row in rows)
    assert all((row["steps"], row["nfe"], row["final"], row["seed"]) == (4, 4, "greedy", 5) for row in rows)
    alone = json.loads(
        scdd("sample", "--steps", "4", "--seed", "5", "--final", "greedy", "--top-p", "0.9", "--json")[1]
    )
    assert alone == rows[0]


def test_texts_that_end_at_once_are_told(scdd, monkeypatch: pytest.MonkeyPatch) -> None:
    from scdd.lm.run import Run

    argv = ("sample", "--num", "3", "--steps", "2", "--length", "8")
    code, out, err = scdd(*argv)
    assert (code, out != "", err) == (0, True, "")
    drawn = Run.results.fget  # type: ignore[attr-defined]

    def ended(*numbers: int) -> property:
        def results(run: Run) -> tuple[Sample, ...]:
            return tuple(replace(each, text="") if i in numbers else each for i, each in enumerate(drawn(run), 1))

        return property(results)

    for numbers, said in (((2,), "text 2 ended at once, so it is"), ((1, 3), "2 texts ended at once, so they are")):
        monkeypatch.setattr(Run, "results", ended(*numbers))
        want = f"note: {said} empty: try another --seed or a --prompt.\n"
        assert scdd(*argv)[2] == want
        code, out, err = scdd(*argv, "--json")
        assert (code, [json.loads(line)["text"] == "" for line in out.splitlines()].count(True)) == (0, len(numbers))
        assert err == want


def test_score_speaks_of_what_it_does(scdd) -> None:
    helps = {verb: " ".join(scdd(verb, "--help", named=False)[1].split()) for verb in ("score", "correct")}
    assert "higher changes more" in helps["correct"]
    assert "--strength" in helps["score"]
    for word in ("changes", "reverse", "pass:"):
        assert word not in helps["score"].partition("--strength")[2].partition("--help")[0]


def test_settings_of_the_recipe_can_be_changed(scdd) -> None:
    out = scdd("sample", "--set", "sampling.steps=3", "--set", "sampling.grid.kind=cosine", "--json")[1]
    assert json.loads(out)["nfe"] == 3
    code, _, err = scdd("sample", "--set", "sampling.stepz=3")
    assert code == 2
    assert "stepz" in err


def test_infill(scdd, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    text = "The quick [MASK:3] over the [MASK] dog"
    out = scdd("infill", text)[1]
    assert re.fullmatch(r"The quick.* over the.* dog\n", out, re.S)
    assert "[MASK" not in out
    (tmp_path / "text.txt").write_text(text, encoding="utf-8")
    assert scdd("infill", "--file", str(tmp_path / "text.txt"))[1] == out
    monkeypatch.setattr(sys, "stdin", Stdin(text.encode()))
    assert scdd("infill")[1] == out


def test_correct_and_score(scdd, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", Stdin(b"The river runs to the sea.\n"))
    code, out, _ = scdd("correct", "--json", "--strength", "0.5", "--steps", "4")
    found = json.loads(out)
    assert code == 0
    assert set(found) >= KEYS
    assert found["corrections"] == len(found["changes"])
    assert found["before"] == "The river runs to the sea."
    assert found["nfe"] == 5
    kept = json.loads(scdd("correct", "The river", "--freeze", "The river", "--strength", "0.9", "--json")[1])
    assert kept["text"] == "The river"
    one = json.loads(scdd("correct", "The river", "--mode", "pass", "--json")[1])
    assert one["nfe"] == 1
    lines = scdd("score", "The river")[1].splitlines()
    assert lines[0].split("\t") == ["position", "token", "p", "doubt", "best", "p_best"]
    assert len(lines) == 1 + len(tiny.tokenizer().encode("The river"))
    assert json.loads(scdd("score", "The river", "--json")[1])["tokens"][0]["text"]


def test_trace_page_is_self_contained(scdd, tmp_path: Path) -> None:
    page = tmp_path / "way.html"
    code, _, err = scdd("sample", "--num", "2", "--prompt", "</script><b>", "--length", "14", "--trace", str(page))
    assert code == 0
    assert str(page) in err
    html = page.read_text(encoding="utf-8")
    assert not re.search(r"(src|href)\s*=|https?://|@import|url\(", html), "nothing may be fetched"
    assert html.count("</script>") == 1, "a text cannot end the script"
    match = re.search(r"const data = (\{.*\});\n", html)
    assert match is not None
    data = json.loads(match[1])
    assert len(data["samples"]) == 2
    for sample in data["samples"]:
        tokens = list(sample["start"])
        for frame in sample["frames"]:
            assert len(frame["p"]) == len(tokens)
            for position, token, kind in frame["moves"]:
                assert kind in (1, 2, 3)
                assert (kind == 1) == (tokens[position] == data["mask"])
                tokens[position] = token
        assert data["mask"] not in tokens
        assert all(str(token) in data["tokens"] for token in tokens)
    fixed = tmp_path / "fixed.html"
    assert scdd("correct", "The river runs", "--trace", str(fixed))[0] == 0
    assert "const data = {" in fixed.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["way.html", "way.gif"])
def test_a_trace_that_cannot_be_finished_leaves_no_half(
    scdd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    code, _, err = scdd("sample", "--steps", "3", "--trace", str(tmp_path / name))
    assert code == 2
    assert f"{name} cannot be used (No space left" in err
    assert not list(tmp_path.iterdir())


def test_trace_gif(scdd, tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    path = tmp_path / "way.gif"
    assert scdd("sample", "--steps", "5", "--trace", str(path))[0] == 0
    with image.open(path) as opened:
        assert opened.format == "GIF"
        assert opened.n_frames == 5


@pytest.mark.parametrize(
    ("args", "reason"),
    [
        (["sample", "--sampler", "ancestrel"], "did you mean ancestral"),
        (["sample", "--sampler", "remdm"], "ρ ≡ 1"),
        (["sample", "--steps", "0"], "steps is 0"),
        (["sample", "--num", "0"], "num is 0"),
        (["sample", "--num", "1000000000000"], "give 1 to"),
        (["sample", "--steps", "1000000000000"], "1,048,576"),
        (["sample", "--length", "1000000000000"], "give 1 to"),
        (["sample", "--set", "model.size=small"], "only sampling"),
        (["sample", "--final", "argmax"], "final is"),
        (["sample", "--top-p", "2"], "--top-p is 2"),
        (["sample", "--process", "mdlm"], "ρ ≡ 1"),
        (["sample", "--prompt", "x" * 60], "raise length"),
        (["sample", "--prompt", "caf\udce9"], "UTF-8"),
        (["sample", "--trace", "way.pdf"], ".html"),
        (["sample", "--trace", "no/such/folder/way.html"], "does not exist"),
        (["infill", "The river"], "nothing to fill in"),
        (["infill", ""], "empty"),
        (["infill", "The [MASK], [MASK: 4] and [mask]"], "'[MASK: 4]', which is no span"),
        (["infill", "The [MASK:999] sea"], "in overlapping blocks (--blocks)."),
        (["infill", "The [MASK]", "--num", "0"], "num is 0"),
        (["infill", "The [MASK:999999999999]"], "at most"),
        (["infill", f"The [MASK:{'9' * 5000}]"], "at most"),
        (["correct", " "], "empty"),
        (["correct", "word " * 200], "blocks"),
        (["correct", "--file", "no-such-file.txt"], "cannot be read"),
        (["correct", "a", "--file", "b"], "twice"),
        (
            ["correct", "The river", "--freeze", "ocean"],
            "error: --freeze names 'ocean', which the text does not contain",
        ),
        (["correct", "The river", "--mode", "pass", "--trace", "x.html"], "--mode reverse"),
        (["score", "word " * 200], "(--blocks)."),
        (["score", "The river", "--strength", "2"], "strength"),
    ],
)
def test_mistakes_are_one_sentence_and_exit_with_2(scdd, args: list[str], reason: str) -> None:
    code, out, err = scdd(*args)
    assert code == 2
    assert out == ""
    assert reason in err
    assert err.startswith("error: ")
    assert len(err.splitlines()) == 1


def test_broken_utf8_and_missing_checkpoints(scdd, model: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "stdin", Stdin(b"The \xff river"))
    code, _, err = scdd("correct")
    assert code == 2
    assert "UTF-8" in err
    (tmp_path / "bad.txt").write_bytes(b"\xfe\xff")
    assert scdd("score", "--file", str(tmp_path / "bad.txt"))[0] == 2
    for path in (tmp_path / "none", tmp_path):
        code, _, err = scdd("sample", "--model", str(path), named=False)
        assert code == 2
        assert err.startswith("error: ")
    damaged = tiny.checkpoint(tmp_path / "damaged")
    (damaged / "model.safetensors").write_bytes(b"nonsense")
    code, _, err = scdd("sample", "--model", str(damaged), named=False)
    assert code == 2
    assert "damaged" in err


def test_windows_line_ends_and_byte_order_marks_are_no_text(scdd, tmp_path: Path) -> None:
    (tmp_path / "windows.txt").write_bytes(b"\xef\xbb\xbfThe river\r\nruns.\r\n")
    (tmp_path / "unix.txt").write_bytes(b"The river\nruns.\n")
    windows, unix = (scdd("score", "--json", "--file", str(tmp_path / f"{name}.txt")) for name in ("windows", "unix"))
    assert windows == unix
    assert json.loads(unix[1])["text"] == "The river\nruns."


def test_an_empty_model_name_is_not_the_current_folder(scdd) -> None:
    code, _, err = scdd("sample", "--model", "", named=False)
    assert code == 2
    assert "empty" in err


def test_correct_says_how_far_it_is_where_standard_error_is_seen(scdd, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the text goes into a pipe, which has the text and nothing else."""
    text = "The river runs to the sea. " * 8
    argv = ("correct", text, "--mode", "edit")
    code, silent, err = scdd(*argv)
    assert (code, err) == (0, "")
    walk = ("correct", "The river runs", "--mode", "reverse", "--steps", "3")
    walked = scdd(*walk)[1]
    for name, value in {"TERM": "xterm", "COLUMNS": "80"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    code, out, err = scdd(*argv)
    assert (code, out) == (0, silent)
    words = len(re.findall(r"\w+|[^\w\s]", text))
    assert re.search(rf"words .*{words}/{words}", err)
    code, out, err = scdd(*walk)
    assert (code, out) == (0, walked)
    assert re.search(r"steps .*3/3", err)
    assert scdd(*argv, "--plain") == (0, silent, "")


def test_live_view_shows_masks_and_corrections(scdd, monkeypatch: pytest.MonkeyPatch, model: str) -> None:
    """The board drawn frame by frame, as the terminal would show it."""
    from rich.console import Console

    from scdd.cli.view import MASK, Board
    from scdd.lm.loading import load

    lm = load(model, device="cpu")
    board, shown, flashes = Board(lm), [], False
    run = lm.start(5, plan=lm.plan(seed=1, steps=12, record=True))
    for progress in run:
        console = Console(file=io.StringIO(), force_terminal=True, width=100, color_system="truecolor")
        frame = board.frame(progress)
        console.print(frame)
        flashes |= any(segment.style and segment.style.bgcolor for segment in console.render(frame))
        shown.append(console.file.getvalue())  # type: ignore[attr-defined]
    assert MASK in shown[0]
    assert MASK not in shown[-1]
    assert "2 more" in shown[0]
    assert flashes, "a correction stands out"
    assert "step 12/12" in shown[-1]
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    code, _, err = scdd("sample", "--steps", "3")
    assert code == 0
    assert "evaluations" in err
    for verb in ("correct", "score"):
        assert scdd(verb, "The river runs")[0] == 0
    code, out, _ = scdd("correct", "The river river.", "--mode", "edit", "--strength", "1")  # wherever odds can be told
    assert code == 0
    assert re.search(r"'.*' → '.*'   [a-z]+, odds (> )?[\d,]+ : 1", out)
    assert "evaluations · strength 1" in out


def test_the_live_view_leaves_nothing_behind(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the text is taller than the window: what has left it at the top can be wiped by nobody."""
    console = Console(file=io.StringIO(), force_terminal=True, width=20, height=4, legacy_windows=False)
    monkeypatch.setattr("rich.live.get_console", lambda: console)
    lm = load(model, device="cpu")
    run = lm.start(6, length=30, plan=lm.plan(steps=3, record=True))
    shown = follow(run, lm, live=True)
    assert sum(len(sample.text) for sample in shown) > 4 * 20
    frames = console.file.getvalue().split("\x1b[2K")  # each line is wiped before it is drawn anew
    assert max(frame.count("\n") for frame in frames) < 4


@pytest.mark.parametrize(
    ("nats", "said"),
    [(math.log(12), "12 : 1"), (-math.log(12), "1 : 12"), (0.0, "1 : 1"), (math.log(987_654), "987,654 : 1"), (20.0, "> 1,000,000 : 1"), (-20.0, "1 : > 1,000,000")],
)  # fmt: skip
def test_odds_read_as_people_say_them(nats: float, said: str) -> None:
    assert odds(nats) == said
