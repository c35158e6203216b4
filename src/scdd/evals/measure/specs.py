"""What is asked of a model, as plain data: how to sample, and how to repair."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from scdd.core.errors import OptionError, UserError
from scdd.lm.rows import check_whole
from scdd.samplers.options import CONVENTIONS, Convention, SamplingChanges


def check_convention(name: object) -> None:
    """Refuse what is no convention."""
    if name not in CONVENTIONS:
        raise OptionError(f"The convention is {name!r}: choose {' or '.join(CONVENTIONS)}.", "convention")


@dataclass(frozen=True)
class SamplingSpec:
    """How samples are drawn. `nfe` is the number of network evaluations asked for, a last pass's among them."""

    num: int = 1024
    nfe: int = 128
    seed: int = 0
    changes: SamplingChanges = field(default_factory=SamplingChanges)
    """What is chosen otherwise than in the recipe, as for `LM.plan`: sampler, top_p, convention, …

    A sampler of your own is handed over as itself; its name and its fields are what its measurements are known by."""
    length: int | None = None
    """Tokens of a text; None: the recipe's."""
    correct: bool = True
    """False is the no-correction ablation: visible tokens stay, masks are filled from x_θ alone."""

    def __post_init__(self) -> None:
        for name, value in (("num", self.num), ("nfe", self.nfe)):
            check_whole(name, value)

    def changed(self, choices: Mapping[str, Any]) -> SamplingSpec:
        """This one with other choices, of its own fields or of sampling."""
        own = {name: value for name, value in choices.items() if name in ("seed", "length")}
        rest: Any = {name: value for name, value in choices.items() if name not in own}
        return replace(self, **own, changes={**self.changes, **rest})


@dataclass(frozen=True)
class Repair:
    """The last `last` steps of a walk of `steps` steps: 1 of 128 is the paper's. Replacements come from a nucleus.

    With a threshold it is the one pass of `LM.correct(mode="pass", strength=…)` instead: at t = `strength`,
    x_θ(z) < threshold · max x_θ → the argmax.

    `nucleus` cuts x_θ before the step, as sampling with top-p does: all that lies outside the nucleus is then touched, errors
    and right tokens that surprise the model alike.
    Else doubts come from the whole x_θ, as in `LM.correct`.

    `convention` "authors" is the paper's procedure as its code has it: those last steps of a walk in the authors' convention
    (`samplers.options.CONVENTIONS`), x_θ cut to their nucleus, and then the argmax of one more evaluation at every position.
    """

    steps: int = 128
    last: int = 1
    top_p: float = 0.9
    final: str = "ancestral"
    threshold: float | None = None
    nucleus: bool = False
    strength: float = 0.1
    convention: Convention = "ours"

    def __post_init__(self) -> None:
        check_whole("steps", self.steps)
        check_convention(self.convention)
        if self.convention == "authors" and self.threshold is not None:
            raise UserError(
                "The one pass with a threshold is ours alone: leave the threshold out, or use convention ours."
            )
        if self.threshold is not None and not 0.0 < self.threshold < 1.0:
            raise UserError(f"threshold is {self.threshold}: choose one in (0, 1).")
        if not 0.0 < self.strength <= 1.0:
            raise UserError(f"strength is {self.strength}: choose a time in (0, 1].")
        if not 1 <= self.last <= self.steps:
            raise UserError(f"last is {self.last}: take 1 to {self.steps} of the walk's {self.steps} steps.")

    @property
    def name(self) -> str:
        """For tables."""
        if self.threshold is None:
            how = ", the authors' way" if self.convention == "authors" else ", nucleus" if self.nucleus else ""
            return f"{self.last} of {self.steps} steps{how}"
        return f"one pass, threshold {self.threshold:g}"

    @property
    def evaluations(self) -> int:
        """Of the network, for each text; the authors' argmax is one too."""
        return 1 if self.threshold is not None else self.last + (self.convention == "authors")

    def settled(self, time_conditioned: bool) -> dict[str, Any]:
        """Plain data, for a measurement's settings; what has no effect is left out, as older measurements leave it out."""
        settings = asdict(self)
        if not self.nucleus:
            del settings["nucleus"]
        if self.convention == "ours":
            del settings["convention"]
        if self.threshold is None or not time_conditioned:
            del settings["strength"]
        return settings


@dataclass(frozen=True)
class RecoverySpec:
    """How many errors are made in each text, and how they are mended."""

    count: int
    repair: Repair = Repair()
    seed: int = 0


def repair_name(settings: dict[str, Any]) -> str:
    """The name of the repair that a measurement's settings hold."""
    known = {name: settings[name] for name in Repair.__dataclass_fields__ if name in settings}
    return Repair(**known).name
