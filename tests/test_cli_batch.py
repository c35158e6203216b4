"""Many texts from a file: a line for a line, gone on with after a kill, the same answers in any batch."""

from __future__ import annotations

import io
import json
import os
import resource
import shutil
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

import scdd.cli.answers as answers
import scdd.cli.batch as batch
from scdd.cli.main import main
from scdd.core.errors import UserError
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
    given.write_text("Nothing\nat all\n")
    code, out, err = run(capsys, *argv)
    assert (code, out) == (2, "Nothing\nat all\n"), "none was answered: scripts are told"
    assert "2 of 2 texts could not be answered" in err
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
    assert run(capsys, *argv)[0] == 2
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


def fed(monkeypatch: pytest.MonkeyPatch, content: str) -> None:
    """`content` comes through a pipe."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content.encode()), encoding="utf-8"))


def state(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def spelt(form: str, *texts: str) -> str:
    return "".join((json.dumps({"text": text}) if form == "--jsonl" else text) + "\n" for text in texts)


FORMS = [("--jsonl",), ("--lines",), ("--lines", "--json")]


@pytest.mark.parametrize("form", FORMS)
def test_answers_to_other_texts_are_not_gone_on_with(
    model: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    form: tuple[str, ...],
) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    out, given = folder / "o", tmp_path / "in"
    for source in ("-", str(given)):
        argv = ("infill", "--model", model, "--device", "cpu", "--steps", "1", *form[1:], form[0], source)

        def asked(*texts: str, source: str = source, argv: tuple[str, ...] = argv) -> tuple[int, str]:
            content = spelt(form[0], *texts)
            fed(monkeypatch, content) if source == "-" else given.write_text(content)
            code, _, err = run(capsys, *argv, "--out", str(out))
            return code, err

        assert asked("One [MASK]", "Two [MASK]") == (0, "")
        out.write_bytes(out.read_bytes() + b"half a li")  # stays, too, where the source is refused
        before, name = state(folder), "standard input" if source == "-" else source
        for number, texts in (
            (1, ("Three [MASK]", "Four [MASK]", "Five [MASK]")),
            (2, ("One [MASK]", "Two [MASK].")),
            (2, ("One [MASK]", "One [MASK]", "Two [MASK]")),
        ):
            assert asked(*texts) == (
                2,
                f"error: {name}, line {number} is another text than the one that --out {out} has answered: give the texts "
                "that it was made from, choose another --out, or delete it.\n",
            )
            assert state(folder) == before
        code, err = asked("One [MASK]")
        assert (code, "ends before line 2, which --out" in err, state(folder)) == (2, True, before)
        for grown in (2, 3, 5):  # the same beginning is gone on with
            assert asked(*[f"{word} [MASK]" for word in ("One", "Two", "Six", "Seven", "Eight")[:grown]]) == (0, "")
            assert len(out.read_bytes().splitlines()) == grown
        assert asked("One [MASK]", "Two [MASK]", "Six [MASK]", "Seven [MASK]", "Nine [MASK]")[0] == 2
        for file in folder.iterdir():
            file.unlink()


def test_a_kill_anywhere_leaves_lines_that_can_be_gone_on_with(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every state that plain lines and their hashes can have together: noted and written, noted and not, or lost again."""
    monkeypatch.setattr(batch, "CHUNK", 2)
    folder, texts = tmp_path / "out", [f"The river {i} [MASK]" for i in range(5)]
    folder.mkdir()
    out, beside, given = folder / "o", folder / "o.settings.json", tmp_path / "in"
    argv = ("infill", "--model", model, "--device", "cpu", "--steps", "1", "--lines", str(given), "--out", str(out))
    states: list[dict[str, bytes]] = []

    class Spy(answers.Kept):
        def begin(self, entries: Sequence[answers.Entry]) -> None:
            states.append(state(folder))
            super().begin(entries)
            states.append(state(folder))

        def write(self, line: str) -> None:
            super().write(line)
            states.append(state(folder))

    monkeypatch.setattr(answers, "Kept", Spy)
    given.write_text(spelt("--lines", *texts))
    assert run(capsys, *argv)[0] == 0
    whole, last = out.read_bytes(), beside.read_bytes()
    cuts = [whole[:end] for end in range(0, len(whole), 9)]
    seen = [*states, *({"o": cut, "o.settings.json": last} for cut in cuts)]
    assert len({each["o.settings.json"] for each in seen}) == 4  # none, and one for each piece
    for each in seen:
        for changed in (None, 0, each["o"].count(b"\n") - 1):
            for name, content in each.items():
                (folder / name).write_bytes(content)
            if changed is None:
                given.write_text(spelt("--lines", *texts))
                assert (run(capsys, *argv)[0], out.read_bytes()) == (0, whole)
            elif each["o"].count(b"\n"):
                given.write_text(spelt("--lines", *[text + "." * (i == changed) for i, text in enumerate(texts)]))
                assert run(capsys, *argv)[0] == 2, (each, changed)
                assert state(folder) == each


