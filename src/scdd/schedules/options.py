"""What may be chosen of a schedule: γ_t and ρ_t of `eq:marginal`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import Discriminator

from scdd.core.options import Inside, Options, Positive, ShareBelowOne


@dataclass(frozen=True)
class ConstantOptions(Options):
    """Always 1: as rho it means no uniform noise, as gamma no mask."""

    kind: Literal["constant"] = field(default="constant", kw_only=True, repr=False)


@dataclass(frozen=True)
class PolynomialOptions(Options):
    """1 − (1 − end)·t^power; the defaults give the straight line 1 − t."""

    kind: Literal["polynomial"] = field(default="polynomial", kw_only=True, repr=False)
    power: Positive = 1.0
    """Power of t: below 1 the curve falls early, above 1 late."""
    end: ShareBelowOne = 0.0
    """Value at t = 1."""


@dataclass(frozen=True)
class CosineOptions(Options):
    """1 − (1 − end)·sin(πt/2)."""

    kind: Literal["cosine"] = field(default="cosine", kw_only=True, repr=False)
    end: ShareBelowOne = 0.0
    """Value at t = 1."""


CurveOptions = Annotated[ConstantOptions | PolynomialOptions | CosineOptions, Discriminator("kind")]


@dataclass(frozen=True)
class PeakedOptions(Options):
    """The paper's schedule (`eq:noise-gidd-ours`): uniform noise that peaks in between."""

    kind: Literal["peaked"] = field(default="peaked", kw_only=True, repr=False)
    p_u: ShareBelowOne = 0.2
    """Share of tokens replaced by uniform noise at the peak; the paper uses 0.1 and 0.2, and 0 is masking alone."""
    exponent: Positive = 1.0
    """Sharpness of the peak (the paper's γ); exponent·(1 − t_peak) must stay below 1."""
    t_peak: Inside = 0.5
    """Time of the peak."""


@dataclass(frozen=True)
class MaskedOptions(Options):
    """Masks alone, ρ ≡ 1."""

    kind: Literal["masked"] = field(default="masked", kw_only=True, repr=False)
    shape: Literal["log-linear", "linear", "cosine"] = "log-linear"
    """How γ falls; log-linear (MDLM's name) and linear (MD4's name) are the same curve 1 − t."""


@dataclass(frozen=True)
class DecoupledOptions(Options):
    """Masking and uniform noise chosen separately."""

    kind: Literal["decoupled"] = field(default="decoupled", kw_only=True, repr=False)
    gamma: CurveOptions = PolynomialOptions()
    """γ_t, the probability that a token is not masked at time t."""
    rho: CurveOptions = CosineOptions()
    """ρ_t, the probability that an unmasked token is still the true one by retention."""


ScheduleOptions = Annotated[PeakedOptions | MaskedOptions | DecoupledOptions, Discriminator("kind")]

CURVES = {
    "constant": "scdd.schedules.curves:Constant",
    "polynomial": "scdd.schedules.curves:Polynomial",
    "cosine": "scdd.schedules.curves:Cosine",
}
SCHEDULES = {
    "peaked": "scdd.schedules.peaked:Peaked",
    "masked": "scdd.schedules.masked:Masked",
    "decoupled": "scdd.schedules.decoupled:Decoupled",
}
