"""Float64 to the last digits at the size of GPT-2's vocabulary, against fifty digits of mpmath."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from mpmath import mp, mpf

from scdd.core import Vocab
from scdd.processes.base import Process
from scdd.processes.gidd import GIDD
from scdd.processes.scdd import SCDD
from scdd.schedules.peaked import Peaked

K = 50_257
P_U = [1e-6, 1e-3, 0.1, 0.5]
TIMES = [(0.0, 0.001), (0.001, 0.002), (0.25, 0.251), (0.499, 0.5), (0.9, 0.95), (0.998, 0.999), (0.999, 1.0)]


@pytest.fixture(autouse=True)
def fifty_digits() -> Iterator[None]:
    with mp.workdps(50):
        yield


def levels(p_u: float, t: float) -> tuple[mpf, mpf]:
    """(γ, ρ) of `eq:noise-gidd-ours` at exponent 1."""
    exact_t, p = mpf(t), mpf(p_u)
    c = 2 * p / (1 - p) * mp.sqrt(exact_t * (1 - exact_t))
    if t == 1.0:
        return mpf(0), mpf(0)
    return (1 + c - exact_t) / (1 + c), (1 - exact_t) / (1 + c - exact_t)


def same(got: torch.Tensor, exact: mpf, tolerance: float = 1e-12) -> None:
    assert abs(mpf(got.item()) - exact) <= tolerance * abs(exact), f"{got.item()!r} is not {mp.nstr(exact, 20)}"


@pytest.mark.parametrize("p_u", P_U)
def test_levels(p_u: float) -> None:
    process = SCDD(Vocab(K + 1, K), Peaked(p_u))
    for t in sorted({time for pair in TIMES for time in pair}):
        at, (gamma, rho) = process.levels(t), levels(p_u, t)
        same(at.gamma, gamma, 4e-15)
        same(at.rho, rho, 4e-15)
        same(at.one_minus_gamma, 1 - gamma, 4e-15)
        same(at.one_minus_rho, 1 - rho, 4e-15)


@pytest.mark.parametrize("p_u", P_U)
@pytest.mark.parametrize("kind", [SCDD, GIDD])
def test_kernel_and_transition(kind: type[Process], p_u: float) -> None:
    """Every coefficient to 1e-12 of itself, also the noise of 1e-14 that one step of a thousand adds."""
    process = kind(Vocab(K + 1, K), Peaked(p_u))
    for s, t in TIMES:
        (g_s, r_s), (g_t, r_t) = levels(p_u, s), levels(p_u, t)
        g, r = g_t / g_s, r_t / r_s
        for p_z in (1e-9, 1e-3, 0.999):
            p = mpf(p_z)
            for z in (17, K):
                if kind is GIDD:
                    mixed = (1 - g_t) - g * r * (1 - g_s) if z == K else g_t * (1 - r) / K
                    keep, other, from_mask = g * r, mixed, mixed
                elif z == K:
                    keep, other, from_mask = mpf(0), 1 - g, mpf(1)
                else:
                    keep, other, from_mask = g * r, g * (1 - r) / K, mpf(0)
                row = process.kernel(torch.tensor(z), s, t)
                for got, exact in zip(row, (keep, other, from_mask), strict=True):
                    same(got, exact)
                at_s = 1 - g_s if z == K else g_s * (r_s * p + (1 - r_s) / K)
                at_t = 1 - g_t if z == K else g_t * (r_t * p + (1 - r_t) / K)
                if at_t == 0:
                    continue
                move = process.transition(torch.tensor(z), torch.tensor(p_z, dtype=torch.float64), s, t)
                same(move.keep, keep * at_s / at_t)
                same(move.model, other * g_s * r_s / at_t)
                same(move.uniform, other * g_s * (1 - r_s) / at_t)
                same(move.mask, from_mask * (1 - g_s) / at_t)


@pytest.mark.parametrize("p_u", P_U)
@pytest.mark.parametrize("kind", [SCDD, GIDD])
def test_rows_of_the_loss(kind: type[Process], p_u: float) -> None:
    """The true posterior's three values, which are the discrete rows' weights, and the log of signal over floor."""
    process = kind(Vocab(K + 1, K), Peaked(p_u))
    for s, t in TIMES[1:-1]:
        (g_s, r_s), (g_t, r_t) = levels(p_u, s), levels(p_u, t)
        g, r = g_t / g_s, r_t / r_s
        x = torch.tensor(5)
        alpha, beta = g_s * r_s, g_s * (1 - r_s) / K
        for z in (5, 17, K):
            rows = process.elbo_coefficients(x, torch.tensor(z), t, s)
            below = 1 - g_t if z == K else g_t * (r_t * (z == 5) + (1 - r_t) / K)
            if z == K:
                keep, other = mpf(0), (1 - g_t) - g * r * (1 - g_s) if kind is GIDD else 1 - g
            else:
                keep, other = g * r, (g_t if kind is GIDD else g) * (1 - r) / K
            same(rows.w_x, (other + keep * (z == 5)) * (alpha + beta) / below)
            same(rows.w_o, other * beta / below)
            same(rows.w_z, keep * beta / below if z == 17 else mpf(0))
            same(rows.log_r, mp.log(r_s * K / (1 - r_s)), 1e-14)
            same(rows.log_r_t, mp.log(r_t * K / (1 - r_t)), 1e-14)
