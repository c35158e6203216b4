"""Parts of a scale, each under a name and a hash of its own.

A part is plain data. Its id is a hash of all that its result depends on, so that finished parts are found again whatever
order, machine or session they were done in; names are what people select and read.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scdd.core.errors import UserError
from scdd.reproduce.options import Scale

STAGES = ("data", "train", "continue", "tune", "measure")
"""A stage begins when the one before it is over; `continue` are trainings that start from others."""
PREPARED, RUNS = "data", "runs"


@dataclass(frozen=True)
class Part:
    """One training, one tuning or one measurement."""

    name: str
    kind: str
    stage: str
    id: str
    training: str = ""
    seed: int = 0
    system: str = ""
    convention: str = "ours"
    tuned: bool = False
    settings: Mapping[str, Any] = field(default_factory=dict)
    """What the work needs to know, as plain data."""
    needs: tuple[str, ...] = ()
    """Names of the parts whose results it uses."""
    work: Mapping[str, float] = field(default_factory=dict)
    """Tokens by what is done with them, for the estimate: train, read, draw, judge."""

    @property
    def run(self) -> str:
        """The training run that it is about."""
        return f"{self.training}/seed-{self.seed}"


@dataclass(frozen=True)
class Choices:
    """What a user chooses besides the scale."""

    data: str | None = None
    """Folder of shards in place of the scale's corpus."""
    reference: str | None = None
    """Language model that judges, in place of the scale's."""
    llm: str | None = None
    """Name of the model at an OpenAI endpoint, for the LLM judge; None leaves that out."""
    base_url: str | None = None
    benchmarks: str | None = None
    """Folder of the zero-shot tasks."""


NO_CHOICES = Choices()


def chosen(parts: Sequence[Part], patterns: Sequence[str]) -> list[Part]:
    """The parts whose names, or whose runs' names, match one of the patterns, with all that they need; all without a pattern.

    A run's name, TRAINING/seed-N, means its training and everything that is measured of it.
    """
    if not patterns:
        return list(parts)
    by_name = {part.name: part for part in parts}
    wanted: set[str] = set()
    for pattern in patterns:
        found = [
            part.name for part in parts if any(fnmatch.fnmatchcase(n, f"*{pattern}*") for n in (part.name, part.run))
        ]
        if not found:
            raise UserError(f"only {pattern} is no part's name: a dry run lists them.", "only")
        while found:
            name = found.pop()
            if name not in wanted:
                wanted.add(name)
                found += by_name[name].needs
    return [part for part in parts if part.name in wanted]


def corpus_path(scale: Scale, out: Path, choices: Choices) -> str | None:
    """The folder of shards; None where each recipe has its own."""
    if choices.data is not None or scale.corpus is None:
        return choices.data
    return scale.corpus.path or str((out / PREPARED).resolve())


def movable(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings without what differs from machine to machine: of files and folders their names stay."""
    kept = {name: value for name, value in settings.items() if name not in ("base_url", "data")}
    reference = kept.get("reference")
    if reference and "model" in reference:
        kept["reference"] = {"model": Path(reference["model"]).name}
    return kept


def training_name(training: str, seed: int) -> str:
    """The part that trains it."""
    return f"train/{training}/seed-{seed}"


def run_folder(out: Path, training: str, seed: int) -> Path:
    """Where a training is."""
    return (out / RUNS / training / f"seed-{seed}").resolve()
