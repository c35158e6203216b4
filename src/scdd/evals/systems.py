"""Systems to compare, as a command line names them: `name=CHECKPOINT,sampler=remdm-cap,top_p=0.9`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from scdd.core.errors import UserError
from scdd.evals.generation import SamplingSpec
from scdd.evals.subject import EvalModel, open_model

NUMBERS = {"top_p": float, "temperature": float, "top_k": int, "seed": int, "length": int}
WORDS = ("sampler", "grid", "final", "process")


@dataclass(frozen=True)
class System:
    """A checkpoint and a way to sample from it."""

    label: str
    source: str | None
    process: str | None = None
    way: dict[str, Any] = field(default_factory=dict)

    def ways(self, base: SamplingSpec) -> SamplingSpec:
        """`base` with this system's own choices."""
        return replace(base, **self.way)

    def open(self, device: str | None = None, overrides: Sequence[str] = ()) -> EvalModel:
        """Load it."""
        return open_model(self.source, self.label, process=self.process, device=device, overrides=overrides)


def parse_system(text: str) -> System:
    """`[NAME=]CHECKPOINT[,KEY=VALUE]…`; `bundled` is the model that comes with the package."""
    first, *rest = text.split(",")
    label, equals, source = first.partition("=")
    if not equals:
        label, source = "", first
    if not source:
        raise UserError(f"{text!r} names no checkpoint: write name=CHECKPOINT,sampler=…")
    way: dict[str, Any] = {}
    process = None
    for item in rest:
        key, equals, value = item.partition("=")
        if not equals or key not in (*NUMBERS, *WORDS):
            raise UserError(
                f"{item!r} in {text!r} is not known: choose from {', '.join((*WORDS, *NUMBERS))}."
            )
        if key == "process":
            process = value
        else:
            way[key] = _value(key, value, text)
    shown = label or source.rstrip("/").rpartition("/")[2]
    return System(shown, None if source == "bundled" else source, process, way)


def _value(key: str, value: str, text: str) -> Any:
    if key not in NUMBERS:
        return value
    try:
        return NUMBERS[key](value)
    except ValueError as error:
        raise UserError(f"{key}={value} in {text!r} is not a number: write {key}=0.9 or the like.") from error
