"""What the parts take: time, GPU-hours, disk, calls to a judge; by measured rates, and by this folder's own once it has some."""

from __future__ import annotations

import math
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
class Rates:
    """Tokens a second by kind of work, and evaluations a second, however few their tokens."""

    known: Mapping[str, float]
    start: float
    task: float
    measured: bool = False
    """Whether they are this folder's own."""

    def part(self, part: Part) -> float:
        """Seconds of a part."""
        each = {name: amount / self.known[name] for name, amount in part.work.items()}
        drawn = max(each.pop("draw", 0.0), each.pop("evaluations", 0.0))  # a small batch takes as long as a larger one
        return drawn + sum(each.values())

    def of(self, task: Task) -> float:
        """Seconds of a task in a process that has begun."""
        return self.task + sum(map(self.part, task.parts))


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
    rates: Rates


def own_rates(rates: RateOptions, parts: Sequence[Part], found: Mapping[str, Record]) -> Rates:
    """What this folder has done counts before what the scale says."""
    known = {name: float(getattr(rates, name)) for name in ("train", "read", "draw", "judge")}
    known["evaluations"] = 1 / rates.step if rates.step else math.inf
    done = [(part, found[part.id].made["seconds"]) for part in parts if part.id in found]
    measured = False
    for name in ("train", "read"):  # these are alone in their parts
        pairs = [(part.work[name], seconds) for part, seconds in done if set(part.work) == {name}]
        if pairs and sum(seconds for _, seconds in pairs) > 0:
            known[name], measured = sum(w for w, _ in pairs) / sum(s for _, s in pairs), True
    mixed = [(part, seconds) for part, seconds in done if "draw" in part.work]
    said = Rates(known, rates.start, rates.task)
    expected, spent = sum(said.part(part) for part, _ in mixed), sum(seconds for _, seconds in mixed)
    if expected > 0 and spent > 0:
        known |= {name: known[name] * expected / spent for name in ("draw", "judge", "evaluations")}
        measured = True
    return Rates(known, rates.start, rates.task, measured)


def estimate(
    tasks: Sequence[Task], scale: Scale, parts: Sequence[Part], found: Mapping[str, Record], workers: int = 1
) -> Cost:
    """What the tasks take."""
    rates = own_rates(scale.rates, parts, found)
    times = [rates.of(task) for task in tasks]
    every = [part for task in tasks for part in task.parts]
    disk = [
        sum(_bytes(part, scale) for part in task.parts if not (task.drop and part.kind == "train")) for task in tasks
    ]
    passing = [sum(_bytes(part, scale) for part in task.parts if part.kind == "train") for task in tasks if task.drop]
    return Cost(
        seconds=sum(times) + rates.start * min(workers, len(tasks)),
        longest=max(times, default=0.0) + rates.start,
        disk=sum(disk) + workers * max(passing, default=0.0),
        calls=sum(CALLS * int(part.settings["rows"]) for part in every if part.kind == "judge"),
        rates=rates,
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


def parts_table(parts: Sequence[Part], todo: Sequence[Part], rates: Rates) -> Table:
    """How many parts of each kind there are, how many are left, and how long those take."""
    every, left = (Counter(part.kind for part in group) for group in (parts, todo))
    seconds = {kind: sum(rates.part(part) for part in todo if part.kind == kind) for kind in every}
    rows = [entries(kind, every[kind], every[kind] - left[kind], left[kind], f"{seconds[kind]:,.0f}") for kind in every]
    rows.append(entries("all", len(parts), len(parts) - len(todo), len(todo), f"{sum(seconds.values()):,.0f}"))
    return Table("Parts", ["kind", "planned", "finished", "to do", "seconds"], rows)


def task_table(tasks: Sequence[Task], rates: Rates, seconds: float | None = None) -> Table:
    """What each task takes, and in which piece of so many seconds one process would do it."""
    rows, piece, spent = [], 1, rates.start
    for task in tasks:
        needs = rates.of(task)
        if seconds is not None and spent + needs > seconds and spent > rates.start:
            piece, spent = piece + 1, rates.start
        spent += needs
        rows.append(entries(task.name, len(task.parts), f"{needs:,.0f}", piece))
    head = ["task", "parts", "seconds", "piece"]
    if seconds is None:
        return Table("Tasks, in their order", head[:3], [row[:3] for row in rows])
    notes = [f"Pieces of {seconds:,.0f} s, one process after the other, {rates.start:,.0f} s of each for its start."]
    return Table("Tasks, in their order", head, rows, notes)


def told(cost: Cost, devices: int, rates: RateOptions, out: Path, price: float | None = None) -> list[str]:
    """The estimate in sentences."""
    hours = cost.seconds / 3600
    wall = max(cost.seconds / devices, cost.longest) / 3600
    by = "this folder's own speed" if cost.rates.measured else f"speeds measured on {rates.device}"
    where = f"{devices} {'GPU' if rates.unit == 'GPU-hours' else 'core'}{'' if devices == 1 else 's'}"
    lines = [f"about {_hours(hours)} {rates.unit}, {_hours(wall)} hours on {where}, by {by}"]
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
