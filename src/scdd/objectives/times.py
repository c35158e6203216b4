"""When to look: times drawn so that E[weight · loss(t)] is the ELBO, exactly, whatever their density.

The ELBO is a sum over i = 1 … T of the loss between s = (i − 1)/T and t = i/T, or in continuous time the integral of
its rate. A `Density` says how likely times are, a `TimeSampler` draws them and pays for each with 1/probability. What
the density may change is the variance, and with it how fast a model learns. The least variance is reached by
p(t) ∝ √E[loss(t)²] (Cauchy–Schwarz), for the loss of whatever unit is drawn independently: a sequence.

**Why t = u² is close to that for SCDD.** As t → 0 with c_t ∝ t^a (a = exponent·t_peak of `eq:noise-gidd-ours`, the
paper's ½), a token is noised with probability ∝ t^a and its term then has weight −ρ′/(1 − ρ) ≈ a/t. One token's loss
has mean ∝ t^{a−1} and second moment ∝ t^{a−2}; with t uniform the variance ∫ t^{a−2} dt is infinite. The mean over L
tokens has second moment ∝ t^{2a−2} + t^{a−2}/L, and the first term rules as long as t^a > 1/L, that is wherever
a sequence is likely to hold a noised token at all. So p(t) ∝ t^{a−1}, which is t = u^{1/a}: u² for the paper's
schedule. The masked tokens' term (probability ∝ t, weight ∝ 1/t) has bounded moments and asks for no more.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import ClassVar, NamedTuple, final

import torch
from torch import Tensor

from scdd.core import UserError
from scdd.core.rng import uniforms
from scdd.objectives.base import BatchSlice, Reduce
from scdd.objectives.options import (
    AdaptiveTimesOptions,
    ImportanceTimesOptions,
    LowDiscrepancyTimesOptions,
    UniformTimesOptions,
)
from scdd.processes.base import Process


class Times(NamedTuple):
    """Times of B rows, float64 [B]: loss between s and t, or its rate at t where s is None, counts `weight` times."""

    t: Tensor
    s: Tensor | None
    weight: Tensor
    noise_alone: Tensor | None = None
    """The share of noise in rows that have no masks, NaN in the others; None: all rows are noised as their times say."""


class Density(ABC):
    """A law of t on [0, 1]. A fixed one says the three functions; `Adaptive` also learns."""

    spread_evenly: ClassVar[bool] = True
    """Whether a batch's draws share out [0, 1] among them (low discrepancy), or are independent."""

    @abstractmethod
    def quantile(self, u: Tensor) -> Tensor:
        """The t below which a share u of the draws lies."""

    @abstractmethod
    def cumulative(self, t: Tensor) -> Tensor:
        """The share of the draws below t."""

    @abstractmethod
    def importance_weight(self, t: Tensor) -> Tensor:
        """1/p(t), the exact weight of a draw at t."""

    def observe(self, times: Times, losses: Tensor) -> None:  # noqa: B027 (fixed densities learn nothing)
        """Take note of the unweighted loss [B] at each time."""

    def update(self, reduce: Reduce) -> None:  # noqa: B027
        """End of an optimiser step: fold in what all ranks have observed."""

    def state_dict(self) -> dict[str, Tensor]:
        """What a resumed run needs to know."""
        return {}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:  # noqa: B027
        """Take over what `state_dict` gave."""


class PowerLaw(Density):
    """t = u^power: p(t) = t^{1/power − 1}/power. Power 1 is uniform, above 1 it crowds towards t = 0."""

    power: float = 1.0

    def quantile(self, u: Tensor) -> Tensor:
        """u^power."""
        return u**self.power

    def cumulative(self, t: Tensor) -> Tensor:
        """t^{1/power}."""
        return t ** (1 / self.power)

    def importance_weight(self, t: Tensor) -> Tensor:
        """power·t^{1 − 1/power}."""
        return self.power * t ** (1 - 1 / self.power)


@final
class Uniform(UniformTimesOptions, PowerLaw):
    """Every time equally likely, draws independent of each other: the paper's."""

    spread_evenly: ClassVar[bool] = False


@final
class LowDiscrepancy(LowDiscrepancyTimesOptions, PowerLaw):
    """Every time equally likely, draws spread evenly."""


@final
class Power(ImportanceTimesOptions, PowerLaw):
    """t = u^power, draws spread evenly."""


