"""A very small run, and a launcher that starts it many times."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file
from torch import Tensor

RECIPE = """
name: small
seed: 3
data: {{kind: text, path: {text}, vocab_size: 300, length: 16, valid_fraction: 0.2}}
model: {{size: custom, depth: 2, width: 16, heads: 2, cond_width: 8}}
process: {{kind: scdd, schedule: {{kind: peaked, p_u: 0.2}}}}
objective: {{kind: elbo, steps: null, times: {{kind: adaptive}}}}
training:
  steps: 24
  batch_size: 8
  learning_rate: 1e-2
  warmup_steps: 4
  ema: 0.9
  precision: float32
  compile: false
  save_every: 5
  keep_last: 2
  validate_every: 8
  validate_batches: 2
  log_every: 3
  tensorboard: false
"""
Launch = Callable[..., list[int]]


@pytest.fixture(scope="session")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A few thousand words over a small vocabulary, in five documents."""
    return written(tmp_path_factory.mktemp("text"))


def written(folder: Path) -> Path:
    words = re.findall(r"\w+", "the cat sat on a mat while seven dogs ran past its old house near some quiet river")
    for number in range(5):
        picked = [words[(i * i + 3 * i * number + i // 7) % len(words)] for i in range(500)]
        (folder / f"{number}.txt").write_text(" ".join(picked), encoding="utf-8")
    return folder


@pytest.fixture
def recipe_file(text: Path, tmp_path: Path) -> Path:
    path = tmp_path / "small.yaml"
    path.write_text(RECIPE.format(text=text), encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def zygote() -> Iterator[subprocess.Popen[str]]:
    with forking() as process:
        yield process


@contextmanager
def forking() -> Iterator[subprocess.Popen[str]]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(Path(__file__).with_name("zygote.py"))]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
    try:
        yield process
    finally:
        ended(process)


def ended(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.close()
    process.wait(20)


@pytest.fixture
def launch(zygote: subprocess.Popen[str], recipe_file: Path, tmp_path: Path) -> Launch:
    """launch(out, ranks=1, sets=[…], after=…, operation=…, signal=…) → exit codes, negative for a signal."""

    def start(out: Path, ranks: int = 1, sets: list[str] | None = None, **how: Any) -> list[int]:
        argv = ["train", str(recipe_file), "--out", str(out), "--device", "cpu"]
        argv += [part for each in sets or [] for part in ("--set", each)]
        return asked(zygote, {"argv": argv, "ranks": ranks, "log": str(tmp_path / out.name), **how})

    return start


def asked(zygote: subprocess.Popen[str], request: dict[str, Any]) -> list[int]:
    assert zygote.stdin is not None
    assert zygote.stdout is not None
    zygote.stdin.write(json.dumps(request) + "\n")
    zygote.stdin.flush()
    answer: list[int] = json.loads(zygote.stdout.readline())
    return answer


def said(tmp_path: Path, out: Path, rank: int = 0) -> str:
    """All that a run has printed."""
    return (tmp_path / f"{out.name}.{rank}").read_text(encoding="utf-8")


def weights(out: Path) -> dict[str, Tensor]:
    """The newest checkpoint's tensors, published and resumable; single files only."""
    newest = sorted((out / "checkpoints").glob("step-*"))[-1]
    found = load_file(newest / "model.safetensors")
    state = newest / "resume" / "state.safetensors"
    return found | (load_file(state) if state.exists() else {})


def curve(out: Path) -> list[dict[str, float]]:
    """metrics.jsonl without what depends on the clock."""
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    clocks = ("seconds", "tokens_per_second", "eta", "memory")
    return [{k: v for k, v in line.items() if k not in clocks} for line in lines if "sample" not in line]
