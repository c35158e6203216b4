"""Sampling forward: draws follow the marginal, nothing is V-wide, the mask is never noise."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch.utils._python_dispatch import TorchDispatchMode

from scdd.core import Vocab
from scdd.core.rng import CounterRNG, Randomness
from scdd.processes.base import Process
from scdd.processes.gidd import GIDD
from scdd.processes.scdd import SCDD
from scdd.schedules.peaked import Peaked

from .. import laws, paper
from ..laws import at, over_processes


class Widest(TorchDispatchMode):
    """Remembers the largest tensor that any operation made."""

    numel = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if isinstance(out, torch.Tensor):
            self.numel = max(self.numel, out.numel())
        return out


def follows(draws: torch.Tensor, expected: paper.Array) -> bool:
    """Chi-square at one in a million; outcomes of probability 0 must not occur at all."""
    expected = expected.astype(np.float64)
    counts = np.bincount(draws.flatten().numpy(), minlength=len(expected))
    alive = expected > 0
    if counts[~alive].any():
        return False
    if alive.sum() == 1:
        return True
    return bool(stats.chisquare(counts[alive], expected[alive] / expected.sum() * counts.sum()).pvalue > 1e-6)


@over_processes
def test_corrupt_follows_the_marginal(process: Process) -> None:
    m, generator = process.vocab.mask_id, torch.Generator().manual_seed(3)
    x = laws.ordinary(process)[1]
    clean = torch.full((3, 20_000), x)
    times = [0.0, 0.4, 0.95]
    drawn = process.corrupt(clean, torch.tensor(times).double(), generator)
    assert (clean == x).all(), "the caller's tensor is left alone"
    for row, t in enumerate(times):
        assert follows(drawn[row], paper.marginal(paper.unit(x, process.vocab.size), at(process, t), m))


@pytest.mark.parametrize("mask", laws.MASKS.values())
def test_every_token_is_as_likely_noise(mask: int) -> None:
    """Keyed numbers and a generator's alike; by columns of one sample's stream."""
    process = laws.build("SCDD", "uniform", mask)
    sources: list[Randomness] = [torch.Generator().manual_seed(0), CounterRNG(5, range(200))]
    for source in sources:
        drawn = process.corrupt(torch.full((200, 200), laws.ordinary(process)[0]), 1.0, source)
        assert follows(drawn, paper.uniform(process.vocab.size, mask))


@over_processes
def test_prior_is_the_marginal_at_one(process: Process) -> None:
    """All mask where γ_1 = 0 (so the prior term is 0); uniform where nothing is masked."""
    drawn = process.prior((20, 500), torch.Generator().manual_seed(1))
    assert drawn.dtype == torch.int64
    for x in laws.ordinary(process)[:2]:  # whatever the data was
        assert follows(
            drawn, paper.marginal(paper.unit(x, process.vocab.size), at(process, 1.0), process.vocab.mask_id)
        )
    if at(process, 1.0)[0] == 0:
        assert (drawn == process.vocab.mask_id).all()


def test_clean_data_stays_clean_at_time_zero() -> None:
    process = laws.build("SCDD", "peaked")
    x = torch.tensor(laws.ordinary(process)).repeat(100)
    assert torch.equal(process.corrupt(x, 0.0, torch.Generator().manual_seed(0)), x)


@pytest.mark.parametrize("kind", [SCDD, GIDD])
def test_nothing_is_vocabulary_wide(kind: type[Process]) -> None:
    """With a vocabulary of a thousand million: a V-wide tensor would take gigabytes."""
    process = kind(Vocab(10**9, 7), Peaked(0.2))
    x, t = torch.tensor([[0, 1, 10**9 - 1]]).expand(2, 3), torch.tensor([0.4, 0.9]).double()
    with Widest() as seen:
        z = process.corrupt(x, t, torch.Generator().manual_seed(0))
        process.prior((2, 3))
        process.transition(z, torch.full(z.shape, 0.5), 0.1, t)
        process.elbo_coefficients(x, z, t, torch.tensor([0.3, 0.8]).double())
        process.elbo_coefficients(x, z, t)
        process.weighted_coefficients(x, z, t, "dynamic")
    assert 0 < seen.numel <= 64
    noise = process.corrupt(torch.zeros(1, 4000, dtype=torch.int64), 0.5, torch.Generator().manual_seed(0))
    assert noise.max() > 10**8, "noise reaches the far end of the vocabulary"


def test_rare_noise_is_neither_lost_nor_inflated() -> None:
    """p_u = 1e-6: float32 uniforms have 2^24 steps and would give whole steps of it away."""
    process = SCDD(Vocab(50_258, 50_257), Peaked(1e-6))
    u = torch.zeros(2_000_000, dtype=torch.int64)
    drawn = process.corrupt(u, 0.5, torch.Generator().manual_seed(2))
    noised = int(((drawn != 0) & (drawn != 50_257)).sum())
    assert 0 <= noised <= 12  # Poisson with mean 2
    masked = int((drawn == 50_257).sum())
    assert abs(masked - 1_000_000) < 5_000
