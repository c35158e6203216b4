"""The propositions on relatives: SCDD at ρ ≡ 1 is MDLM (pro:mdlm-ours), GIDD's own parameterisation (pro:gidd-ours)."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from scdd.core import Kernel, Vocab
from scdd.processes.base import Process
from scdd.processes.dense import kernel_matrix, marginal_matrix, rate_matrix
from scdd.processes.gidd import GIDD
from scdd.processes.mdlm import MDLM
from scdd.processes.scdd import SCDD
from scdd.schedules.base import Schedule
from scdd.schedules.masked import Masked
from scdd.schedules.peaked import Peaked

from .. import laws, paper
from ..laws import INSIDE, PAIRS, everywhere, tensor


def close(ours: tuple[Tensor, ...], theirs: tuple[Tensor, ...], atol: float = 1e-15) -> None:
    for a, b in zip(ours, theirs, strict=True):
        assert torch.allclose(a, b, rtol=1e-13, atol=atol)


@pytest.mark.parametrize("mask", laws.MASKS.values())
@pytest.mark.parametrize("name", laws.MASK_ONLY)
@pytest.mark.parametrize("kind", ["SCDD", "GIDD"])
def test_mask_only_schedules_give_mdlm(kind: str, name: str, mask: int) -> None:
    """pro:mdlm-ours: marginal, kernel, rates, transition and both losses' rows; GIDD at ρ ≡ 1 is MDLM too."""
    ours, mdlm = laws.build(kind, name, mask), laws.build("MDLM", name, mask)
    x, z = everywhere(ours)
    states = torch.arange(ours.vocab.size)
    p = torch.linspace(0.05, 1, len(states), dtype=torch.float64)
    for s, t in PAIRS:
        assert torch.equal(ours.marginal(x, t), mdlm.marginal(x, t))
        torch.testing.assert_close(kernel_matrix(ours, s, t), kernel_matrix(mdlm, s, t), rtol=0, atol=1e-15)
        visible = states[states != mask] if t == 1.0 else states[:0]  # impossible there: any answer will do
        some = ~torch.isin(states, visible)
        moves, others = ours.transition(states, p, s, t), mdlm.transition(states, p, s, t)
        if kind == "GIDD":  # which keeps a mask by `keep` and by `mask` both
            moves = moves._replace(keep=torch.where(states == mask, 0.0, moves.keep), mask=others.mask)
        close(tuple(m.expand_as(p)[some] for m in moves), tuple(o.expand_as(p)[some] for o in others))
        close(ours.elbo_coefficients(x, z, t, s), mdlm.elbo_coefficients(x, z, t, s))
    for t in INSIDE:
        torch.testing.assert_close(rate_matrix(ours, t), rate_matrix(mdlm, t), rtol=1e-13, atol=1e-13)
        close(ours.elbo_coefficients(x, z, t), mdlm.elbo_coefficients(x, z, t), 1e-13)


@pytest.mark.parametrize("shape", ["linear", "log-linear", "cosine"])
def test_mdlm_as_it_is_printed(shape: str) -> None:
    """`eq:marginal_mdm` and MDLM's backward process, with α = γ, for every shape."""
    process = MDLM(Vocab(5, 2), Masked(shape))
    for seed, (s, t) in enumerate(PAIRS):
        (a_s, _), (a_t, _) = laws.at(process, s), laws.at(process, t)
        x_theta = laws.soft(process, seed)[1]
        for x in laws.ordinary(process):
            expected = a_t * paper.unit(x, 5) + (1 - a_t) * paper.unit(2, 5)
            np.testing.assert_allclose(marginal_matrix(process, t)[x].numpy(), expected, rtol=0, atol=1e-15)
        for z in range(5):
            if z != 2 and a_t == 0:
                continue
            masked = ((1 - a_s) * paper.unit(2, 5) + (a_s - a_t) * x_theta) / (1 - a_t)
            got = process.posterior(torch.tensor(z), tensor(x_theta), s, t).numpy()
            np.testing.assert_allclose(got, masked if z == 2 else paper.unit(z, 5), rtol=0, atol=1e-13)


PARAMETERS = [(0.2, 1.0, 0.5), (0.1, 1.5, 0.6), (0.5, 1.0, 0.25), (0.01, 0.5, 0.8)]


