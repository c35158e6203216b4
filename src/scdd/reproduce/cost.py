"""What a plan takes: time, GPU-hours, disk, calls to a judge; by measured rates, and by this folder's own once it has some."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from scdd.evals.report.tables import Table, entries
from scdd.models.options import DiTOptions
from scdd.recipe.load import load
from scdd.reproduce.options import RateOptions, Scale
from scdd.reproduce.parts import Part
from scdd.reproduce.records import Record
from scdd.reproduce.run import Task

GPT2 = 50_258  # tokens of the paper's vocabulary
STATES = 4  # averaged and raw weights, two moments: float32 each
KEPT_TEXTS = 8  # bytes a token of drawn texts: as first seen and as finished
CALLS = 3  # of a text pair: two grades, one winner


@dataclass(frozen=True)
class Cost:
    """What is left to do."""

    seconds: float
    """Of one process after the other."""
    longest: float
    """Of the longest single task."""
    disk: float
    """Bytes."""
    calls: int
    """Questions to the LLM judge."""
    rates: Mapping[str, float]
    measured: bool
    """Whether the rates are this folder's own."""


def own_rates(rates: RateOptions, parts: Sequence[Part], found: Mapping[str, Record]) -> tuple[dict[str, float], bool]:
    """Tokens a second by kind of work; what this folder has done counts before what the scale says."""
    known = {name: float(getattr(rates, name)) for name in ("train", "read", "draw", "judge")}
    done = [(part, found[part.id].made["seconds"]) for part in parts if part.id in found]
    measured = False
    for name in ("train", "read"):  # these are alone in their parts
        pairs = [(part.work[name], seconds) for part, seconds in done if set(part.work) == {name}]
        if pairs and sum(seconds for _, seconds in pairs) > 0:
            known[name], measured = sum(w for w, _ in pairs) / sum(s for _, s in pairs), True
    mixed = [(part.work, seconds) for part, seconds in done if "draw" in part.work]
    expected = sum(sum(tokens / known[name] for name, tokens in work.items()) for work, _ in mixed)
    spent = sum(seconds for _, seconds in mixed)
    if expected > 0 and spent > 0:
        for name in ("draw", "judge"):
            known[name] *= expected / spent
        measured = True
    return known, measured


def estimate(tasks: Sequence[Task], scale: Scale, parts: Sequence[Part], found: Mapping[str, Record]) -> Cost:
    """What the tasks take."""
    rates = scale.rates
    known, measured = own_rates(rates, parts, found)
    times = [
        rates.start + sum(tokens / known[name] for part in task.parts for name, tokens in part.work.items())
        for task in tasks
    ]
    every = [part for task in tasks for part in task.parts]
    return Cost(
        seconds=sum(times),
        longest=max(times, default=0.0),
        disk=sum(_bytes(part, scale) for part in every),
        calls=sum(CALLS * int(part.settings["rows"]) for part in every if part.kind == "judge"),
        rates=known,
        measured=measured,
    )


def _bytes(part: Part, scale: Scale) -> float:
    """Roughly: checkpoints of a run, texts of a measurement."""
    if part.kind == "train":
        spec = load(part.settings["recipe"], part.settings["changes"])
        weights = 150e6  # of networks whose shape the recipe does not say
        if isinstance(spec.model, DiTOptions):
            shape = spec.model.config()
            vocab = scale.corpus.vocab_size if scale.corpus is not None else GPT2
            weights = 12 * shape.depth * shape.width**2 + 2 * vocab * shape.width
        return 4.0 * weights * (STATES + 1) * spec.training.keep_last
    return KEPT_TEXTS * part.work.get("judge", 0.0)


def plan_table(parts: Sequence[Part], todo: Sequence[Part]) -> Table:
    """How many parts of each kind there are, and how many are left."""
    every, left = (Counter(part.kind for part in group) for group in (parts, todo))
    rows = [entries(kind, every[kind], every[kind] - left[kind], left[kind]) for kind in every]
    return Table("Parts", ["kind", "planned", "finished", "to do"], rows)


def told(cost: Cost, workers: int, rates: RateOptions, out: Path, price: float | None = None) -> list[str]:
    """The estimate in sentences."""
    hours = cost.seconds / 3600
    wall = max(cost.seconds / workers, cost.longest) / 3600
    by = "this folder's own speed" if cost.measured else f"speeds measured on {rates.device}"
    lines = [f"about {_hours(hours)} {rates.unit}, {_hours(wall)} hours with {workers} processes at a time, by {by}"]
    if price is not None:
        lines.append(f"about {hours * price:,.2f} at {price:g} for an hour of one process")
    room = shutil.disk_usage(_existing(out)).free
    lines.append(f"about {cost.disk / 1e9:,.2f} GB of disk; {room / 1e9:,.1f} GB are free")
    if cost.calls:
        lines.append(f"at most {cost.calls:,} questions to the LLM judge")
    return lines


def _hours(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 1 else f"{value:.2f}"


def _existing(path: Path) -> Path:
    return path if path.exists() else _existing(path.resolve().parent)
