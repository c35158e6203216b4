"""Mask-only schedules: ρ ≡ 1."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from scdd.core import Levels
from scdd.schedules.base import Schedule
from scdd.schedules.curves import Constant, Cosine, Polynomial
from scdd.schedules.decoupled import Decoupled
from scdd.schedules.options import MaskedOptions

LINEAR = Decoupled(gamma=Polynomial(), rho=Constant())
CURVES = {"log-linear": LINEAR, "linear": LINEAR, "cosine": Decoupled(gamma=Cosine(), rho=Constant())}


@dataclass(frozen=True)
class Masked(MaskedOptions, Schedule):
    """γ falls, ρ ≡ 1: the marginals of MDLM, `eq:marginal_mdm` with α = γ.

    "log-linear" (MDLM's name: the total noise −log γ is the log of a linear function) and "linear" (MD4's name) are
    one curve, γ = 1 − t. MDLM's ε = 1e-3 kept −log γ finite at t = 1; nothing here needs it, so γ_1 = 0 exactly.
    """

    def at(self, t: Tensor) -> Levels:
        """γ by shape, ρ = 1."""
        return CURVES[self.shape].at(t)

    def bump(self) -> tuple[float, float]:
        """No noise at all."""
        return 0.0, 1.0

    def __repr__(self) -> str:
        return f"Masked({self.shape!r})"
