"""How a text is repaired, and what a model computes in. Nothing here imports torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from scdd.core.errors import UserError
from scdd.core.options import Count, Inside, Options, ShareAboveZero
from scdd.samplers.options import Final

Dtype = Literal["float32", "bfloat16", "int8"]
"""What a model computes in; int8, on a CPU, is the large products alone (`ops.int8`)."""

OF_MODE = {"threshold": "pass", "steps": "reverse", "final": "reverse", "top_p": "reverse"}
"""Options of one mode alone."""


@dataclass(frozen=True, kw_only=True)
class RepairOptions(Options):
    """How `correct` repairs a text; a model may come with its own."""

    mode: Literal["edit", "reverse", "pass"] = "reverse"
    """edit: words give way to fewer or more, where the odds are clear; reverse: walk the reverse process from the text; pass:
    one evaluation, by the threshold."""
    strength: ShareAboveZero = 0.1
    """How much of the text to take for wrong, in (0, 1]: higher changes more. reverse and pass: the noise level t0."""
    threshold: Inside = 2e-4
    """pass: change a token whose probability is below this share of the best one's; smaller changes less."""
    steps: Count = 16
    """reverse: steps from the strength to 0, each one network evaluation."""
    final: Final = "greedy"
    """reverse: last step; greedy settles each token for the likelier one."""
    top_p: ShareAboveZero = 0.9
    """reverse: replacements come from this nucleus."""

    def check_used(self, wishes: Mapping[str, object]) -> None:
        """Refuse what was asked for and this mode does not look at."""
        for name, mode in OF_MODE.items():
            if wishes.get(name) is not None and mode != self.mode:
                raise UserError(
                    f"{name} is of mode {mode}, and the mode is {self.mode}, which has none: leave it out, or choose mode {mode}.",
                    name,
                )


@dataclass(frozen=True, kw_only=True)
class ScoreOptions(Options):
    """How `score` reads a text; a model's own are those of its repairs."""

    strength: ShareAboveZero = RepairOptions.strength
    """The noise level t0 in (0, 1] that the text is taken to have: the higher it is, the more of the text is doubted."""
