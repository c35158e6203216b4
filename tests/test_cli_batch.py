"""Many texts from a file: a line for a line, gone on with after a kill, the same answers in any batch."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import scdd.cli.batch as batch
from scdd.cli.main import main
from tests import tiny


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tiny.checkpoint(tmp_path_factory.mktemp("batch") / "model"))


def run(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    code = main(list(argv))
    out, err = capsys.readouterr()
    return code, out, err


def source(path: Path, count: int = 5) -> Path:
    rows = [{"id": i, "text": f"The river {i} [MASK:2] to the sea."} for i in range(count)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def test_answers_stand_beside_what_was_given(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ("infill", "--model", model, "--device", "cpu", "--steps", "3", "--num", "2")
    code, out, _ = run(capsys, *argv, "--jsonl", str(source(tmp_path / "in.jsonl")))
    assert code == 0
    rows = [json.loads(line) for line in out.splitlines()]
    assert [row["id"] for row in rows] == list(range(5))
    for row in rows:
        _, alone, _ = run(capsys, *argv, "--json", row["text"])
        assert row["infill"] == [json.loads(line) for line in alone.splitlines()]


def test_it_goes_on_behind_the_last_whole_line(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out, given = tmp_path / "out.jsonl", source(tmp_path / "in.jsonl")
    argv = ("infill", "--model", model, "--device", "cpu", "--steps", "3", "--jsonl", str(given), "--out", str(out))
    assert run(capsys, *argv)[0] == 0
    whole = out.read_bytes()
    monkeypatch.setattr(batch, "CHUNK", 2)
    for cut in (0, 7, whole.index(b"\n") + 1, len(whole) - 3):
        out.write_bytes(whole[:cut])
        assert run(capsys, *argv)[0] == 0
        assert out.read_bytes() == whole, cut
    code, _, err = run(capsys, *argv, "--seed", "1")
    assert (code, "other settings" in err) == (2, True)
    code, _, err = run(capsys, *argv, "--process", "gidd")
    assert (code, "other settings" in err) == (2, True)


def test_what_is_no_result_of_the_command_is_left_alone(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given, mine, other = source(tmp_path / "in.jsonl", 1), tmp_path / "mine.txt", tmp_path / "linked.jsonl"
    before = given.read_bytes()
    other.symlink_to(given)
    argv = ("correct", "--model", model, "--device", "cpu", "--steps", "2", "--jsonl", str(given), "--out")
    for out in (given, other, tmp_path / "." / "in.jsonl"):
        code, _, err = run(capsys, *argv, str(out))
        assert (code, err) == (2, "error: --out is the file that is read: choose another.\n")
    assert given.read_bytes() == before
    beside = mine.with_name("mine.txt.settings.json")
    for settings in (None, b"\xff", b"mine too", b"[]", b"[" * 9000, b'{"source": "in.jsonl"}', b'{"verb": "infill"}'):
        mine.write_text("mine")
        if settings is not None:
            beside.write_bytes(settings)
        code, _, err = run(capsys, *argv, str(mine))
        assert (code, err) == (2, f"error: --out {mine} exists and is no result of this command: choose another.\n")
        assert (mine.read_text(), beside.read_bytes() if settings else None) == ("mine", settings)


def test_other_weights_in_the_same_place_are_other_settings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place, out = tmp_path / "model", tmp_path / "out.jsonl"
    argv = ("score", "--device", "cpu", "--jsonl", str(source(tmp_path / "in.jsonl", 1)), "--out", str(out))
    assert run(capsys, *argv, "--model", str(tiny.checkpoint(place)))[0] == 0
    shutil.rmtree(place)
    code, _, err = run(capsys, *argv, "--model", str(tiny.checkpoint(place, quality=True)))
    assert (code, "other settings" in err) == (2, True)


def test_lines_in_lines_out(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = tmp_path / "in.txt"
    given.write_text("\ufeffThe [MASK:2] sea\r\n\nNothing to fill\nThe [MASK] river\n", encoding="utf-8")
    argv = ("infill", "--model", model, "--device", "cpu", "--steps", "2", "--lines", str(given))
    code, out, err = run(capsys, *argv)
    lines = out.split("\n")
    assert (code, len(lines), lines[1:3]) == (0, 5, ["", "Nothing to fill"])
    assert lines[0].startswith("The")
    assert "1 of 4 texts could not be answered (they stand as they were), first line 3: The text has nothing" in err
    code, out, err = run(capsys, *argv, "--json", "--num", "2")
    rows = [json.loads(line) for line in out.splitlines()]
    assert [len(row.get("infill", ())) for row in rows] == [2, 0, 0, 2]
    assert 'see "error" in their lines' in err
    code, _, err = run(capsys, *argv, "--num", "2")
    assert (code, "add --json" in err) == (2, True), "a text would be lost"


@pytest.mark.parametrize("verb", ["correct", "score"])
def test_other_verbs(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], verb: str) -> None:
    given = tmp_path / "in.txt"
    given.write_text("The river runs.\nA sea.\n", encoding="utf-8")
    argv = (verb, "--model", model, "--device", "cpu", *(("--mode", "pass") if verb == "correct" else ()))
    code, out, _ = run(capsys, *argv, "--lines", str(given))
    assert code == 0
    for line, text in zip(out.splitlines(), ("The river runs.", "A sea."), strict=True):
        _, alone, _ = run(capsys, *argv, text, *(("--json",) if verb == "score" else ()))
        assert (json.loads(line)["score"] == json.loads(alone)) if verb == "score" else line == alone.rstrip("\n")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b'{"text": "a [MASK]"}\n{"txt": 3}\n', "line 2 has no text 'text': name its key with --field"),
        (b'{"text": \n', "line 1 is no JSON"),
        (b'{"text": "a [MASK]"}\n\n', "line 2 is empty"),
        (b"\xff\n", "line 1 is not valid UTF-8"),
        (b"[" * 9000 + b"\n", "line 1 is no JSON"),
    ],
)
def test_lines_that_cannot_be_read(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes, said: str
) -> None:
    given = tmp_path / "in.jsonl"
    given.write_bytes(content)
    code, _, err = run(capsys, "infill", "--model", model, "--device", "cpu", "--steps", "2", "--jsonl", str(given))
    assert code == 2
    assert said in err


def test_half_a_surrogate_pair_is_said_in_its_line(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    given.write_bytes(b'{"text": "a \\ud800 [MASK]"}\n')
    argv = ("infill", "--model", model, "--device", "cpu", "--steps", "2", "--jsonl", str(given), "--out", str(out))
    assert run(capsys, *argv)[0] == 0
    assert "not valid Unicode" in json.loads(out.read_text())["error"]


def test_what_a_line_lacks_is_told_as_a_flag(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = tmp_path / "in.txt"
    given.write_text(f"The river runs.\n{'The sea ' * 60}\n", encoding="utf-8")
    argv = ("correct", "--model", model, "--device", "cpu", "--mode", "pass", "--lines", str(given))
    assert "first line 2: The text has" in (err := run(capsys, *argv)[2])
    assert "in overlapping blocks (--blocks)." in err
    assert "first line 2: --freeze names 'river'" in run(capsys, *argv, "--freeze", "river", "--blocks")[2]


@pytest.mark.parametrize(
    "more",
    [("--jsonl", "a", "--lines", "b"), ("--out", "c"), ("--jsonl", "a", "text"), ("--jsonl", "-", "--trace", "a.html")],
)
def test_flags_that_do_not_go_together(more: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "infill", *more)[0] == 2
