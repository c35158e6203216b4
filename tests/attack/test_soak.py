"""`make soak`, for a moment: every part runs and finds nothing, and what is planted is found."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tests.docs.pages import ROOT, tool
from tests.serve.conftest import Serving, folder, lm, serving  # noqa: F401

SCRIPT = """
import os, random, sys, time
sys.path.insert(0, "tools")
import soak
from tests.attack import fuzz, kills

fuzz.SECONDS, kills.KILLS, kills.SETS = 1, 1, ("training.steps=6", "training.save_every=3")

def planted(place, dice):
    yield lambda: None
    yield lambda: int("no number")
    yield lambda: bytearray(8 << 30)
    def differs():
        assert place is None
    yield differs
    yield lambda: os.abort()

def hanging(place, dice):
    yield lambda: time.sleep(60)

def growing(place, dice):
    fuzz.MEMORY = 64 << 20
    kept = []
    while True:
        yield lambda: kept.append(b"x" * (100 << 20))

fuzz.MEMORY = 1 << 28
soak.PARTS = {name: each for name, each in soak.PARTS.items() if name in sys.argv[2].split(",")}
for name, inputs, size in (("planted", planted, 6), ("hanging", hanging, 1), ("growing", growing, 3)):
    if name in sys.argv[2]:
        soak.PARTS[name] = (0.0, name, lambda inputs=inputs, size=size: fuzz.fuzzing(inputs, size))
argv = ["--seconds", "0", "--state", sys.argv[1], "--parts", sys.argv[2]]
status = soak.main(argv)
before = {file.name: file.stat().st_mtime_ns for file in soak.Path(sys.argv[1]).glob("*.json")}
assert soak.main(argv) == status
assert before == {file.name: file.stat().st_mtime_ns for file in soak.Path(sys.argv[1]).glob("*.json")}, "all had their time"
sys.exit(status)
"""


def soaked(place: Path, parts: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", SCRIPT, str(place), parts]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'src'}"}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=200)


def counted(place: Path, part: str) -> dict[str, int]:
    found: dict[str, int] = json.loads((place / f"{part}.json").read_text())["tally"]
    return found


def test_what_is_planted_is_found(tmp_path: Path) -> None:
    done = soaked(tmp_path, "planted,hanging,growing")
    assert done.returncode == 1, done.stderr
    faults = {name: counted(tmp_path, "planted")[name] for name in ("inputs", "differing", "tracebacks", "memory")}
    assert faults == {"inputs": 4, "differing": 1, "tracebacks": 2, "memory": 1}
    assert "ValueError: invalid literal" in done.stdout
    assert counted(tmp_path, "hanging")["hangs"] == 1
    assert counted(tmp_path, "growing")["memory"] == 1


@pytest.mark.slow
def test_every_part_runs_and_finds_nothing(tmp_path: Path) -> None:
    """But for the commands, flipped bits and the OpenAPI document, whose own tests do the same, and the servers below."""
    parts = "kills,recipes,bundles,tokenizers,shards,checkpoints,folders,templates"
    done = soaked(tmp_path, parts)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = done.stdout.splitlines()[2 : 2 + len(parts.split(","))]
    assert [row.split(":")[0].split("|")[1].strip() for row in rows] == parts.split(",")
    assert counted(tmp_path, "recipes")["inputs"] == 500
    assert counted(tmp_path, "kills")["inputs"] == 1


def test_clients_get_their_serial_answers_and_odd_bytes_none_of_500(serving: Serving) -> None:  # noqa: F811
    clients = pytest.importorskip("tests.attack.clients")
    with serving({"queue": 40, "workers": 2, "batch": 16}) as client:
        alone = [clients.told(client.post(*clients.asked(i)).json) for i in range(clients.DIFFERENT)]
        assert clients.crowd(client, alone, 40, 0).sound
        wrong = clients.crowd(client, alone[::-1], 10, 0)
        assert wrong.differing == 10
        tally, dice = clients.Tally(), random.Random(0)
        for turn in range(40):
            clients.judge(client.port, clients.request(dice), str(turn), tally)
        assert tally.sound, tally.notes
        assert 20 < tally.refused < 40


def test_a_stopped_soak_goes_on_and_another_commit_begins_anew(tmp_path: Path) -> None:
    soak = tool("soak")
    seeds: list[int] = []

    def rounds(place: Path, first: int) -> Iterator[Any]:
        for number in count(first):
            seeds.append(number)
            yield soak.Tally(rounds=1, inputs=1, seconds=1.0)

    soak.PARTS["mine"] = (1.0, "", lambda: rounds)
    for seconds, now in ((2, "a"), (5, "a"), (2, "b")):
        soak.soak("mine", seconds, tmp_path, now)
    assert seeds == [0, 1, 2, 3, 4, 0, 1]
    assert soak.kept(tmp_path / "mine.json", "b").inputs == 2
