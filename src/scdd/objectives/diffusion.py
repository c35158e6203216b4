"""The ELBO of any process as a training loss: t → z_t → hidden states → rows → one fused op."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from scdd.core import ElboCoefficients, UserError
from scdd.core.rng import integers, uniforms
from scdd.objectives.base import Loss, Objective, counted
from scdd.objectives.batch_slice import BatchSlice
from scdd.objectives.times import Power, Reduce, Times, TimeSampler
from scdd.ops.elbo import elbo
from scdd.processes.base import Process

if TYPE_CHECKING:
    from scdd.models.denoiser import Denoiser

Weighting = Literal["elbo", "dynamic"]


class DiffusionObjective(Objective):
    """`eq:NELBO` (a grid of T steps) or `eq:contLoss` (continuous time), or the same divergences under GIDD+'s weights.

    The reported NELBO is always the bound itself, over all steps i = 1 … T or all of (0, 1), with low-variance times of
    its own. Nothing is left out: schedules start at γ_0 = ρ_0 = 1, so the step to s = 0 is the reconstruction term.
    """

    def __init__(
        self,
        process: Process,
        times: TimeSampler | None = None,
        weighting: Weighting = "elbo",
        impl: str = "auto",
        compile: bool = False,
    ) -> None:
        self.process, self.times = process, times or TimeSampler()
        self.weighting, self.impl = weighting, impl
        # On a GPU the hundreds of small float64 kernels of noise and rows become a handful.
        self._compiled = torch.compile(self._noised, dynamic=False) if compile else None
        if weighting == "dynamic" and self.times.steps is not None:
            raise UserError(
                f"objective.weighting dynamic weighs rates, and objective.steps is {self.times.steps}: "
                "set objective.steps to null, or objective.weighting to elbo."
            )
        start = process.levels(0.0)
        if float(start.one_minus_gamma) > 0 or float(start.one_minus_rho) > 0:
            raise UserError(
                f"{process.schedule!r} does not start at γ_0 = ρ_0 = 1, and this objective has no reconstruction term for "
                "the rest: let both levels be 1 at t = 0."
            )
        self.reported = TimeSampler(Power(_reporting_power(process)), self.times.steps)

    def loss(self, network: Denoiser, tokens: Tensor, documents: Tensor | None, part: BatchSlice) -> Loss:
        """The training loss at times drawn for this part."""
        times = self.times.draw(part, tokens.device)
        found = self._at(network, tokens, documents, part, times, self.weighting)
        self.times.observe(times, found.nats / (times.weight * found.tokens).clamp(min=1e-300))
        return found

    def evaluate(self, network: Denoiser, tokens: Tensor, documents: Tensor | None, part: BatchSlice) -> Loss:
        """An unbiased draw of the NELBO."""
        times = self.reported.draw(part, tokens.device)
        return self._at(network, tokens, documents, part, times, "elbo")

    def _at(
        self,
        network: Denoiser,
        tokens: Tensor,
        documents: Tensor | None,
        part: BatchSlice,
        times: Times,
        weighting: Weighting,
    ) -> Loss:
        prepare = self._compiled if self._compiled is not None and tokens.is_cuda else self._noised
        source = part.keyed("corrupt", tokens.device)
        numbers = uniforms(tokens.shape, source), integers(self.process.vocab.K, tokens.shape, source)
        positions = part.total * tokens.shape[1]
        z_t, rows, real = prepare(tokens, documents, times, numbers, positions, weighting)
        hidden = network.hidden(z_t, times.t, documents)
        total, losses = elbo(
            hidden.flatten(0, 1), network.head, tokens.flatten(), z_t.flatten(), rows, impl=self.impl
        )
        return Loss(total, losses.view(tokens.shape).double().sum(1) * positions, real)

    def _noised(
        self,
        tokens: Tensor,
        documents: Tensor | None,
        times: Times,
        numbers: tuple[Tensor, Tensor],
        positions: int,
        weighting: Weighting,
    ) -> tuple[Tensor, ElboCoefficients, Tensor]:
        """(z_t, rows scaled to the mean over `positions` and flattened, real tokens in each row)."""
        z_t = self.process.corrupt_by(tokens, times.t, *numbers)
        if weighting == "dynamic":
            rows = self.process.dynamic_coefficients(tokens, z_t, times.t)
        else:
            rows = self.process.elbo_coefficients(tokens, z_t, times.t, times.s)
        real = counted(tokens, documents)
        scaled = rows.scaled(times.weight[:, None] * real / positions).flatten(tokens.shape)
        return z_t, scaled, real.sum(1)

    def end_step(self, reduce: Reduce) -> None:
        """Adaptive times take in what this step has seen."""
        self.times.update(reduce)

    def state_dict(self) -> dict[str, Tensor]:
        """The times' density, where it is learnt."""
        return self.times.density.state_dict()

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """See `state_dict`."""
        self.times.density.load_state_dict(state)


def _reporting_power(process: Process) -> float:
    """t = u^power that keeps the variance of the reported bound finite (`times`): 1/a, and u² at least with noise."""
    noisy = bool(process.levels(0.5).one_minus_rho > 0)
    return max(2.0 if noisy else 1.0, 1.0 / process.schedule.onset())
