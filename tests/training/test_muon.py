"""Muon: orthogonal steps for the blocks' matrices, AdamW for the rest, the average for all."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from scdd.core import Vocab
from scdd.models.dit import DiT
from scdd.models.options import SIZES
from scdd.training.muon import dealt, orthogonal
from scdd.training.optim import MovingAverage, Optimiser
from scdd.training.options import OptimiserOptions

from .conftest import Launch, said


def test_all_singular_values_come_near_one_and_the_directions_stay() -> None:
    generator = torch.Generator().manual_seed(0)
    for shape in ((3, 24, 40), (2, 48, 16), (1, 16, 16)):
        x = torch.randn(shape, generator=generator, dtype=torch.float64)
        x[0] *= 1e-3  # scale does not matter
        found = orthogonal(x)
        u, _, v = torch.linalg.svd(x, full_matrices=False)
        inside = u.mT @ found @ v.mT
        values = inside.diagonal(dim1=-2, dim2=-1)
        assert values.min() > 0.3  # the iteration is short; directions far weaker than the rest need not arrive
        assert values.max() < 1.25
        assert values.median() > 0.65
        assert (inside - torch.diag_embed(values)).abs().max() < 1e-6


def test_one_step_moves_matrices_by_the_orthogonal_of_their_gradient_and_the_rest_by_adamw() -> None:
    network = DiT(SIZES["nano"], Vocab(40, 39), torch.Generator().manual_seed(0))
    beside = DiT(SIZES["nano"], Vocab(40, 39), torch.Generator().manual_seed(0))
    generator = torch.Generator().manual_seed(1)
    for p, q in zip(network.parameters(), beside.parameters(), strict=True):
        p.grad = torch.randn(p.shape, generator=generator) * 1e-3
        q.grad = p.grad.clone()
    plain = OptimiserOptions(steps=10, warmup_steps=0, learning_rate=1e-3, clip=None)
    before = {name: p.detach().clone() for name, p in network.named_parameters()}
    gradients = {name: p.grad.clone() for name, p in network.named_parameters() if p.grad is not None}
    muon = Optimiser(network.named_parameters(), replace(plain, muon=0.02), network.hidden_matrices())
    average = MovingAverage(network, 0.5)
    muon.update_and_average(0, average)
    Optimiser(beside.named_parameters(), plain, beside.hidden_matrices()).update_and_average(0)
    own = dict(beside.named_parameters())
    moved = set(muon.muon.matrices)
    assert len(moved) == 4 * 4
    for name, p in network.named_parameters():
        if name not in moved:
            assert torch.equal(p, own[name]), name
            continue
        gradient = gradients[name]
        # the first step's look-ahead is the gradient itself, scaled
        step = orthogonal(gradient[None])[0] * max(1, gradient.shape[0] / gradient.shape[1]) ** 0.5
        torch.testing.assert_close(p.detach(), before[name] * (1 - 0.02 * 0.02) - 0.02 * step, atol=1e-6, rtol=1e-5)
    for name, p in network.named_parameters():  # 1 − d = 1 − 2/11 at the first update, as 2/11 < 0.5
        expected = before[name] + (1 - 2 / 11) * (p.detach() - before[name])
        torch.testing.assert_close(average.shadow[name], expected, atol=1e-6, rtol=1e-5)


def test_every_matrix_of_a_shape_is_updated_on_its_own() -> None:
    """Batched with others or alone, a matrix takes the same step."""
    x = torch.randn(5, 8, 12, generator=torch.Generator().manual_seed(2))
    together = orthogonal(x)
    for alone, one in zip(together, x, strict=True):
        torch.testing.assert_close(orthogonal(one[None])[0], alone)


@pytest.mark.dist
@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks_divide_the_matrices_and_take_the_step_of_one_process(launch: Launch, tmp_path: Path, ranks: int) -> None:
    """Replicas bit for bit, shards to rounding, and no rank holds more than its shards and one matrix (`on_ranks`)."""
    out = tmp_path / "muon"
    assert launch(out, ranks, call="muon_on_ranks") == [0] * ranks, said(tmp_path, out)


def test_matrices_are_dealt_evenly_whatever_their_number() -> None:
    shapes = {
        f"{i}.{name}": shape
        for i in range(5)
        for name, shape in (("qkv", (48, 16)), ("mlp", (64, 16)), ("out", (16, 16)))
    }
    for ranks in (1, 2, 4, 7, 32):
        owners = dealt(shapes, ranks)
        assert owners.keys() == shapes.keys()
        assert len(set(owners.values())) == len(shapes), "one matrix a rank in each round"
        loads = [
            sum(shapes[n][0] * shapes[n][1] * 16 for n, (_, who) in owners.items() if who == rank)
            for rank in range(ranks)
        ]
        assert max(loads) - min(loads) <= 64 * 16 * 16, "by no more than the dearest matrix"
