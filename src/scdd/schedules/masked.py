"""Mask-only schedules: ρ ≡ 1."""

from __future__ import annotations

from torch import Tensor

from scdd.core import Levels, UserError
from scdd.schedules.base import Schedule
from scdd.schedules.curves import Constant, Cosine, Curve, Polynomial
from scdd.schedules.decoupled import Decoupled

SHAPES: dict[str, Curve] = {"log-linear": Polynomial(), "linear": Polynomial(), "cosine": Cosine()}


class Masked(Schedule):
    """γ falls, ρ ≡ 1: the marginals of MDLM, `eq:marginal_mdm` with α = γ.

    "log-linear" (MDLM's name: the total noise −log γ is the log of a linear function) and "linear" (MD4's name) are
    one curve, γ = 1 − t. MDLM's ε = 1e-3 kept −log γ finite at t = 1; nothing here needs it, so γ_1 = 0 exactly.
    """

    def __init__(self, shape: str = "log-linear") -> None:
        if shape not in SHAPES:
            raise UserError(f"Masked.shape is {shape!r}: choose one of {', '.join(SHAPES)}.")
        self.shape = shape
        self._curves = Decoupled(gamma=SHAPES[shape], rho=Constant())

    def at(self, t: Tensor) -> Levels:
        """γ by shape, ρ = 1."""
        return self._curves.at(t)

    def __repr__(self) -> str:
        return f"Masked({self.shape!r})"