def test_plain_lines_from_before_their_hashes_are_gone_on_with(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, given = tmp_path / "o", tmp_path / "in"
    given.write_text("One [MASK]\nTwo [MASK]\n")
    argv = ("infill", "--model", model, "--device", "cpu", "--steps", "1", "--lines", str(given), "--out", str(out))
    assert run(capsys, *argv)[0] == 0
    whole, beside = out.read_bytes(), tmp_path / "o.settings.json"
    told = json.loads(beside.read_text())
    del told["answered"]
    beside.write_text(json.dumps(told, indent=1, ensure_ascii=False) + "\n")
    out.write_bytes(whole[: whole.index(b"\n") + 1])
    assert (run(capsys, *argv)[0], out.read_bytes()) == (0, whole)
    given.write_text("Three [MASK]\nTwo [MASK]\n")
    assert run(capsys, *argv)[0] == 2, "from then on they have them"
    for wrong in (3, {}, {"lines": "x", "sha256": "", "then": []}):
        beside.write_text(json.dumps({**told, "answered": wrong}))
        assert "is damaged" in run(capsys, *argv)[2]


def test_other_characters_that_end_lines_somewhere_stay(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    marks = "\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"
    text = f"The river{marks}runs to the sea."
    given, out = tmp_path / "in.txt", tmp_path / "out.txt"
    given.write_bytes(f"{text}\r\nA\rsea.\n{marks}\n".encode())
    argv = ("--model", model, "--device", "cpu", "--lines", str(given), "--out", str(out))
    assert run(capsys, "correct", "--mode", "pass", "--freeze", ".", *argv)[0] == 0
    corrected, last, blank = out.read_bytes().decode().split("\n")[:3]
    assert (corrected.count("\u2028"), "\r" in last, blank) == (1, False, marks)
    out.unlink()
    assert "they stand as they were" in run(capsys, "infill", *argv)[2]
    assert out.read_bytes() == f"{text}\nA\rsea.\n{marks}\n".encode()


@pytest.mark.parametrize("said", ["a\r\nb\rc\nd\n", "", "\n", "a\n\n", "\r\n\r\n", "a\n\rb"])
def test_an_answer_is_one_line(said: str) -> None:
    assert batch._one_line(said) == " ".join(said.splitlines())


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('"score": 1e400', "line 2 has the number 1e400, which JSON cannot give back: write it as a text, in quotes."),
        ('"a": {"b": [-Infinity]}', "line 2 has the number -Infinity, which"),
        ('"a": NaN', "line 2 has the number NaN, which"),
        (f'"a": {"9" * 400}.5', f"line 2 has the number {'9' * 30}…, which"),
        ('"infill": "mine"', 'line 2 has a key "infill" of its own, where the answer would stand: rename it.'),
    ],
)
def test_what_would_not_come_back_as_it_was_is_refused(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], line: str, said: str
) -> None:
    given = tmp_path / "in.jsonl"
    given.write_text(f'{{"text": "a [MASK]", "n": 1e300}}\n{{"text": "b [MASK]", {line}}}\n')
    code, _, err = run(capsys, "infill", "--model", model, "--device", "cpu", "--steps", "1", "--jsonl", str(given))
    assert (code, said in err) == (2, True), err


def test_a_key_for_errors_is_refused_only_where_it_is_needed(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    given.write_text('{"text": "a [MASK]", "error": "mine"}\n{"text": "nothing", "error": "mine"}\n')
    argv = ("infill", "--model", model, "--device", "cpu", "--steps", "1", "--jsonl", str(given), "--out", str(out))
    for _ in range(2):
        code, _, err = run(capsys, *argv)
        assert (code, 'Line 2 has a key "error" of its own and cannot be answered' in err) == (2, True)
    assert [json.loads(line)["error"] for line in out.read_text().splitlines()] == ["mine"]


def test_what_cannot_be_read_is_not_said_of_the_answers(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Torn(io.BytesIO):
        def readline(self, size: int | None = -1, /) -> bytes:
            raise OSError(5, "Input/output error")

    out = tmp_path / "o"
    argv = ("infill", "--model", model, "--device", "cpu", "--steps", "1", "--jsonl", "-", "--out", str(out))
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(Torn()))
    code, _, err = run(capsys, *argv)
    assert (code, err) == (2, "error: standard input cannot be read (Input/output error): check it.\n")
    with pytest.raises(OSError, match="elsewhere"), answers.sink(tmp_path / "p", {"verb": "infill"}, "in", False):
        raise OSError(5, "elsewhere")


def test_a_full_disk_is_said_of_the_answers(tmp_path: Path) -> None:
    out = tmp_path / "o"

    def filled() -> None:
        with answers.sink(out, {"verb": "score"}, "in", False) as kept:
            kept.rest(iter(()))
            kept.write("x" * 200)

    before, action = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
    try:
        with pytest.raises(UserError, match=r"--out .* cannot be written \(File too large\)"):
            filled()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, action)


def test_the_bar_does_not_read_a_pipe_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import rich.console

    monkeypatch.setattr(rich.console.Console, "is_terminal", True)
    read, write = os.pipe()
    os.write(write, b"a text\n")
    os.close(write)
    with batch._bar(Path(f"/dev/fd/{read}")):
        assert os.read(read, 100) == b"a text\n"
    os.close(read)
