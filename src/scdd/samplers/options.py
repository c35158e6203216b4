"""How text is drawn from a model: sampler, time grid, final step, filters. Nothing here imports torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from typing import TYPE_CHECKING, Annotated, Any, Literal

from annotated_types import Interval
from pydantic import Discriminator
from typing_extensions import TypedDict

from scdd.core.errors import OptionError
from scdd.core.options import Count, NotNegative, Options, Positive, Share, ShareAboveZero, Temperature

if TYPE_CHECKING:
    from scdd.ops.common import Filters, NucleusRule
    from scdd.samplers.base import PassRule, Sampler

Steps = Annotated[int, Interval(ge=1, le=1 << 20)]


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

    def __post_init__(self) -> None:
        super().__post_init__()
        ordered = 0.0 < self.t_off < self.t_on < 1.0 and 0.0 < self.alpha_on < 1.0
        if self.variant == "loop" and not ordered:
            raise OptionError(
                f"t_on is {self.t_on:g}, t_off {self.t_off:g} and alpha_on {self.alpha_on:g}: choose 0 < t_off < t_on < 1 and "
                "0 < alpha_on < 1 for remdm's loop.",
                "t_on",
            )


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
    temperature: Temperature = 0.1
    """Temperature of the proposals."""
    patience: Count = 8
    """A text ends when its agreement with the model has not risen for so many rounds."""


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

SAMPLERS = {
    "ancestral": "scdd.samplers.ancestral:Ancestral",
    "remdm": "scdd.samplers.remdm:Remdm",
    "informed": "scdd.samplers.informed:Informed",
    "prism": "scdd.samplers.prism:Prism",
    "p2": "scdd.samplers.p2:P2",
    "gidd-correct": "scdd.samplers.gidd_correct:GiddCorrect",
    "threshold": "scdd.samplers.threshold:Threshold",
    "ar": "scdd.samplers.ar:Ar",
}
_NAMED: dict[str, Any] = {
    **{options().kind: options() for options in SamplerOptions.__origin__.__args__},  # type: ignore[attr-defined]
    **{f"remdm-{variant}": RemdmOptions(variant) for variant in ("cap", "rescale", "conf", "loop")},
}
SAMPLER_NAMES = tuple(_NAMED)
"""Samplers by name, with their default options; remdm-conf and the like name a variant of remdm."""


def sampler_options(name: str) -> SamplerOptions:
    """The default options of the sampler called `name`."""
    if not isinstance(name, str) or name not in _NAMED:
        near = get_close_matches(str(name), _NAMED, n=1)
        cure = f"did you mean {near[0]}" if near else f"choose one of {', '.join(_NAMED)}"
        raise OptionError(f"There is no sampler {name!r}: {cure}.", "sampler")
    options: SamplerOptions = _NAMED[name]
    return options


def sampler_name(options: SamplerOptions) -> str:
    """The name that gives this sampler, its other options aside: remdm-conf, not remdm."""
    return f"remdm-{options.variant}" if isinstance(options, RemdmOptions) else options.kind


GridKind = Literal["uniform", "quadratic", "cosine"]


@dataclass(frozen=True)
class GridOptions(Options):
    """The times that the sampler visits."""

    kind: GridKind = "uniform"
    """Spacing of the times between start and 0."""
    start: ShareAboveZero = 1.0
    """First time: 1 begins from masks, less begins from a given text."""


Final = Literal["ancestral", "masks-only", "greedy", "none"]
Nucleus = Literal["crossing", "below"]
LastPass = Literal["none", "argmax"]
Convention = Literal["ours", "authors"]


@dataclass(frozen=True)
class ConventionSettings:
    """What a convention decides where nobody chose."""

    nucleus: Nucleus
    last_pass: LastPass
    scale: float
    """The schedule is asked for its levels at this share of each time."""
    end: float
    """The last time of a walk that a last pass follows. Times run from 1 to it, spaced as the grid says; at 0 the levels are
    those of clean text."""


CONVENTIONS: dict[Convention, ConventionSettings] = {
    "ours": ConventionSettings("crossing", "none", scale=1.0, end=0.0),
    "authors": ConventionSettings("below", "argmax", scale=0.999, end=1e-5),
}
"""authors: as the code behind the paper draws. Its step and its last pass are in `tests/evals/test_conventions.py`."""


@dataclass(frozen=True, kw_only=True)
class SamplingOptions(Options):
    """Default way to draw text from the trained model."""

    sampler: SamplerOptions = AncestralOptions()
    """Which tokens move in each step."""
    steps: Steps = 128
    """Steps, which is also the number of network evaluations, but for a last pass."""
    length: Count | None = None
    """Tokens of a text when no length is asked for; null fills the context."""
    grid: GridOptions = GridOptions()
    """The times visited."""
    final: Final = "ancestral"
    """Last step: ancestral like the others; masks-only fills masks; greedy takes the likeliest token; none may leave masks."""
    top_p: ShareAboveZero = 1.0
    """Nucleus: keep the likeliest tokens up to this probability."""
    nucleus: Nucleus | None = None
    """Whether the token that crosses top_p stays: crossing (Holtzman's rule) or below (it goes); null: the convention's."""
    top_k: Count | None = None
    """Keep only this many likeliest tokens."""
    temperature: Temperature = 1.0
    """Divides the logits; below 1 is more cautious."""
    tolerance: Positive | None = None
    """Stop a text when fewer than this many tokens are expected to change any more, with sampler ancestral; null: never."""
    last_pass: LastPass | None = None
    """One more evaluation after the last step: argmax puts the likeliest token everywhere (MDLM: at masks); none; null: the convention's."""
    convention: Convention = "ours"
    """ours; or authors, as the paper's code draws: nucleus below, last pass argmax, times scaled by 0.999 and ending at 0.00001."""


DRAWING = tuple(each.name for each in fields(SamplingOptions) if each.name != "length")
"""What a command line or a request may choose of them."""


class SamplingChanges(TypedDict, total=False):
    """What a caller may choose of a plan; None stands for what was not chosen."""

    sampler: str | SamplerOptions | Sampler | None
    steps: int | None
    grid: GridKind | Sequence[float] | None
    final: Final | None
    top_p: float | None
    top_k: int | None
    temperature: float | None
    tolerance: float | None
    nucleus: Nucleus | NucleusRule | None
    last_pass: LastPass | PassRule | None
    convention: Convention | None
    draw_filters: Filters | None
    seed: int
    batch_size: int
    rows_per_forward: int | None
    record: bool
    stop: bool
