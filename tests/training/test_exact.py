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


@pytest.mark.gpu
@pytest.mark.parametrize("pieces", [1, 2])
@pytest.mark.parametrize("network", ["dit", "llama"])
def test_passes_that_are_replayed_learn_what_launched_ones_do(
    pieces: int, network: str, recipe_file: Path, tmp_path: Path
) -> None:
    """A pass that is alone in its step lends its gradients, which the next replay overwrites; several are added up elsewhere."""
    shape = "size: custom, depth: 2, width: 64, heads: 2"
    models = {
        "dit": f"{{kind: dit, {shape}, cond_width: 16}}",
        "llama": f"{{kind: llama, {shape}, kv_heads: 1, mlp_width: 128}}",
    }
    changes = [f"model={models[network]}", "data.length=64", "training.precision=bf16", "training.compile=true"]
    changes += [f"training.micro_batch_size={8 // pieces}", "training.muon=0.02"]

    def weights(graphs: bool) -> list[torch.Tensor]:
        torch._dynamo.reset()
        spec = load(recipe_file, [*changes, f"training.cuda_graphs={str(graphs).lower()}"])
        trainer = build.trainer(spec, tmp_path / str(graphs), World(device=torch.device("cuda")), build.corpus(spec))
        assert trainer.parallel.replayed == graphs
        batches = iter(trainer.loader)
        for _ in range(8):  # some until the passes are captured, some that are replayed
            trainer.advance(next(batches))
        return [p.detach().clone() for p in trainer.module.parameters()]

    with same_bits():
        for launched, replayed in zip(weights(False), weights(True), strict=True):
            torch.testing.assert_close(replayed, launched, rtol=1e-4, atol=1e-5)
