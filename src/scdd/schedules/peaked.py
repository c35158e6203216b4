"""The paper's schedule: uniform noise that peaks at t_peak, `eq:noise-gidd-ours`."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from scdd.core import Levels, UserError
from scdd.core.errors import OptionError
from scdd.schedules.base import LEAST_ONSET, Schedule, interior
from scdd.schedules.options import PeakedOptions


@dataclass(frozen=True)
class Peaked(PeakedOptions, Schedule):
    """γ_t = (1 + c_t − t)/(1 + c_t), ρ_t = (1 − t)/(1 + c_t − t), c_t = B·t^a·(1 − t)^b.

    a = exponent·t_peak, b = exponent·(1 − t_peak); B is set so that the share of uniform noise is p_u at t_peak.
    The marginals are GIDD's (`eq:gidd-noise`). The paper calls the exponent γ.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.exponent * (1.0 - self.t_peak) >= 1.0:
            raise OptionError(
                f"exponent·(1 − t_peak) = {self.exponent * (1.0 - self.t_peak):g} is not below 1, so ρ_t would not fall "
                f"to 0 at t = 1; lower exponent below {1.0 / (1.0 - self.t_peak):g} or raise t_peak.",
                "exponent",
            )
        self._check_gamma()

    @property
    def _a(self) -> float:
        return self.exponent * self.t_peak

    @property
    def _b(self) -> float:
        return self.exponent * (1.0 - self.t_peak)

    @property
    def _scale(self) -> float:
        """B."""
        peak: float = self.t_peak**self._a * (1.0 - self.t_peak) ** self._b
        return self.p_u / (1.0 - self.p_u) / peak

    def bump(self) -> tuple[float, float]:
        """B and the exponent."""
        return self._scale, self.exponent

    def onset(self) -> float:
        """exponent·t_peak, or 1 of the masks; exactly, since small ones are not to be seen at any time."""
        return min(max(self._a, LEAST_ONSET), 1.0) if self.p_u > 0.0 else 1.0

    def at(self, t: Tensor) -> Levels:
        """`eq:noise-gidd-ours` through c/(1 − t), which has limits at both ends."""
        t = t.to(torch.float64)
        left = 1.0 - t
        c = self._noise(t)
        one_minus_gamma = t / (1.0 + c)
        gamma = (left + c) / (1.0 + c)
        if self._scale == 0.0:  # p_u = 0: no uniform noise at all, also at t = 1 where the ratio would be 0·∞
            rho, one_minus_rho = torch.ones_like(t), torch.zeros_like(t)
        else:
            ratio = self._scale * t**self._a * left ** (self._b - 1.0)  # c/(1 − t)
            rho, one_minus_rho = 1.0 / (1.0 + ratio), 1.0 / (1.0 + 1.0 / ratio)
        return Levels(gamma, rho, one_minus_gamma, one_minus_rho, *self._slopes(interior(t)))

    def _check_gamma(self) -> None:
        """Noise that swells faster than t masks would have to unmask: possible only where exponent·t_peak > 1."""
        t = torch.linspace(0.0, 1.0, 4097, dtype=torch.float64)[1:-1]
        rising = t[self._slopes(t)[0] > 0.0]
        if len(rising):
            raise UserError(
                f"{self!r}: γ_t rises near t = {rising[0].item():.4f}, which an absorbing mask cannot do; "
                f"lower exponent (to {1.0 / self.t_peak:g} every p_u works) or p_u."
            )

    def _noise(self, t: Tensor) -> Tensor:
        """c_t."""
        return self._scale * t**self._a * (1.0 - t) ** self._b

    def _slopes(self, t: Tensor) -> tuple[Tensor, Tensor]:
        """γ′ and ρ′, with c′ = c·(a/t − b/(1 − t)) multiplied out so that nothing cancels."""
        c, left = self._noise(t), 1.0 - t
        dgamma = (c * (self._a - self._b * t / left) - 1.0 - c) / (1.0 + c).square()
        drho = -c * (1.0 - self._b + self._a * left / t) / (left + c).square()
        return dgamma, drho

    def __repr__(self) -> str:
        return f"Peaked(p_u={self.p_u:g}, exponent={self.exponent:g}, t_peak={self.t_peak:g})"
