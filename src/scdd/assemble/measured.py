"""Runs whose speed and memory were measured (assets/measured.json), and the constants that follow from them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from scdd.assemble.job import Job, job_of
from scdd.assemble.machines import Gpu, find
from scdd.assemble.pace import Constants, fit
from scdd.core.files import read_json
from scdd.recipe.load import load

FILE = Path(__file__).parent.parent / "assets" / "measured.json"


@dataclass(frozen=True)
class Measured:
    """A run of the file, as a job."""

    size: str
    job: Job
    gpu: Gpu
    tokens_per_second: float
    memory: float | None  # GiB that torch had allocated at most
    said: dict[str, Any]  # its entry


@cache
def measured() -> tuple[Measured, ...]:
    """All of them."""
    runs = []
    for said in read_json(FILE)["runs"]:
        spec = load(said["recipe"], said["set"])
        # The weights that some of them started from change nothing of their cost.
        spec = replace(spec, training=replace(spec.training, start_from=None))
        job, *_ = job_of(spec, vocab=said["vocab"])
        rate = float(said["tokens_per_second"])
        runs.append(Measured(said["size"], job, find(said["gpu"]), rate, said["memory"], said))
    return tuple(runs)


@cache
def fitted(without: tuple[int, int] | None = None) -> Constants:
    """From all measured runs, or from those of another (depth, width): how well are runs foreseen that are not among them?"""
    others = (run for run in measured() if (run.job.shape.depth, run.job.shape.width) != without)
    return fit([(run.job, run.gpu, run.tokens_per_second) for run in others])
