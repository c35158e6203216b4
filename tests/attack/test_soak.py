"""`make soak`, for a moment: every part runs and finds nothing, and what is planted is found."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import ROOT

SCRIPT = """
import os, random, sys, time
sys.path.insert(0, "tools")
import soak
from tests.attack import clients, fuzz, kills

fuzz.SECONDS, kills.KILLS, kills.SETS = 1, 1, ("training.steps=6", "training.save_every=3")
clients.DIFFERENT = 8

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
sys.exit(soak.main(["--seconds", "0", "--state", sys.argv[1], "--parts", sys.argv[2]]))
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


def test_every_part_runs_and_goes_on(tmp_path: Path) -> None:
    """But for the commands and the OpenAPI document, whose tests do the same."""
    pytest.importorskip("fastapi")
    parts = "kills,recipes,bundles,tokenizers,shards,checkpoints,folders,templates,http,clients"
    done = soaked(tmp_path, parts)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [line.split(":")[0].split("|")[1].strip() for line in done.stdout.splitlines()[2:-1]] == parts.split(",")
    assert counted(tmp_path, "recipes")["inputs"] == 500
    before = counted(tmp_path, "kills")
    assert before["inputs"] == 1
    assert soaked(tmp_path, "kills,recipes").returncode == 0
    assert counted(tmp_path, "kills") == before, "it has had its time"