@final
class Adaptive(AdaptiveTimesOptions, Density):
    """p(t) ∝ √E[loss(t)²], learnt while training.

    Piecewise constant in v = t^{1/power}, in which the loss is tame, over `bins` equal cells. A cell's probability is
    proportional to the root of the mean square of loss·dt/dv seen in it, a mean that forgets with `decay` a step and
    leans on the mean over all cells until the cell has draws of its own. A share `floor` is spread evenly, so that no
    weight exceeds that of t = u^power by more than 1/floor, whatever has been seen. Until something has been, it is t = u^power.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        self._base = Power(self.power)
        # sum of squares and number of draws, both fading; and this step's, this rank's
        self._seen = torch.zeros(2, self.bins, dtype=torch.float64)
        self._fresh = torch.zeros_like(self._seen)

    def quantile(self, u: Tensor) -> Tensor:
        """Through the cell in which u falls."""
        shares, below = self._shares(u.device)
        cell = (torch.searchsorted(below, u, right=True) - 1).clamp(0, self.bins - 1)
        inside = ((u - below[cell]) / shares[cell]).clamp(0, 1)
        return self._base.quantile((cell + inside) / self.bins)

    def cumulative(self, t: Tensor) -> Tensor:
        """The cells below, and the part of its own cell."""
        shares, below = self._shares(t.device)
        cell, inside = self._cell(t)
        return below[cell] + shares[cell] * inside

    def importance_weight(self, t: Tensor) -> Tensor:
        """dt/dv over the density of v."""
        shares, _ = self._shares(t.device)
        return self._base.importance_weight(t) / (shares[self._cell(t)[0]] * self.bins)

    def observe(self, times: Times, losses: Tensor) -> None:
        """Squares of loss·dt/dv, by cell; as a product with an indicator, whose order of summation is fixed."""
        shares, _ = self._shares(losses.device)
        cell, _ = self._cell(times.t if times.s is None else (times.t + times.s) / 2)
        values = (losses.to(torch.float64) * times.weight * shares[cell] * self.bins).square()
        here = (cell[:, None] == torch.arange(self.bins, device=cell.device)).to(torch.float64)
        self._fresh += torch.stack(((values[:, None] * here).sum(0), here.sum(0)))

    def update(self, reduce: Reduce) -> None:
        """Old squares fade, new ones come in, the same on every rank; those of a loss that was not finite do not."""
        reduce(self._fresh)
        known = torch.isfinite(self._fresh).all()
        self._seen = self.decay * self._seen + torch.where(known, self._fresh, 0.0)
        self._fresh = torch.zeros_like(self._fresh)

    def state_dict(self) -> dict[str, Tensor]:
        """Taken between optimiser steps, when nothing is fresh."""
        return {"seen": self._seen}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """The cells must be the same."""
        if state["seen"].shape != self._seen.shape:
            raise UserError(
                f"the adaptive times to resume from have other cells: set bins to {state['seen'].shape[1]}.", "bins"
            )
        self._seen = state["seen"].to(self._seen.device, torch.float64).clone()

    def _shares(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Probabilities of the cells [bins], and their running sum from 0 [bins + 1]."""
        if self._seen.device != device:
            self._seen, self._fresh = self._seen.to(device), self._fresh.to(device)
        squares, draws = self._seen
        overall = squares.sum() / draws.sum().clamp(min=1e-300)
        roots = ((squares + overall) / (draws + 1)).sqrt()
        whole = roots.sum()
        even = torch.full_like(roots, 1 / self.bins)
        # Squares may be too large for a sum, and a density is needed all the same.
        learnt = torch.where((whole > 0) & torch.isfinite(whole), roots / whole, even)
        shares = (1 - self.floor) * learnt + self.floor * even
        return shares, torch.cat((shares.new_zeros(1), shares.cumsum(0)))

    def _cell(self, t: Tensor) -> tuple[Tensor, Tensor]:
        """(which cell t lies in, how far into it)."""
        place = self._base.cumulative(t) * self.bins
        cell = place.floor().clamp(0, self.bins - 1)
        return cell.to(torch.int64), place - cell


@final
class TimeSampler:
    """Draws times from a density, on a grid of T steps or anywhere.

    On the grid step i is drawn with P(i) = F(i/T) − F((i − 1)/T), over all i = 1 … T, and weighs 1/P(i): T for the
    paper's uniform grid. Spread evenly (low discrepancy): one random offset shifts total equal strata of the global
    batch, mapped through the density's quantiles. Each draw alone has the same law as an independent one.
    """

    def __init__(self, density: Density | None = None, steps: int | None = None) -> None:
        self.density, self.steps = density or LowDiscrepancy(), steps

    def draw(self, part: BatchSlice, device: torch.device | str = "cpu") -> Times:
        """Times of this slice's rows."""
        if self.density.spread_evenly:
            return self.at(self._strata(part, device))
        return self.at(uniforms((part.count,), part.keyed("times", device)))

    def at(self, u: Tensor) -> Times:
        """The times at shares u of the density, uniform in [0, 1) if the expectation is to be the ELBO."""
        t = self.density.quantile(u)
        if self.steps is None:
            return Times(t, None, self.density.importance_weight(t))
        before = (t * self.steps).floor().clamp(0, self.steps - 1)
        s, t = before / self.steps, (before + 1) / self.steps
        return Times(t, s, 1 / (self.density.cumulative(t) - self.density.cumulative(s)))

    def _strata(self, part: BatchSlice, device: torch.device | str) -> Tensor:
        """Row j takes stratum j·stride mod total, all turned by one random angle: any run of rows, a micro-batch or
        a rank's, is spread evenly, and each row alone sees every time alike (rows of a validation text never change).
        """
        offset = part.shared("times")
        row = torch.arange(part.first, part.first + part.count, device=device)
        return (((row * _stride(part.total)) % part.total).double() / part.total + offset) % 1.0


def _stride(total: int) -> int:
    """About total/φ and coprime to it, so that j·stride mod total visits every stratum once."""
    stride = max(1, round(total * 0.6180339887498949))
    while math.gcd(stride, total) != 1:
        stride += 1
    return stride


class NelboDensities(NamedTuple):
    """Laws of t for estimates of the bound itself."""

    alone: Power  # for all looks
    mixture: tuple[Power, Power]  # shared by the looks, three to one; a draw is paid for by the mixture of both


def nelbo_densities(process: Process) -> NelboDensities:
    """Times at which to look where the bound is reported: `alone` while training, the `mixture` in measurements.

    As t → 0 a token is lost with probability ∝ t^a (`Schedule.onset`), and then weighs ∝ 1/t. t = u^{1/a} suits the
    mean over many tokens, which is all that a validation curve needs; with uniform noise u² at least. But a single
    token's second moment is then u·(1/u)², which diverges, and an estimate that has not met its rare tokens is too low
    and too sure of itself. With u^{2/a} it is bounded, hence with any share of it.
    """
    a = process.schedule.onset()
    alone = max(2.0 if process.has_uniform_noise else 1.0, 1.0 / a)
    return NelboDensities(Power(alone), (Power(1.0 / a), Power(2.0 / a)))
