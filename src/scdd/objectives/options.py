"""What training minimises, and how it draws its times."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import Discriminator

from scdd.core.errors import OptionError
from scdd.core.options import Amount, Count, Options, Positive, ShareAboveZero, ShareBelowOne, Text


@dataclass(frozen=True)
class UniformTimesOptions(Options):
    """Every time equally likely and independent, as in the paper."""

    kind: Literal["uniform"] = field(default="uniform", kw_only=True, repr=False)


@dataclass(frozen=True)
class LowDiscrepancyTimesOptions(Options):
    """Uniform, but spread evenly over each batch."""

    kind: Literal["low-discrepancy"] = field(default="low-discrepancy", kw_only=True, repr=False)


@dataclass(frozen=True)
class ImportanceTimesOptions(Options):
    """t = u^power, spread evenly and weighted by 1/density, so that the objective stays the unbiased ELBO."""

    kind: Literal["importance"] = field(default="importance", kw_only=True, repr=False)
    power: Positive = 2.0
    """Above 1, small times are drawn more often, where the variance of the loss is largest."""


@dataclass(frozen=True)
class AdaptiveTimesOptions(Options):
    """The density follows the loss's second moments during training, weighted by 1/density."""

    kind: Literal["adaptive"] = field(default="adaptive", kw_only=True, repr=False)
    power: Positive = 2.0
    """The density starts as t = u^power, and its cells are equal in t^(1/power)."""
    bins: Count = 64
    """Cells of the density."""
    decay: ShareBelowOne = 0.99
    """Memory of the second moments, for each step."""
    floor: ShareAboveZero = 0.1
    """Share of the draws spread evenly, which bounds the weights."""


TimesOptions = Annotated[
    UniformTimesOptions | LowDiscrepancyTimesOptions | ImportanceTimesOptions | AdaptiveTimesOptions,
    Discriminator("kind"),
]
DENSITIES = {
    "uniform": "scdd.objectives.times:Uniform",
    "low-discrepancy": "scdd.objectives.times:LowDiscrepancy",
    "importance": "scdd.objectives.times:Power",
    "adaptive": "scdd.objectives.times:Adaptive",
}


@dataclass(frozen=True)
class TeacherOptions(Options):
    """A trained denoiser of the same tokenizer, towards whose predictions the network is drawn where tokens are noised."""

    source: Text
    """Its checkpoint folder, run folder or Hub id."""
    weight: Positive = 1.0
    """What KL(teacher's x_θ ‖ x_θ) at a noised token counts beside the objective's own loss."""
    temperature: Positive = 1.0
    """Both sides' logits are divided by it, and the divergence multiplied by its square."""


@dataclass(frozen=True)
class ElboOptions(Options):
    """The process's own evidence lower bound."""

    kind: Literal["elbo"] = field(default="elbo", kw_only=True, repr=False)
    steps: Count | None = 1000
    """Number T of discrete steps in the bound (the paper: 1000); null is continuous time."""
    weighting: Literal["elbo", "gidd+", "gidd+code", "scdd+", "dynamic"] = "elbo"
    """elbo: the bound itself; the others weigh masks by 2, noise by 1 and clean tokens by almost 0, with steps null: gidd+ GIDD's
    divergence, as published; gidd+code as its code has it, with another weight of clean tokens; scdd+ SCDD's divergence, which at
    a mask is 1/γ_t times as much; dynamic the process's own, gidd+ or scdd+."""
    times: TimesOptions = UniformTimesOptions()
    """How times are drawn."""
    ar_share: ShareBelowOne = 0.0
    """Share of the rows that are read left to right and predicted token by token instead: what a pretrained language model
    knew stays in practice. Needs a network of kind llama."""
    ar_steps: Amount = 0
    """Steps at the beginning in which every row is read left to right, where each token teaches something: a network that starts
    from nothing learns its language faster so. Needs a network of kind llama."""
    clean_share: ShareAboveZero = 1.0
    """Share of the tokens that kept their place whose loss is computed, each counting for several: the head, a fifth to a third of a
    small network's work, reads fewer positions, and the loss is the same on average. MDLM has no loss there, so that 0.01 loses
    nothing; with noise a step teaches less. Not with adaptive times."""
    teacher: TeacherOptions | None = None
    """Learn from another model's predictions besides; null: from the text alone."""
    repair_share: ShareBelowOne = 0.0
    """Share of the rows that have noise but no masks: practice in repairing whole texts. Needs a weighting other than elbo."""
    repair_noise: ShareAboveZero = 0.2
    """In those rows, the largest share of noise; each row's own is drawn evenly below it."""
    repair_weight: Positive = 1.0
    """What a token of those rows counts beside one of the others, of which more are hidden: with 1 a row to repair weighs a tenth
    of another."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.weighting != "elbo" and self.steps is not None:
            raise OptionError(
                f"weighting {self.weighting} weighs rates, and steps is {self.steps}: set steps to null, or weighting to elbo.",
                "steps",
            )
        if self.clean_share < 1.0 and isinstance(self.times, AdaptiveTimesOptions):
            raise OptionError(
                f"clean_share is {self.clean_share}, and with adaptive times nobody knows how many tokens will have been noised: set "
                "times to another kind, or clean_share to 1.",
                "clean_share",
            )
        if self.repair_share and (self.weighting == "elbo" or isinstance(self.times, AdaptiveTimesOptions)):
            raise OptionError(
                f"repair_share is {self.repair_share}, and rows without masks are no part of the bound, nor of times adapted to it: set "
                "weighting to dynamic and times to low-discrepancy, or repair_share to 0.",
                "repair_share",
            )


@dataclass(frozen=True)
class ArOptions(Options):
    """Next-token cross-entropy."""

    kind: Literal["ar"] = field(default="ar", kw_only=True, repr=False)


@dataclass(frozen=True)
class PrismOptions(Options):
    """A per-token quality head on an MDLM, trained to tell right fillings from wrong ones."""

    kind: Literal["prism"] = field(default="prism", kw_only=True, repr=False)
    freeze: bool = True
    """Train the head alone; false trains the denoiser with it."""
    share: Positive = 1.0
    """Weight of the head's loss beside the denoiser's, where both are trained."""


ObjectiveOptions = Annotated[ElboOptions | ArOptions | PrismOptions, Discriminator("kind")]
