"""The forward process of a recipe: which kernel, and which schedule of γ_t and ρ_t (`eq:marginal`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Discriminator

from scdd.recipe.base import Inside, Positive, Section, ShareBelowOne


@dataclass(frozen=True, kw_only=True)
class ConstantCurve(Section):
    """Always 1: as rho it means no uniform noise, as gamma no mask."""

    kind: Literal["constant"] = "constant"
    """Which curve."""


@dataclass(frozen=True, kw_only=True)
class PolynomialCurve(Section):
    """1 − (1 − end)·t^power; the defaults give the straight line 1 − t."""

    kind: Literal["polynomial"] = "polynomial"
    """Which curve."""
    power: Positive = 1.0
    """Power of t: below 1 the curve falls early, above 1 late."""
    end: ShareBelowOne = 0.0
    """Value at t = 1."""


@dataclass(frozen=True, kw_only=True)
class CosineCurve(Section):
    """1 − (1 − end)·sin(πt/2)."""

    kind: Literal["cosine"] = "cosine"
    """Which curve."""
    end: ShareBelowOne = 0.0
    """Value at t = 1."""


Curve = Annotated[ConstantCurve | PolynomialCurve | CosineCurve, Discriminator("kind")]


@dataclass(frozen=True, kw_only=True)
class PeakedSchedule(Section):
    """The paper's schedule (`eq:noise-gidd-ours`): uniform noise that peaks in between."""

    kind: Literal["peaked"] = "peaked"
    """Which schedule."""
    p_u: ShareBelowOne = 0.2
    """Share of tokens replaced by uniform noise at the peak; the paper uses 0.1 and 0.2, and 0 is masking alone."""
    exponent: Positive = 1.0
    """Sharpness of the peak (the paper's γ); exponent·(1 − t_peak) must stay below 1."""
    t_peak: Inside = 0.5
    """Time of the peak."""


@dataclass(frozen=True, kw_only=True)
class MaskedSchedule(Section):
    """Masks alone, ρ ≡ 1."""

    kind: Literal["masked"] = "masked"
    """Which schedule."""
    shape: Literal["log-linear", "linear", "cosine"] = "log-linear"
    """How γ falls; log-linear (MDLM's name) and linear (MD4's name) are the same curve 1 − t."""


@dataclass(frozen=True, kw_only=True)
class DecoupledSchedule(Section):
    """Masking and uniform noise chosen separately."""

    kind: Literal["decoupled"] = "decoupled"
    """Which schedule."""
    gamma: Curve = PolynomialCurve()
    """γ_t, the probability that a token is not masked at time t."""
    rho: Curve = CosineCurve()
    """ρ_t, the probability that an unmasked token is still the true one by retention."""


Schedule = Annotated[PeakedSchedule | MaskedSchedule | DecoupledSchedule, Discriminator("kind")]


@dataclass(frozen=True, kw_only=True)
class NoisyProcess(Section):
    """A process with masks and uniform noise."""

    kind: Literal["scdd", "gidd"]
    """scdd: noise never remasks, so the reverse process corrects tokens in place; gidd: GIDD's kernel."""
    schedule: Schedule = PeakedSchedule()
    """γ_t and ρ_t over time."""


@dataclass(frozen=True, kw_only=True)
class MaskedProcess(Section):
    """Masked diffusion: visible tokens are always right."""

    kind: Literal["mdlm"] = "mdlm"
    """Which process."""
    schedule: MaskedSchedule = MaskedSchedule()
    """γ_t over time."""


@dataclass(frozen=True, kw_only=True)
class ArProcess(Section):
    """No diffusion: the autoregressive baseline on the same backbone."""

    kind: Literal["ar"] = "ar"
    """Which process."""


Process = Annotated[NoisyProcess | MaskedProcess | ArProcess, Discriminator("kind")]
