"""γ and ρ chosen separately: the freedom that an absorbing mask gives SCDD."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from scdd.core import Levels
from scdd.core.options import component
from scdd.schedules.base import Schedule
from scdd.schedules.curves import Curve
from scdd.schedules.options import CURVES, DecoupledOptions


@dataclass(frozen=True)
class Decoupled(DecoupledOptions, Schedule):
    """One curve for masking, one for uniform noise (the two independent rates of `eq:forward_rate`)."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("gamma", "rho"):
            if not isinstance(given := getattr(self, name), Curve):  # one of your own is taken as it is
                kind, values = component(given, CURVES)
                object.__setattr__(self, name, kind(**values))

    def at(self, t: Tensor) -> Levels:
        """Levels from the two curves."""
        t = t.to(torch.float64)
        gamma, rho = cast(Curve, self.gamma).at(t), cast(Curve, self.rho).at(t)
        return Levels(gamma.value, rho.value, gamma.complement, rho.complement, gamma.derivative, rho.derivative)

    def __repr__(self) -> str:
        return f"Decoupled(gamma={self.gamma!r}, rho={self.rho!r})"