@pytest.mark.parametrize("mask", laws.MASKS.values())
@pytest.mark.parametrize("parameters", PARAMETERS)
def test_gidd_in_its_own_parameters(parameters: tuple[float, float, float], mask: int) -> None:
    """pro:gidd-ours: kernel, marginal and rate of `eq:gidd_forward2` are those of `eq:gidd-forward` and `eq:gidd-rate`."""
    process, own = GIDD(Vocab(5, mask), Peaked(*parameters)), paper.Gidd(*parameters, 5, mask)
    for s, t in PAIRS:
        np.testing.assert_allclose(kernel_matrix(process, s, t).numpy(), own.kernel(s, t), rtol=0, atol=1e-13)
        for x in laws.ordinary(process):
            got = marginal_matrix(process, t)[x].numpy()
            np.testing.assert_allclose(got, own.marginal(paper.unit(x, 5), t), rtol=0, atol=1e-14)
    for t in INSIDE:
        np.testing.assert_allclose(rate_matrix(process, t).numpy(), own.rate(t), rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize("parameters", PARAMETERS)
def test_translation_of_parameters(parameters: tuple[float, float, float]) -> None:
    """`eq:giddreparam`: α = ρ·γ, β·π = γ(1 − ρ)u + (1 − γ)m."""
    process, own = GIDD(Vocab(5, 1), Peaked(*parameters)), paper.Gidd(*parameters, 5, 1)
    for t in [0.0, *INSIDE, 1.0]:
        gamma, rho = laws.at(process, t)
        assert float(rho * gamma) == pytest.approx(own.alpha(t), abs=1e-15)
        mixed = gamma * (1 - rho) * own.u + (1 - gamma) * own.m
        np.testing.assert_allclose(own.mixed(t).astype(float), mixed.astype(float), rtol=0, atol=1e-15)


@pytest.mark.parametrize("kind", [SCDD, GIDD])
def test_without_masks_both_are_uniform_diffusion(kind: type[Process]) -> None:
    """γ ≡ 1 is D3PM-uniform: one kernel, ρ_{t|s}·I + (1 − ρ_{t|s})·u, on the ordinary tokens."""
    process = kind(Vocab(5, 0), laws.SCHEDULES["uniform"])
    for s, t in PAIRS:
        ratio = paper.ratios(laws.at(process, s), laws.at(process, t))[1]
        block = kernel_matrix(process, s, t)[1:, 1:].numpy()
        np.testing.assert_allclose(block, ratio * np.eye(4) + (1 - ratio) / 4, rtol=0, atol=1e-14)


def test_a_process_is_its_kernel_and_its_rates() -> None:
    """A newcomer writes these two methods and nothing else; MDLM retyped that way behaves as MDLM."""

    class Absorbing(Process):
        def kernel(self, z_t: Tensor, s: object, t: object) -> Kernel:
            before, after = self.levels(s).like(z_t), self.levels(t).like(z_t)  # type: ignore[arg-type]
            ratio, mask = after.gamma / before.gamma, z_t == self.vocab.mask_id
            return Kernel(torch.where(mask, 0.0, ratio), torch.where(mask, 1 - ratio, 0.0), mask.double())

        def rates(self, z_t: Tensor, t: object) -> Kernel:
            at = self.levels(t).like(z_t)  # type: ignore[arg-type]
            hide, mask = -at.dgamma / at.gamma, z_t == self.vocab.mask_id
            return Kernel(torch.where(mask, 0.0, -hide), torch.where(mask, hide, 0.0), torch.zeros_like(z_t).double())

    schedule: Schedule = Masked("cosine")
    ours, mdlm = Absorbing(Vocab(5, 2), schedule), MDLM(Vocab(5, 2), schedule)
    x, z = everywhere(ours)
    close(ours.elbo_coefficients(x, z, 0.6, 0.5), mdlm.elbo_coefficients(x, z, 0.6, 0.5), 1e-14)
    close(ours.elbo_coefficients(x, z, 0.6), mdlm.elbo_coefficients(x, z, 0.6), 1e-14)
    p = torch.full(z.shape, 0.3, dtype=torch.float64)
    close(ours.transition(z, p, 0.2, 0.6), mdlm.transition(z, p, 0.2, 0.6), 1e-14)
