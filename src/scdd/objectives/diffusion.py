"""The ELBO of any process as a training loss: t → z_t → hidden states → rows → one fused op."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from scdd.core import ElboCoefficients, Levels, UserError
from scdd.core.denoiser import Denoiser
from scdd.core.options import component
from scdd.core.rng import uniforms
from scdd.core.types import Learnt
from scdd.objectives.base import BatchSlice, Loss, Objective, Reduce, counted, positions_of, shown
from scdd.objectives.options import DENSITIES, ElboOptions
from scdd.objectives.thinning import Thinned, room_for, thinned
from scdd.objectives.times import Density, Times, TimeSampler, nelbo_densities
from scdd.ops.elbo import elbo
from scdd.processes.base import Process

if TYPE_CHECKING:
    from scdd.objectives.teacher import Distillation


class DiffusionObjective(Objective):
    """`eq:NELBO` (a grid of T steps) or `eq:contLoss` (continuous time), or the same divergences under GIDD+'s weights.

    The reported NELBO is always the bound itself, over all steps i = 1 … T or all of (0, 1), with low-variance times of
    its own. Nothing is left out: schedules start at γ_0 = ρ_0 = 1, so the step to s = 0 is the reconstruction term.
    """

    process: Process

    def __init__(
        self,
        process: Process,
        options: ElboOptions,
        density: Density | None = None,
        impl: str = "auto",
        compile: bool = False,
        teacher: Distillation | None = None,
    ) -> None:
        """`density` is a law of times of your own, in place of the options'; `teacher` the model that they name."""
        self.process, self.options, self.impl, self.teacher = process, options, impl, teacher
        kind, values = component(options.times, DENSITIES)
        self.times = TimeSampler(density or kind(**values), options.steps)
        self.reported = TimeSampler(nelbo_densities(process).alone, options.steps)
        # On a GPU the hundreds of small float64 kernels of noise and rows become a handful.
        self._compiled = torch.compile(self._noised, dynamic=False) if compile else None
        self._thin = torch.compile(thinned, dynamic=False) if compile else thinned
        self._rooms: dict[tuple[int, int, int], int] = {}
        if options.weighting == "gidd+code" and process.schedule.bump() is None:
            raise UserError(
                f"weighting gidd+code needs B of GIDD's schedule, and {process.schedule!r} has none: use schedule peaked, or gidd+."
            )
        if options.repair_share and not process.has_uniform_noise:
            raise UserError(
                f"repair_share is {options.repair_share}, and {process!r} has no noise: use a process with p_u > 0, or repair_share 0."
            )
        start = process.levels(0.0)
        if float(start.one_minus_gamma) > 0 or float(start.one_minus_rho) > 0:
            raise UserError(
                f"{process.schedule!r} does not start at γ_0 = ρ_0 = 1, and this objective has no reconstruction term for "
                "the rest: let both levels be 1 at t = 0."
            )

    def loss(
        self,
        network: Denoiser,
        tokens: Tensor,
        documents: Tensor | None,
        part: BatchSlice,
        learnt: Learnt | None = None,
    ) -> Loss:
        """The training loss at times drawn for this part."""
        times = self._with_repairs(self.times.draw(part, tokens.device), part)
        loss = self._at(network, tokens, documents, part, learnt, times, learning=True)
        self.times.density.observe(times, loss.nats / (times.weight * loss.tokens).clamp(min=1e-300))
        return loss

    def evaluate(
        self,
        network: Denoiser,
        tokens: Tensor,
        documents: Tensor | None,
        part: BatchSlice,
        learnt: Learnt | None = None,
    ) -> Loss:
        """An unbiased draw of the NELBO; where tokens are given, of the others' given those."""
        times = self.reported.draw(part, tokens.device)
        return self._at(network, tokens, documents, part, learnt, times, learning=False)

    def _at(
        self,
        network: Denoiser,
        tokens: Tensor,
        documents: Tensor | None,
        part: BatchSlice,
        learnt: Learnt | None,
        times: Times,
        learning: bool,
    ) -> Loss:
        weighting = self.options.weighting if learning else "elbo"
        prepare = self._compiled if self._compiled is not None and tokens.is_cuda else self._noised
        source = part.keyed("corrupt", tokens.device)
        numbers = uniforms(tokens.shape, source), self.process.noise_numbers(tokens.shape, source)
        positions = positions_of(part, tokens.shape[1], learnt)
        real = counted(tokens, documents, learnt)
        z_t, rows = prepare(tokens, real, times, numbers, positions, weighting)
        # Given tokens have rows of their noised state too, of weight 0 as padding has: no coefficient is out of its range.
        seen = shown(z_t, tokens, learnt)
        hidden = network.hidden(seen, times.t, documents)
        teacher = None
        if learning and self.teacher is not None:
            weight = real * (z_t != tokens) * times.weight[:, None] / positions
            teacher = self.teacher.of(seen, times.t, documents, weight)
        noise = self.process.noise_scores(tokens.device)
        read, x, z = hidden.flatten(0, 1), tokens.flatten(), z_t.flatten()
        few = None
        if learning and self.options.clean_share < 1.0:
            few = self._few(z_t != tokens, real, part)
            read, x, z, rows = read.index_select(0, few.at), x[few.at], z[few.at], few.of(rows)
            teacher = None if teacher is None else teacher.at(few.at, few.counts)
        total, losses = elbo(read, network.head, x, z, rows, impl=self.impl, noise=noise, teacher=teacher)
        if few is not None:
            losses = losses.new_zeros(tokens.numel()).index_copy(0, few.at, losses)
        return Loss(total, losses.view(tokens.shape).double().sum(1) * positions, real.sum(1))

    def _few(self, changed: Tensor, real: Tensor, part: BatchSlice) -> Thinned:
        """The positions whose loss is computed, if that is not done for all."""
        numbers = uniforms((*changed.shape, 2), part.keyed("clean", changed.device))
        work = self._thin if changed.is_cuda else thinned
        return work(changed, real, numbers, self.options.clean_share, self._room(part, changed.shape[1]))

    def _room(self, part: BatchSlice, length: int) -> int:
        """How many of a slice's positions are enough for those whose loss is computed, by trial."""
        key = part.count, part.total, length
        if key not in self._rooms:
            tokens = self.process.vocab.token(torch.zeros(part.count, min(length, 256), dtype=torch.int64))
            shares = []
            for step in range(32):
                trial = BatchSlice(part.seed, step, 0, part.count, part.total)
                times, source = self._with_repairs(self.times.draw(trial), trial), trial.keyed("corrupt", "cpu")
                numbers = uniforms(tokens.shape, source), self.process.noise_numbers(tokens.shape, source)
                shares.append((self.process.corrupt_by(tokens, self._noise(times), *numbers) != tokens).double().mean())
            self._rooms[key] = room_for(torch.stack(shares), self.options.clean_share, part.count * length)
        return self._rooms[key]

    def _with_repairs(self, times: Times, part: BatchSlice) -> Times:
        """The times, of which some become those of rows that have noise alone."""
        share, most = self.options.repair_share, self.options.repair_noise
        if not share:
            return times
        which, rate = uniforms((part.count, 2), part.keyed("repair", times.t.device)).unbind(-1)
        chosen, rate = which < share, most * (1.0 - rate.to(times.t.dtype))  # never 0
        return times._replace(
            # a network that is told the time is told what a repair tells it: how much to take for wrong
            t=torch.where(chosen, rate, times.t),
            weight=torch.where(chosen, self.options.repair_weight, times.weight),
            noise_alone=torch.where(chosen, rate, torch.nan),
        )

    def _noise(self, times: Times) -> Tensor | Levels:
        """The times; or where some rows have noise alone, the schedule's levels, and in those rows γ = 1 and ρ = 1 − noise (its slope
        there counts for nothing but its sign)."""
        t, noise_alone = times.t, times.noise_alone
        if noise_alone is None:
            return t
        one, usual = torch.ones_like(t), self.process.inside(t)
        alone = Levels(one, 1.0 - noise_alone, 0.0 * one, noise_alone, 0.0 * one, -one)
        here = ~noise_alone.isnan()
        return Levels(*(torch.where(here, mine, theirs) for mine, theirs in zip(alone, usual, strict=True)))

    def _noised(
        self,
        tokens: Tensor,
        real: Tensor,
        times: Times,
        numbers: tuple[Tensor, Tensor],
        positions: int | Tensor,
        weighting: str,
    ) -> tuple[Tensor, ElboCoefficients]:
        """(z_t, rows scaled to the mean over `positions` and flattened); `real` is 1 at tokens that count, 0 elsewhere."""
        t = self._noise(times)
        z_t = self.process.corrupt_by(tokens, t, *numbers)
        if weighting == "elbo":
            rows = self.process.elbo_coefficients(tokens, z_t, t, times.s)
        else:
            rows = self.process.weighted_coefficients(tokens, z_t, t, weighting)
        return z_t, rows.scaled(times.weight[:, None] * real / positions).flatten(tokens.shape)

    def end_step(self, reduce: Reduce) -> None:
        """Adaptive times take in what this step has seen."""
        self.times.density.update(reduce)

    def state_dict(self) -> dict[str, Tensor]:
        """The times' density, where it is learnt."""
        return self.times.density.state_dict()

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """See `state_dict`."""
        self.times.density.load_state_dict(state)
