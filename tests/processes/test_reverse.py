"""Reverse: the posterior is Bayes' rule, the four-way transition is the posterior, backward rates are its limit."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from scdd.processes.base import Process
from scdd.processes.dense import bayes

from .. import laws, paper
from ..laws import INSIDE, PAIRS, at, kind_of, moderate, ordinary, over_processes, slope, tensor


def possible(process: Process, t: float, x: paper.Array) -> list[int]:
    """The z_t that x can have become; of any other, Bayes' rule says nothing."""
    return [z for z, p in enumerate(paper.marginal(x, at(process, t), process.vocab.mask_id)) if p > 0]


def posterior(process: Process, x: paper.Array, s: float, t: float) -> paper.Array:
    """A row for each z_t."""
    V = process.vocab.size
    out: paper.Array = process.posterior(torch.arange(V), tensor(x).expand(V, V), s, t).numpy()
    return out


def check_posterior(process: Process, x: paper.Array, s: float, t: float) -> None:
    m, from_matrices = process.vocab.mask_id, bayes(process, tensor(x), s, t).numpy()
    rows = posterior(process, x, s, t)
    for z in possible(process, t, x):
        got = rows[z]
        assert got.min() >= 0
        assert got.sum() == pytest.approx(1.0, abs=1e-12)
        np.testing.assert_allclose(got, from_matrices[z], rtol=0, atol=1e-12)
        expected = paper.bayes(kind_of(process), x, z, at(process, s), at(process, t), m)  # and not by our matrices
        np.testing.assert_allclose(got, expected, rtol=0, atol=paper.TIGHT)
        if kind_of(process) != "GIDD":
            printed = paper.backward(x, z, at(process, s), at(process, t), m)
            np.testing.assert_allclose(got, printed, rtol=0, atol=paper.TIGHT)


@over_processes
def test_posterior_is_bayes_at_the_truth(process: Process) -> None:
    """`eq:backward` (and `eq:gidd-backward`): x one-hot."""
    for s, t in PAIRS:
        for x in ordinary(process):
            check_posterior(process, paper.unit(x, process.vocab.size), s, t)


@over_processes
def test_posterior_is_bayes_for_a_soft_prediction(process: Process) -> None:
    """`eq:backwardParam` normalises for any x_θ (lem:p_theta_is_probability), and is Bayes' rule."""
    for seed, (s, t) in enumerate(PAIRS):
        check_posterior(process, laws.soft(process, seed)[1], s, t)


@moderate
@given(process=laws.processes(), span=laws.spans(), seed=st.integers(0, 999), spread=st.floats(0.0, 12.0))
def test_posterior_on_random_processes(process: Process, span: tuple[float, float], seed: int, spread: float) -> None:
    check_posterior(process, laws.soft(process, seed, spread)[1], *span)


@over_processes
def test_transition_is_the_posterior(process: Process) -> None:
    """keep / model / uniform / mask, from x_θ(z_t) alone, mixes to Bayes' rule on matrices, to 1e-12; none is negative."""
    V, m = process.vocab.size, process.vocab.mask_id
    for seed, (s, t) in enumerate(PAIRS):
        x = laws.soft(process, seed)[1]
        dense = bayes(process, tensor(x), s, t).numpy()
        moves = process.transition(torch.arange(V), tensor(x), s, t)
        for z in possible(process, t, x):
            move = [part.expand(V)[z].item() for part in moves]
            assert min(move) >= 0
            assert sum(move) == pytest.approx(1.0, abs=1e-12)
            parts = (paper.unit(z, V), x, paper.uniform(V, m), paper.unit(m, V))
            mixed = np.sum([weight * part for weight, part in zip(move, parts, strict=True)], axis=0)
            np.testing.assert_allclose(mixed, dense[z], rtol=0, atol=1e-12)


@over_processes
def test_no_remasking_but_in_gidd(process: Process) -> None:
    """A visible token never turns into the mask under an absorbing mask; under GIDD it does."""
    z = torch.tensor(ordinary(process))
    mask = process.transition(z, torch.full(z.shape, 0.3, dtype=torch.float64), 0.3, 0.7).mask
    noisy = float(process.levels(0.7).rho) < float(process.levels(0.3).rho)
    if kind_of(process) == "GIDD" and noisy and float(process.levels(0.3).gamma) < 1:
        assert (mask > 0).all()
    else:
        assert (mask == 0).all()


