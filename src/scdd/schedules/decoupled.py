"""γ and ρ chosen separately: the freedom that an absorbing mask gives SCDD."""

from __future__ import annotations

import torch
from torch import Tensor

from scdd.core import Levels
from scdd.schedules.base import Schedule
from scdd.schedules.curves import Curve


class Decoupled(Schedule):
    """One curve for masking, one for uniform noise (the two independent rates of `eq:forward_rate`)."""

    def __init__(self, gamma: Curve, rho: Curve) -> None:
        self.gamma, self.rho = gamma, rho

    def at(self, t: Tensor) -> Levels:
        """Levels from the two curves."""
        t = t.to(torch.float64)
        gamma, rho = self.gamma.at(t), self.rho.at(t)
        return Levels(
            gamma.value, rho.value, gamma.complement, rho.complement, gamma.derivative, rho.derivative
        )

    def __repr__(self) -> str:
        return f"Decoupled(gamma={self.gamma!r}, rho={self.rho!r})"
