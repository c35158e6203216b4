"""Tiny checkpoints, made once for all tests of the room."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from scdd.evals.measure.model import EvalModel, open_model
from scdd.lm.model import LM
from scdd.models.dit import DiT, DiTConfig
from scdd.processes.scdd import SCDD
from scdd.schedules.peaked import Peaked
from tests import tiny

AR = ("process.kind=ar", "objective.kind=ar", "sampling.sampler.kind=ar")


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("checkpoints")
    process = tiny.RECIPE.split("process: ")[1].splitlines()[0]
    assert process == "{kind: scdd}"
    return {
        "scdd": tiny.checkpoint(folder / "scdd"),
        "gidd": tiny.checkpoint(folder / "gidd", "process.kind=gidd"),
        "mdlm": tiny.checkpoint(folder / "mdlm", *tiny.MASKED),
        "ar": tiny.checkpoint(folder / "ar", *AR, causal=True),
    }


@pytest.fixture(scope="session")
def scdd(checkpoints: dict[str, Path]) -> EvalModel:
    return open_model(checkpoints["scdd"], device="cpu")


@pytest.fixture(scope="session")
def ar(checkpoints: dict[str, Path]) -> EvalModel:
    return open_model(checkpoints["ar"], device="cpu")


@pytest.fixture(scope="session")
def timed() -> EvalModel:
    """A model whose network looks at the time."""
    generator, vocab = torch.Generator().manual_seed(0), tiny.tokenizer().vocab
    network = DiT(DiTConfig(2, 32, 2, time_conditioning=True), vocab, generator)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.normal_(0.0, 0.15, generator=generator)
        network.norm.weight.fill_(1.0)
    return open_model(LM(network, SCDD(vocab, Peaked(0.2)), tiny.tokenizer(), 40, name="timed"))


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text(tiny.TEXT * 8, encoding="utf-8")
    return path