@pytest.mark.parametrize("name", laws.MASK_ONLY)
def test_carry_over_falls_out_at_rho_one(name: str) -> None:
    """MDLM's carry-over, unforced: a visible token stays whatever x_θ says of it, even that it is impossible."""
    process = laws.build("MDLM", name)
    z = torch.tensor(ordinary(process))
    for p in (0.0, 1e-300, 0.4, 1.0):
        move = process.transition(z, torch.full(z.shape, p, dtype=torch.float64), 0.3, 0.7)
        torch.testing.assert_close(move.keep, torch.ones_like(move.keep), rtol=0, atol=1e-15)
        assert (move.model == 0).all()
        assert (move.uniform == 0).all()


@over_processes
def test_states_held_impossible_still_move(process: Process) -> None:
    """p_z = 0, t = 0 and t = 1 give probabilities that sum to one, never NaN: a sampler may meet any of them."""
    z = torch.arange(process.vocab.size)
    for p in (0.0, 1.0):
        for s, t in [(0.0, 0.0), *PAIRS]:
            move = torch.stack(torch.broadcast_tensors(*process.transition(z, torch.full(z.shape, p).double(), s, t)))
            assert torch.isfinite(move).all()
            torch.testing.assert_close(move.sum(0), torch.ones_like(move[0]), rtol=0, atol=1e-12)


@over_processes
def test_backward_rates_are_the_papers(process: Process) -> None:
    """`eq:backward_rate` as printed for SCDD (and MDLM); for GIDD, Bayes on its forward rates."""
    V, m = process.vocab.size, process.vocab.mask_id
    for seed, t in enumerate(INSIDE):
        x = laws.soft(process, seed)[1]
        rows = process.backward_rates(torch.arange(V), tensor(x).expand(V, V), t).numpy()
        for z in possible(process, t, x):
            got = rows[z]
            if kind_of(process) == "GIDD":
                q = paper.marginal(x, at(process, t), m)
                expected = paper.rate("GIDD", V, m, at(process, t), slope(process, t))[:, z] * q / q[z]
                expected[z] -= expected.sum()
            else:
                expected = paper.backward_rate(x, z, at(process, t), slope(process, t), m)
            np.testing.assert_allclose(got, expected, rtol=1e-10, atol=1e-10)
            assert got.sum() == pytest.approx(0.0, abs=1e-9)


@over_processes
def test_backward_rates_are_the_limit_of_posteriors(process: Process) -> None:
    """p_θ(z_s | z_t) = 1[z_s = z_t] + Δt·Q̃_t + o(Δt)."""
    V, h = process.vocab.size, 1e-5
    for seed, t in enumerate(INSIDE):
        x = laws.soft(process, seed)[1]
        alive = possible(process, t, x)
        coarse = (posterior(process, x, t - h, t) - np.eye(V)) / h
        fine = (posterior(process, x, t - h / 2, t) - np.eye(V)) / (h / 2)
        rates = process.backward_rates(torch.arange(V), tensor(x).expand(V, V), t).numpy()
        scale = max(1.0, np.abs(rates[alive]).max())
        np.testing.assert_allclose((2 * fine - coarse)[alive], rates[alive], rtol=0, atol=2e-6 * scale)


def test_backward_rates_of_a_token_held_impossible() -> None:
    """MDLM, x_θ(z_t) = 0 at a visible z_t: nothing flows, and nothing is 0·∞."""
    process = laws.build("MDLM", "linear")
    x_theta = torch.eye(5, dtype=torch.float64)[1]
    assert (process.backward_rates(torch.tensor([0]), x_theta[None], 0.5) == 0).all()


@over_processes
def test_times_broadcast_over_positions(process: Process) -> None:
    """Times [B] for tokens [B, L] mean what one time after another means."""
    generator = torch.Generator().manual_seed(0)
    z = torch.randint(process.vocab.size, (3, 5), generator=generator)
    p = torch.rand(3, 5, generator=generator, dtype=torch.float64)
    s, t = torch.tensor([0.1, 0.2, 0.6]).double(), torch.tensor([0.3, 0.9, 0.7]).double()
    together = process.transition(z, p, s, t)
    for row in range(3):
        alone = process.transition(z[row], p[row], float(s[row]), float(t[row]))
        for one, many in zip(alone, together, strict=True):
            assert torch.equal(one.expand(5), many.expand(3, 5)[row])


@over_processes
def test_levels_may_be_given_for_times(process: Process) -> None:
    z = torch.arange(process.vocab.size)
    p: Tensor = torch.full(z.shape, 0.2, dtype=torch.float64)
    by_time = process.transition(z, p, 0.3, 0.6)
    by_levels = process.transition(z, p, process.levels(0.3), process.levels(0.6))
    assert all(torch.equal(a, b) for a, b in zip(by_time, by_levels, strict=True))
