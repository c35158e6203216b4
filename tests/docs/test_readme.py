"""The commands of README's console blocks run as they are printed, and print what stands below them.

"…" stands for anything. What takes minutes is shortened here, and runs as printed with `pytest -m slow`; where numbers are those of a
machine or of other texts, their places are compared alone.
"""

from __future__ import annotations

import json
import lzma
import os
import re
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from scdd.core.machine import multiplies_eight_bits
from tests.docs.pages import CARD, ROOT, blocks, prose

SHORTER = {
    "scdd train nano": " --set training.steps=4 --set training.batch_size=4 --set training.validate_batches=1",
    "scdd eval recovery": " --num 3 --length 64",
}
"""What is added to the commands that take minutes."""
MEASURED = ("scdd train", "scdd eval", "scdd export")
"""Commands whose numbers are a machine's, or of a text of ours."""
NUMBER = re.compile(r"\d+(?:[.,:]\d+)*(?:e[+-]\d+)?")
PORT = "8000"


class Shown(NamedTuple):
    """A command and what it prints."""

    command: str
    output: str


def shown() -> Iterator[Shown]:
    for block in blocks(ROOT / "README.md", "console"):
        for part in re.split(r"^\$ ", block.code, flags=re.M)[1:]:
            command, _, output = part.partition("\n")
            yield Shown(command, output)


ALL = list(shown())
ORDINARY = [each for each in ALL if not each.command.startswith((*SHORTER, "scdd serve", "curl"))]


def pattern(each: Shown) -> str:
    """The output as a regular expression, line by line."""
    text = re.escape(each.output)
    if each.command.startswith(MEASURED):
        text = NUMBER.sub(r"[-\\d.,:e+]+", text.replace(r"\-", "-").replace(r"\.", "."))
    return text.replace("…\\\n", "(?:.*\n)*").replace("…", ".*")


def on_the_path(command: Path, module: str) -> None:
    """A command that runs a module, for scripts."""
    command.parent.mkdir(exist_ok=True)
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m {module} "$@"\n', encoding="utf-8")
    command.chmod(command.stat().st_mode | stat.S_IXUSR)


def articles(file: Path) -> None:
    with lzma.open(file, "wt", encoding="utf-8") as lines:
        lines.writelines(json.dumps({"text": prose(CARD)}) + "\n" for _ in range(40))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `scdd` on its path, a text to measure on, and the run that the page trains."""
    folder = tmp_path_factory.mktemp("readme")
    on_the_path(folder / "bin" / "scdd", "scdd")
    articles(folder / "valid.jsonl.xz")
    return folder


def run(command: str, place: Path) -> str:
    around = {
        "PATH": f"{place / 'bin'}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT / "src"),
        "CUDA_VISIBLE_DEVICES": "",
    }
    shell = ["bash", "-o", "pipefail", "-c", command]
    done = subprocess.run(shell, cwd=place, env={**os.environ, **around}, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, f"{command}: {done.stderr}"
    return done.stdout


def find(start: str) -> Shown:
    [each] = [each for each in ALL if each.command.startswith(start)]
    return each


def check(each: Shown, printed: str) -> None:
    printed = re.sub(r" +$", "", printed, flags=re.M)  # fold leaves them
    assert re.fullmatch(pattern(each), printed), f"$ {each.command}\n{printed}"


def test_training_and_sharing(place: Path) -> None:
    train, export = find("scdd train"), find("scdd export")
    printed = run(train.command + SHORTER["scdd train nano"], place)
    assert printed.startswith(train.output.partition("\n")[0])
    assert re.search(r"^step +\d+/4 +train loss .* tokens/s ", printed, re.M)
    check(export, run(export.command, place))


INT8 = pytest.mark.skipif(not multiplies_eight_bits(), reason="the page shows texts in int8, and this CPU has none")


@INT8
@pytest.mark.parametrize(
    "each", [each for each in ORDINARY if "export" not in each.command], ids=lambda e: e.command[:30]
)
def test_what_the_page_shows_is_printed(each: Shown, place: Path) -> None:
    check(each, run(each.command, place))


def test_measuring(place: Path) -> None:
    each = find("scdd eval recovery")
    check(each, run(each.command + SHORTER["scdd eval recovery"], place))


@INT8
def test_serving(place: Path) -> None:
    pytest.importorskip("uvicorn")
    ask = find("curl")
    script = f"""
scdd serve --port 0 >log 2>&1 & server=$!
for i in $(seq 200); do grep -q playground log && break; sleep 0.1; done
port=$(sed -n 's/.*playground *http:..127.0.0.1:\\([0-9]*\\).*/\\1/p' log)
{ask.command.replace(PORT, "$port")}
kill $server; wait $server
"""
    check(ask._replace(output=ask.output.rstrip("\n")), run(script, place))


@pytest.mark.slow
@pytest.mark.parametrize("start", SHORTER)
def test_what_takes_minutes(start: str, place: Path) -> None:
    each = find(start)
    check(each, run(each.command.replace("--out run", "--out long"), place).replace("long/", "run/"))
