"""Bit for bit on a GPU, when asked for."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from scdd.assemble import training as build
from scdd.recipe.load import load
from scdd.training.exact import same_bits
from scdd.training.parallel import World


def test_the_wish_is_heard_and_forgotten() -> None:
    before = torch.are_deterministic_algorithms_enabled(), torch.backends.cuda.cudnn_sdp_enabled()
    with same_bits():
        assert torch.are_deterministic_algorithms_enabled()
        assert not torch.backends.cuda.cudnn_sdp_enabled()
    assert (torch.are_deterministic_algorithms_enabled(), torch.backends.cuda.cudnn_sdp_enabled()) == before
    with same_bits(False):
        assert not torch.are_deterministic_algorithms_enabled()


@pytest.mark.gpu
@pytest.mark.parametrize("compiled", [False, True])
def test_a_gpu_run_is_repeated_and_resumed_with_the_same_bits(
    compiled: bool, recipe_file: Path, tmp_path: Path
) -> None:
    changes = ["training.precision=bf16", f"training.compile={str(compiled).lower()}", "training.muon=0.02"]
    changes += ["model.width=128", "data.length=64", "training.steps=12", "training.save_every=6"]
    spec, here = load(recipe_file, changes), World(device=torch.device("cuda"))

    def weights(folder: str, stop: int) -> list[torch.Tensor]:
        torch._dynamo.reset()
        trainer = build.trainer(spec, tmp_path / folder, here, build.corpus(spec))
        trainer.resume()
        batches = iter(trainer.loader)
        while trainer.step < stop:
            trainer.advance(next(batches))
        trainer.save()
        return [p.detach().clone() for p in trainer.module.parameters()]

    with same_bits():
        whole, again = weights("a", 12), weights("b", 12)
        weights("c", 6)
        resumed = weights("c", 12)
    for other in (again, resumed):
        assert all(torch.equal(x, y) for x, y in zip(whole, other, strict=True))
