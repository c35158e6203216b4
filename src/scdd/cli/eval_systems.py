"""Systems to measure, as a command line names them: `name=CHECKPOINT,sampler=remdm-cap,top_p=0.9`. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from scdd.core.errors import UserError
from scdd.core.options import number_type
from scdd.samplers.options import DRAWING, SamplingOptions

if TYPE_CHECKING:
    from scdd.evals.measure.specs import SamplingSpec

KEYS = ("process", "seed", "length", *(name for name in DRAWING if name != "steps"))


@dataclass(frozen=True)
class System:
    """A checkpoint and a way to sample from it."""

    label: str
    source: str
    process: str | None = None
    sampling: dict[str, Any] = field(default_factory=dict)

    def spec(self, base: SamplingSpec) -> SamplingSpec:
        """`base` with this system's own choices."""
        return base.changed(self.sampling)


def parse_system(text: str) -> System:
    """`[NAME=]CHECKPOINT[,KEY=VALUE]…`; `bundled` is the model that comes with the package."""
    first, *rest = text.split(",")
    label, equals, source = first.partition("=")
    label, source = (label, source) if equals else ("", first)
    if not source:
        raise UserError(f"{text!r} names no checkpoint: write name=CHECKPOINT,sampler=…")
    chosen: dict[str, Any] = {}
    for item in rest:
        key, equals, value = item.partition("=")
        if not equals or key not in KEYS:
            raise UserError(f"{item!r} in {text!r} is not known: choose from {', '.join(KEYS)}.")
        try:
            chosen[key] = (int if key == "seed" else number_type(SamplingOptions, key) or str)(value)
        except ValueError as error:
            raise UserError(f"{key}={value} in {text!r} is not a number: write {key}=0.9 or the like.") from error
    process = chosen.pop("process", None)
    return System(label or source.rstrip("/").rpartition("/")[2], source, process, chosen)


def parse_systems(texts: list[str] | None) -> list[System]:
    """The systems that were named, each under a name of its own; the bundled model if there is none."""
    systems = [parse_system(text) for text in texts or ["bundled"]]
    labels = [system.label for system in systems]
    twice = next((label for label in labels if labels.count(label) > 1), None)
    if twice is not None:
        raise UserError(f"Two systems are called {twice}: name them apart, as in a={twice} b={twice}.")
    return systems
