"""How text is drawn from a model: sampler, time grid, final step, filters."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import Discriminator

from scdd.core.options import Count, NotNegative, Options, Positive, Share, ShareAboveZero


@dataclass(frozen=True)
class AncestralOptions(Options):
    """The process's own reverse step (`eq:backwardParam`)."""

    kind: Literal["ancestral"] = field(default="ancestral", kw_only=True, repr=False)


@dataclass(frozen=True)
class RemdmOptions(Options):
    """ReMDM: remasks visible tokens of a masked model."""

    kind: Literal["remdm"] = field(default="remdm", kw_only=True, repr=False)
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


@dataclass(frozen=True)
class InformedOptions(Options):
    """Informed Corrector: after each step, redraw the least confident tokens (approximate on a plain denoiser)."""

    kind: Literal["informed"] = field(default="informed", kw_only=True, repr=False)
    corrections: Count = 1
    """Tokens redrawn after each step."""


@dataclass(frozen=True)
class PrismOptions(Options):
    """PRISM: remasks the tokens that the quality head trusts least."""

    kind: Literal["prism"] = field(default="prism", kw_only=True, repr=False)
    remask: Share = 0.05
    """Share of the visible tokens remasked at each step."""


@dataclass(frozen=True)
class P2Options(Options):
    """P2-Self: path planning with the denoiser as its own planner."""

    kind: Literal["p2"] = field(default="p2", kw_only=True, repr=False)
    eta: NotNegative = 1.0
    """Weight of visible tokens' doubt against masked ones': 0 never remasks, larger remasks more."""


@dataclass(frozen=True)
class GiddCorrectOptions(Options):
    """Ancestral sampling, then GIDD's post-hoc self-correction of the finished text."""

    kind: Literal["gidd-correct"] = field(default="gidd-correct", kw_only=True, repr=False)
    corrections: Count = 64
    """Most correction rounds after sampling; each is one more network evaluation."""
    temperature: Positive = 0.1
    """Temperature of the proposals."""


@dataclass(frozen=True)
class ThresholdOptions(Options):
    """Confidence-threshold parallel decoding of a masked model."""

    kind: Literal["threshold"] = field(default="threshold", kw_only=True, repr=False)
    threshold: Share = 0.9
    """Every masked token whose probability reaches this is unmasked; at least one in each step."""


@dataclass(frozen=True)
class ArOptions(Options):
    """Left to right, for autoregressive models."""

    kind: Literal["ar"] = field(default="ar", kw_only=True, repr=False)


SamplerOptions = Annotated[
    AncestralOptions
    | RemdmOptions
    | InformedOptions
    | PrismOptions
    | P2Options
    | GiddCorrectOptions
    | ThresholdOptions
    | ArOptions,
    Discriminator("kind"),
]


@dataclass(frozen=True)
class GridOptions(Options):
    """The times that the sampler visits."""

    kind: Literal["uniform", "quadratic", "cosine"] = "uniform"
    """Spacing of the times between start and 0."""
    start: ShareAboveZero = 1.0
    """First time: 1 begins from masks, less begins from a given text."""


@dataclass(frozen=True)
class SamplingOptions(Options):
    """Default way to draw text from the trained model."""

    sampler: SamplerOptions = AncestralOptions()
    """Which tokens move in each step."""
    steps: Count = 128
    """Steps, which is also the number of network evaluations."""
    length: Count | None = None
    """Tokens of a text when no length is asked for; null fills the context."""
    grid: GridOptions = GridOptions()
    """The times visited."""
    final: Literal["ancestral", "masks-only", "greedy", "none"] = "ancestral"
    """Last step: ancestral like the others; masks-only fills masks; greedy takes the likeliest token; none may leave masks."""
    top_p: ShareAboveZero = 1.0
    """Nucleus: keep the likeliest tokens up to this probability, the crossing one included."""
    top_k: Count | None = None
    """Keep only this many likeliest tokens."""
    temperature: Positive = 1.0
    """Divides the logits; below 1 is more cautious."""
