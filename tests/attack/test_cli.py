"""The command line under odd values: every one is a sentence or an answer, never a traceback, and nothing is lost."""

from __future__ import annotations

import io
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from scdd.cli.main import import_verb, main
from scdd.core.errors import UserError
from scdd.data.tokenizer import LARGEST, TextTokenizer
from scdd.ops.common import Filters
from tests import tiny

HUGE = "9" * 30
NUMBERS = (
    "0",
    "1",
    "-1",
    "2",
    "1e-320",
    "1e308",
    "nan",
    "inf",
    "-inf",
    HUGE,
    "2147483648",
    str(2**63),
    "0.5",
    "1,2",
    "1,nan",
)
WORDS = (
    "",
    " ",
    "a",
    "é東🙂",
    "\udcff",
    "a\nb",
    "\x1b[2J",
    "x" * 300,
    "x" * 5000,
    "-",
    "=",
    "a=b",
    "=b",
    "%s",
    "{x}",
    "null",
)
PATHS = (
    ".",
    "..",
    "/proc",
    "/proc/x",
    "folder",
    "text.txt",
    "empty",
    "bytes",
    "lines.jsonl",
    "model",
    "none/none",
    "a.html",
)
NAMES = ("hf:", "hf:x:y:z", "owner/name@rev", "@", "bundled", "cuda:99", "meta", "scdd:0.1", "mdlm", "int8", "file")
GAPS = ("[MASK]", "[MASK:0]", "[MASK:-1]", "[MASK:99999999999]", "[MASK:3]")
CHANGES = (
    *("sampling.steps=0", "sampling.sampler.eta=nan", "training.steps=x", "training.batch_size=1000000000000"),
    *(
        "model.width=1000000000000",
        "data.path=bytes",
        "training.start_from=bytes",
        "training.start_from=/",
        "model.heads=0",
    ),
)
ODD = (*NUMBERS, *WORDS, *PATHS, *NAMES, *GAPS, *CHANGES)
TRAIN = [
    word
    for change in (
        *("training.steps=1", "training.batch_size=2", "training.validate_batches=1", "data.path=text.txt"),
        *(
            "data.length=16",
            "data.vocab_size=300",
            "model.size=custom",
            "model.depth=1",
            "model.width=16",
            "model.heads=1",
        ),
    )
    for word in ("--set", change)
]
QUICK: dict[str, list[str]] = {
    "prepare": ["text.txt", "--out", "OUT", "--train-tokenizer", "300", "--workers", "1"],
    "train": ["nano", "--out", "OUT", *TRAIN],
    "sample": ["--model", "model", "--length", "8", "--steps", "2"],
    "infill": ["The [MASK] runs", "--model", "model", "--steps", "2"],
    "correct": ["The river runs", "--model", "model"],
    "score": ["The river runs", "--model", "model"],
    "convert": ["model", "--out", "OUT"],
    "export": ["model", "--out", "OUT"],
    "eval likelihood": ["--model", "model", "--text", "text.txt", "--limit", "2", "--looks", "2", "--out", "OUT"],
    "eval correction": ["--model", "model", "--num", "1", "--steps", "1", "--out", "OUT"],
    "eval recovery": [
        "--model",
        "model",
        "--text",
        "text.txt",
        "--num",
        "1",
        "--k",
        "1",
        "--steps",
        "2",
        "--out",
        "OUT",
    ],
    "eval zero-shot": ["--model", "model", "--benchmarks", "folder", "--out", "OUT"],
    "report": ["OUT"],
    "recipe show": ["nano"],
    "recipe check": ["nano"],
    "serve": ["--model", "model"],
}
"""For each verb what would work and be over at once; a server's port is refused in the end, so that none starts."""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A place deep enough that .. is ours too, with what commands may take for what it is not."""
    here = tmp_path / "a" / "b"
    here.mkdir(parents=True)
    monkeypatch.chdir(here)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"")))
    return furnished(here)


def furnished(here: Path) -> Path:
    tiny.checkpoint(here / "model")
    (here / "text.txt").write_text((tiny.TEXT * 3 + "\n\n") * 5, encoding="utf-8")
    (here / "lines.jsonl").write_text('{"text": "The river runs"}\n' * 5, encoding="utf-8")
    (here / "bytes").write_bytes(bytes(range(256)))
    (here / "empty").touch()
    (here / "folder").mkdir()
    return here


def options_of(verb: str) -> list[Any]:
    name, *inner = verb.split()
    command = import_verb(name)
    for each in inner:
        command = command.commands[each]
    return [each for each in command.params if each.param_type_name == "option" and each.name != "help"]


def attacks(verb: str, count: int, rng: random.Random) -> Iterator[list[str]]:
    """Commands that are wrong in one or two places."""
    options = options_of(verb)
    for _ in range(count):
        words = list(QUICK[verb])
        for _ in range(rng.choice((1, 1, 2))):
            if rng.random() < 0.2:
                words[rng.randrange(len(words))] = rng.choice(ODD)
                continue
            option = rng.choice(options)
            flag = max(option.opts, key=len)
            words.append(flag if option.is_flag else f"{flag}={rng.choice(ODD)}")
        yield [*verb.split(), *words, *(["--port", "99999"] if verb == "serve" else [])]


@pytest.mark.parametrize("verb", QUICK)
def test_odd_values_end_in_a_sentence(verb: str, folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    if verb == "serve":
        pytest.importorskip("fastapi")
    slow = verb == "train" or verb.startswith("eval")
    for number, words in enumerate(attacks(verb, 5 if slow else 12, random.Random(f"0 {verb}"))):
        out = folder / f"out{number}"
        capfd.readouterr()
        status = main([str(out) if word == "OUT" else word for word in words])
        judged(status, capfd.readouterr().err, words, out)
        assert Path.cwd() == folder
        assert (folder / "model" / "meta.json").is_file()


def judged(status: int, said: str, words: list[str], out: Path) -> None:
    assert status in (0, 2), words
    assert status == 0 or said.strip(), words
    assert "Traceback" not in said, words
    assert status == 0 or not (out / "checkpoints").exists(), "nothing half-written"
    shutil.rmtree(out, ignore_errors=True)


def inputs(place: Path, dice: random.Random) -> Iterator[Callable[[], Any]]:
    """Changes into its folder and writes over its own output: for a process of its own."""
    here = place / "a" / "b"
    here.mkdir(parents=True)
    os.chdir(furnished(here))
    sys.stdin = io.TextIOWrapper(io.BytesIO(b""))
    out, log = here / "out", open(place / "said", "w+b")  # noqa: SIM115 (as long as the process)
    os.dup2(log.fileno(), 2)

    def run(words: list[str]) -> None:
        log.truncate(0)
        log.seek(0)
        status = main([str(out) if word == "OUT" else word for word in words])
        said = Path(log.name).read_text(errors="replace")
        judged(status, said, words, out)
        assert (here / "model" / "meta.json").is_file(), words
        if status:
            raise UserError(said[:4000])

    while True:
        [words] = attacks(dice.choice(list(QUICK)), 1, dice)
        yield lambda words=words: run(words)  # type: ignore[misc]


REFUSED = {
    "export model --out .": "--out . is the folder you are in, or holds it: choose a folder inside",
    "export model --out ..": "--out .. is the folder you are in, or holds it",
    "convert model --out /": "--out / is the folder you are in, or holds it",
    "export model --out /proc/x": "--out /proc/x cannot be written",
    "sample --model /": "/ holds no model",
    "sample --model model --temperature 1e-320": "--temperature is 1e-320: choose one in [1e-30, 1e+30]",
    "sample --model model --temperature 1e31": "--temperature is 1e+31: choose one in",
    f"prepare text.txt --out out --train-tokenizer {1 << 31}": "--train-tokenizer is 2147483648: choose 1,048,576 or less",
    "prepare text.txt --out out --train-tokenizer 300 --workers 99999": "--workers is 99999: choose 1,024 or less",
    "prepare lines.jsonl --out out --train-tokenizer 300 --field \udcff": r"--field '\udcff' is no name",
    "prepare text.txt --out /proc/x --train-tokenizer 300": "--out /proc/x cannot be made a folder",
    f"train nano --out out --set training.batch_size={10**12}": "training.batch_size=1000000000000",
    "train nano --out /proc/x": "--out /proc/x cannot be made a folder",
    "eval likelihood --model model --text text.txt --out /proc/x": "--out /proc/x cannot be made a folder",
    f"eval correction --model model --num {HUGE} --out out": f"--num is {HUGE}: give 1 to 1,048,576",
    "eval recovery --model model --text text.txt --steps 99999999": "--steps is 99999999: give 1 to 1,048,576",
    "eval zero-shot --model model --benchmarks folder --looks 1": "--looks is 1: give an even number of at least 2",
    "eval zero-shot --model none --benchmarks folder --looks 3": "--looks is 3: give an even number",  # before it is loaded
    "eval zero-shot --model model --benchmarks folder --tasks mmlu": "--tasks mmlu are none of the files'",
    "sample --model model --length 8 --steps 2 --trace /proc/x.html": "/proc/x.html cannot be used",
}


@pytest.mark.parametrize("command", REFUSED)
def test_known_attacks(command: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = sorted(folder.rglob("*"))
    assert main(command.split()) == 2
    [said] = capsys.readouterr().err.splitlines()[-1:]
    assert said.startswith("error: ")
    assert REFUSED[command] in said
    assert sorted(folder.rglob("*")) == before, "nothing is written"


@pytest.mark.parametrize(
    "command",
    [
        "prepare deep.jsonl --out out --train-tokenizer 300 --workers 1",
        "prepare deep.jsonl --out out --tokenizer bundled --workers 2",
        "eval likelihood --model model --text deep.jsonl --out out",
    ],
)
def test_a_line_nested_too_deeply_is_a_sentence(command: str, folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    line = '{"text": "hi", "x": ' + "[" * 100_000 + "]" * 100_000 + "}\n"
    (folder / "deep.jsonl").write_text(f'{{"text": "fine"}}\n{line}')
    assert main(command.split()) == 2
    said = capfd.readouterr().err
    assert "Traceback" not in said
    assert said.splitlines()[-1].startswith("error: deep.jsonl, line 2: not a valid JSON line (maximum recursion")


def test_limits_hold_from_python_too() -> None:
    with pytest.raises(UserError, match="is too large"):
        TextTokenizer.train(["a"], LARGEST + 1)
    for heat in (1e-320, float("nan"), 1e308):
        with pytest.raises(UserError, match="choose one from 1e-30 to 1e30"):
            Filters(temperature=heat)


@pytest.mark.parametrize(
    "error", [MemoryError("Unable to allocate 7.28 TiB"), RuntimeError("CUDA out of memory. Tried")]
)
def test_too_little_memory_is_a_sentence(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(name: str) -> Any:
        raise error

    monkeypatch.setattr("scdd.cli.main.import_verb", fails)
    assert main(["sample"]) == 2
    assert capsys.readouterr().err.startswith("error: There is not enough memory (")


def test_the_bundled_model_has_a_name_everywhere(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for command in (
        ["score", "The river", "--model", "bundled"],
        ["export", "bundled", "--out", "small"],
        ["prepare", "text.txt", "--out", "shards", "--tokenizer", "bundled", "--workers", "1"],
    ):
        assert main(command) == 0, capsys.readouterr().err


def test_a_folder_that_is_gone_is_a_sentence(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gone = folder / "gone"
    gone.mkdir()
    os.chdir(gone)
    gone.rmdir()
    try:
        assert main(["export", "model", "--out", "x"]) == 2
    finally:
        os.chdir(folder)
    assert "The current folder cannot be used" in capsys.readouterr().err


def test_completion_knows_verbs_and_flags_without_torch(tmp_path: Path) -> None:
    for typed, found in (("scdd sa", "sample"), ("scdd sample --temp", "--temperature"), ("scdd eval rec", "recovery")):
        asked = {"_SCDD_COMPLETE": "complete_bash", "COMP_WORDS": typed, "COMP_CWORD": str(typed.count(" "))}
        command = [sys.executable, "-X", "importtime", "-m", "scdd"]
        done = subprocess.run(command, env={**os.environ, **asked}, capture_output=True, text=True, cwd=tmp_path)
        assert done.stdout.split() == [found]
        assert "torch" not in [line.rpartition("|")[2].strip() for line in done.stderr.splitlines()]


def test_completion_can_be_shown(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION", "1")
        assert main(["--show-completion", "bash"]) == 0
    assert "complete -o default -F _scdd_completion scdd" in capsys.readouterr().out
