"""How text is drawn from a model: sampler, time grid, final step, filters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Interval
from pydantic import Discriminator

from scdd.recipe.base import Count, NotNegative, Positive, Section, Share


@dataclass(frozen=True, kw_only=True)
class AncestralSampler(Section):
    """The process's own reverse step (`eq:backwardParam`)."""

    kind: Literal["ancestral"] = "ancestral"
    """Which sampler."""


@dataclass(frozen=True, kw_only=True)
class RemdmSampler(Section):
    """ReMDM: remasks visible tokens of a masked model."""

    kind: Literal["remdm"] = "remdm"
    """Which sampler."""
    variant: Literal["cap", "rescale", "conf", "loop"] = "cap"
    """How the remasking probability is set."""
    eta: Share = 0.01
    """Strength of cap (largest remasking probability), rescale (factor) and loop (cap inside the loop)."""
    t_on: Share = 0.55
    """loop: the time at which remasking begins."""
    t_off: Share = 0.05
    """loop: the time at which it ends."""
    alpha_on: Share = 0.9
    """loop: the share of unmasked tokens held while it lasts."""


@dataclass(frozen=True, kw_only=True)
class InformedSampler(Section):
    """Informed Corrector: after each step, redraw the least confident tokens (approximate on a plain denoiser)."""

    kind: Literal["informed"] = "informed"
    """Which sampler."""
    corrections: Count = 1
    """Tokens redrawn after each step."""


@dataclass(frozen=True, kw_only=True)
class PrismSampler(Section):
    """PRISM: remasks the tokens that the quality head trusts least."""

    kind: Literal["prism"] = "prism"
    """Which sampler."""
    remask: Share = 0.05
    """Share of the visible tokens remasked at each step."""


@dataclass(frozen=True, kw_only=True)
class P2Sampler(Section):
    """P2-Self: path planning with the denoiser as its own planner."""

    kind: Literal["p2"] = "p2"
    """Which sampler."""
    eta: NotNegative = 1.0
    """Weight of visible tokens' doubt against masked ones': 0 never remasks, larger remasks more."""


@dataclass(frozen=True, kw_only=True)
class GiddCorrectSampler(Section):
    """Ancestral sampling, then GIDD's post-hoc self-correction of the finished text."""

    kind: Literal["gidd-correct"] = "gidd-correct"
    """Which sampler."""
    corrections: Count = 64
    """Most correction rounds after sampling; each is one more network evaluation."""
    temperature: Positive = 0.1
    """Temperature of the proposals."""


@dataclass(frozen=True, kw_only=True)
class ThresholdSampler(Section):
    """Confidence-threshold parallel decoding of a masked model."""

    kind: Literal["threshold"] = "threshold"
    """Which sampler."""
    threshold: Share = 0.9
    """Every masked token whose probability reaches this is unmasked; at least one in each step."""


@dataclass(frozen=True, kw_only=True)
class ArSampler(Section):
    """Left to right, for autoregressive models."""

    kind: Literal["ar"] = "ar"
    """Which sampler."""


Sampler = Annotated[
    AncestralSampler
    | RemdmSampler
    | InformedSampler
    | PrismSampler
    | P2Sampler
    | GiddCorrectSampler
    | ThresholdSampler
    | ArSampler,
    Discriminator("kind"),
]


@dataclass(frozen=True, kw_only=True)
class Grid(Section):
    """The times that the sampler visits."""

    kind: Literal["uniform", "quadratic", "cosine"] = "uniform"
    """Spacing of the times between start and 0."""
    start: Annotated[float, Interval(gt=0.0, le=1.0)] = 1.0
    """First time: 1 begins from masks, less begins from a given text."""


@dataclass(frozen=True, kw_only=True)
class Sampling(Section):
    """Default way to draw text from the trained model."""

    sampler: Sampler = AncestralSampler()
    """Which tokens move in each step."""
    steps: Count = 128
    """Steps, which is also the number of network evaluations."""
    length: Count | None = None
    """Tokens of a text when no length is asked for; null fills the context."""
    grid: Grid = Grid()
    """The times visited."""
    final: Literal["ancestral", "masks-only", "greedy", "none"] = "ancestral"
    """Last step: ancestral like the others; masks-only fills masks; greedy takes the likeliest token; none may leave masks."""
    top_p: Annotated[float, Interval(gt=0.0, le=1.0)] = 1.0
    """Nucleus: keep the likeliest tokens up to this probability, the crossing one included."""
    top_k: Count | None = None
    """Keep only this many likeliest tokens."""
    temperature: Positive = 1.0
    """Divides the logits; below 1 is more cautious."""
