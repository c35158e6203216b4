"""What training minimises, and how it draws its times."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Interval
from pydantic import Discriminator

from scdd.recipe.base import Count, Positive, Section, ShareBelowOne


@dataclass(frozen=True, kw_only=True)
class UniformTimes(Section):
    """Every time equally likely and independent, as in the paper."""

    kind: Literal["uniform"] = "uniform"
    """Which way of drawing times."""


@dataclass(frozen=True, kw_only=True)
class LowDiscrepancyTimes(Section):
    """Uniform, but spread evenly over each batch."""

    kind: Literal["low-discrepancy"] = "low-discrepancy"
    """Which way of drawing times."""


@dataclass(frozen=True, kw_only=True)
class ImportanceTimes(Section):
    """t = u^power, spread evenly and weighted by 1/density, so that the objective stays the unbiased ELBO."""

    kind: Literal["importance"] = "importance"
    """Which way of drawing times."""
    power: Positive = 2.0
    """Above 1, small times are drawn more often, where the variance of the loss is largest."""


@dataclass(frozen=True, kw_only=True)
class AdaptiveTimes(Section):
    """The density follows the loss's second moments during training, weighted by 1/density."""

    kind: Literal["adaptive"] = "adaptive"
    """Which way of drawing times."""
    power: Positive = 2.0
    """The density starts as t = u^power, and its cells are equal in t^(1/power)."""
    bins: Count = 64
    """Cells of the density."""
    decay: ShareBelowOne = 0.99
    """Memory of the second moments, for each step."""
    floor: Annotated[float, Interval(gt=0.0, le=1.0)] = 0.1
    """Share of the draws spread evenly, which bounds the weights."""


Times = Annotated[UniformTimes | LowDiscrepancyTimes | ImportanceTimes | AdaptiveTimes, Discriminator("kind")]


@dataclass(frozen=True, kw_only=True)
class ElboObjective(Section):
    """The process's own evidence lower bound."""

    kind: Literal["elbo"] = "elbo"
    """Which objective."""
    steps: Count | None = 1000
    """Number T of discrete steps in the bound (the paper: 1000); null is continuous time."""
    weighting: Literal["elbo", "dynamic"] = "elbo"
    """elbo: the bound itself; dynamic: GIDD+'s weights (2 on masks, 1 on noise, almost 0 on clean tokens), with steps null."""
    times: Times = UniformTimes()
    """How times are drawn."""


@dataclass(frozen=True, kw_only=True)
class ArObjective(Section):
    """Next-token cross-entropy."""

    kind: Literal["ar"] = "ar"
    """Which objective."""


@dataclass(frozen=True, kw_only=True)
class PrismObjective(Section):
    """A per-token quality head on an MDLM, trained to tell right fillings from wrong ones."""

    kind: Literal["prism"] = "prism"
    """Which objective."""
    freeze: bool = True
    """Train the head alone; false trains the denoiser with it."""
    share: Positive = 1.0
    """Weight of the head's loss beside the denoiser's, where both are trained."""


Objective = Annotated[ElboObjective | ArObjective | PrismObjective, Discriminator("kind")]
