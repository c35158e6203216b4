"""Forward: normalisation, Chapman–Kolmogorov, the marginal that a kernel induces, rates as limits of kernels."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given

from scdd.core import CLEAN, UserError, Vocab
from scdd.processes.autoregressive import Autoregressive
from scdd.processes.base import Process
from scdd.processes.dense import kernel_matrix, marginal_matrix, rate_matrix
from scdd.processes.gidd import GIDD
from scdd.processes.mdlm import MDLM
from scdd.processes.scdd import SCDD
from scdd.schedules.masked import Masked
from scdd.schedules.peaked import Peaked

from .. import laws, paper
from ..laws import INSIDE, PAIRS, at, kind_of, moderate, ordinary, over_processes, slope


def check_kernel(process: Process, s: float, t: float) -> None:
    V, m = process.vocab.size, process.vocab.mask_id
    matrix = kernel_matrix(process, s, t).numpy()
    assert (matrix >= 0).all()
    np.testing.assert_allclose(matrix.sum(1), 1.0, rtol=0, atol=1e-13)
    expected = paper.forward(kind_of(process), V, m, at(process, s), at(process, t))
    np.testing.assert_allclose(matrix, expected, rtol=1e-9, atol=1e-13)


def check_chapman_kolmogorov(process: Process, r: float, s: float, t: float) -> None:
    whole = kernel_matrix(process, r, t)
    torch.testing.assert_close(kernel_matrix(process, r, s) @ kernel_matrix(process, s, t), whole, rtol=0, atol=1e-13)


def check_marginal(process: Process, s: float, t: float) -> None:
    """From the marginal at s, and from the clean data (t_{−1}), the kernel leads to the marginal at t."""
    tokens = ordinary(process)
    expected = np.stack(
        [paper.marginal(paper.unit(x, process.vocab.size), at(process, t), process.vocab.mask_id) for x in tokens]
    )
    np.testing.assert_allclose(marginal_matrix(process, t)[tokens].numpy(), expected, rtol=1e-9, atol=1e-15)
    led = marginal_matrix(process, s)[tokens] @ kernel_matrix(process, s, t)
    np.testing.assert_allclose(led.numpy(), expected, rtol=0, atol=1e-13)
    np.testing.assert_allclose(kernel_matrix(process, CLEAN, t)[tokens].numpy(), expected, rtol=0, atol=1e-13)


@over_processes
def test_kernel_is_the_papers(process: Process) -> None:
    """Rows normalise, none is negative, and each entry is `eq:forward` / `eq:gidd_forward2` / `eq:mdlm-forward`."""
    for s, t in PAIRS:
        check_kernel(process, s, t)


@over_processes
def test_chapman_kolmogorov(process: Process) -> None:
    for s, t in PAIRS:
        for r in (0.0, 0.5 * s):
            check_chapman_kolmogorov(process, r, s, t)


@over_processes
def test_kernel_induces_the_marginal(process: Process) -> None:
    for s, t in PAIRS:
        check_marginal(process, s, t)


@moderate
@given(process=laws.processes(), span=laws.spans())
def test_forward_laws_on_random_processes(process: Process, span: tuple[float, float]) -> None:
    s, t = span
    check_kernel(process, s, t)
    check_chapman_kolmogorov(process, 0.7 * s, s, t)
    check_marginal(process, s, t)


@pytest.mark.parametrize("kind", [SCDD, GIDD])
def test_signal_that_is_gone_stays_gone(kind: type[Process]) -> None:
    """ρ_s = 0 makes ρ_{t|s} 0/0; the paper's convention is 0, and the laws go on to hold."""
    process = kind(Vocab(5, 1), laws.Early())
    for s, t in [(0.3, 0.85), (0.8, 0.9), (0.85, 0.95), (0.85, 1.0)]:
        check_kernel(process, s, t)
        check_chapman_kolmogorov(process, 0.2, s, t)
        check_marginal(process, s, t)
    for z in range(5):
        x_theta = torch.tensor([0.4, 0.0, 0.3, 0.2, 0.1], dtype=torch.float64)
        p = process.posterior(torch.tensor(z), x_theta, 0.85, 0.95)
        assert p.sum().item() == pytest.approx(1.0, abs=1e-14)
        if z != 1 and kind is SCDD:  # the paper: the posterior becomes 1/K
            np.testing.assert_allclose(p.numpy(), paper.uniform(5, 1), atol=1e-14)
    assert torch.isfinite(rate_matrix(process, 0.9)).all()


