"""Noise schedules: γ_t and ρ_t of `eq:marginal`, value and derivative together."""

from scdd.schedules.base import Schedule, interior
from scdd.schedules.curves import Constant, Cosine, Curve, Polynomial
from scdd.schedules.decoupled import Decoupled
from scdd.schedules.masked import Masked
from scdd.schedules.peaked import Peaked

__all__ = [
    "Constant",
    "Cosine",
    "Curve",
    "Decoupled",
    "Masked",
    "Peaked",
    "Polynomial",
    "Schedule",
    "interior",
]