@over_processes
def test_rates_are_the_papers(process: Process) -> None:
    """`eq:forward_rate`, `eq:gidd-rate2`, `eq:mdlm_forward_rate_matrix`: generators, entry by entry (lem:forward-rate)."""
    V, m = process.vocab.size, process.vocab.mask_id
    for t in INSIDE:
        matrix = rate_matrix(process, t).numpy()
        expected = paper.rate(kind_of(process), V, m, at(process, t), slope(process, t))
        np.testing.assert_allclose(matrix, expected, rtol=1e-12, atol=1e-12)
        assert (matrix - np.diag(np.diag(matrix)) >= 0).all()
        np.testing.assert_allclose(matrix.sum(1), 0.0, atol=1e-11)


@over_processes
def test_rates_are_the_limit_of_kernels(process: Process) -> None:
    """(Q_{t|t−h} − I)/h → R_t; the remainder is of first order in h, so Richardson's step removes it."""
    eye = torch.eye(process.vocab.size, dtype=torch.float64)

    def quotient(t: float, h: float) -> torch.Tensor:
        return (kernel_matrix(process, t - h, t) - eye) / h

    for t in INSIDE:
        rates, h = rate_matrix(process, t), 1e-5
        scale = max(1.0, rates.abs().max().item())
        assert (quotient(t, h) - rates).abs().max() < 1e-2 * scale
        better = 2 * quotient(t, h / 2) - quotient(t, h)
        torch.testing.assert_close(better, rates, rtol=0, atol=1e-6 * scale)


@pytest.mark.parametrize("mask", laws.MASKS.values())
@pytest.mark.parametrize("name", laws.SCHEDULES)
def test_matrix_form_of_the_rate(name: str, mask: int) -> None:
    """`eq:Rt-matrix-form` (pro:Rt-matrix), whose columns are where one comes from, is SCDD's rate matrix transposed."""
    process = laws.build("SCDD", name, mask)
    V = process.vocab.size
    one, m, u, eye = np.ones(V), paper.unit(mask, V), paper.uniform(V, mask), np.eye(V)
    for t in INSIDE:
        (gamma, rho), (dgamma, drho) = at(process, t), slope(process, t)
        R = dgamma / gamma * (eye - np.outer(m, one))
        R += drho / rho * (eye - np.outer(u, one)) @ (eye - np.outer(m, m))
        np.testing.assert_allclose(rate_matrix(process, t).numpy(), R.T, rtol=1e-12, atol=1e-12)


@over_processes
def test_mask_absorbs_but_in_gidd(process: Process) -> None:
    """q(z_t = m | z_s = m) = 1 for SCDD and MDLM; GIDD turns masks back into tokens as soon as ρ falls."""
    m = process.vocab.mask_id
    stays = kernel_matrix(process, 0.3, 0.7)[m, m].item()
    rho = float(process.levels(0.7).rho / process.levels(0.3).rho)
    if kind_of(process) == "GIDD" and rho < 1 and float(process.levels(0.7).gamma) < 1:
        assert stays < 1
    elif kind_of(process) != "GIDD":
        assert stays == 1


@over_processes
def test_matrix_of_the_kernel(process: Process) -> None:
    """`eq:forwardMatrix`: SCDD's blocks, and their product along a grid is Q̄_t of `eq:forwardMarginal`."""
    tokens, grid = ordinary(process), [0.0, 0.1, 0.35, 0.6, 0.9]
    product = kernel_matrix(process, CLEAN, 0.0)
    for s, t in pairwise(grid):
        product = product @ kernel_matrix(process, s, t)
    torch.testing.assert_close(product[tokens], marginal_matrix(process, 0.9)[tokens], rtol=0, atol=1e-14)
    if kind_of(process) == "SCDD":
        gamma, rho = paper.ratios(at(process, 0.35), at(process, 0.6))
        block = kernel_matrix(process, 0.35, 0.6)[tokens][:, tokens].numpy()
        K = len(tokens)
        np.testing.assert_allclose(block, gamma * (rho * np.eye(K) + (1 - rho) / K), rtol=1e-12, atol=1e-14)


def test_mdlm_refuses_uniform_noise() -> None:
    with pytest.raises(UserError, match=r"MDLM needs ρ ≡ 1 but Peaked.*use a masked schedule"):
        MDLM(Vocab(5, 4), Peaked(0.2))


def test_uniform_noise_is_known_whenever_it_comes() -> None:
    vocab = Vocab(5, 4)
    assert MDLM(vocab, Masked()).has_uniform_noise is SCDD(vocab, Peaked(0.0)).has_uniform_noise is False
    assert SCDD(vocab, Peaked(1e-6)).has_uniform_noise is GIDD(vocab, Peaked(0.2)).has_uniform_noise is True


def test_autoregression_says_so() -> None:
    assert repr(Autoregressive(Vocab(5, 4))).startswith("Autoregressive(")


def test_a_process_checks_its_schedule() -> None:
    class Rising(Masked):
        def at(self, t: torch.Tensor):  # type: ignore[no-untyped-def]
            return super().at(1 - t)

    with pytest.raises(UserError, match="rises"):
        SCDD(Vocab(5, 4), Rising())
