"""Jobs: what is to be computed, for whom, and what they see of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from torch import Tensor

from scdd.core.denoiser import Denoiser
from scdd.lm.results import Sample
from scdd.lm.run import BatchFrame, Run
from scdd.serve.limits import Limits
from scdd.serve.metrics import Meters

BASE = 32  # tokens: what an evaluation costs besides its own


def cost(tokens: int, steps: int = 1) -> float:
    """Of a text, in tokens that are evaluated."""
    return float((tokens + BASE) * steps)


class Abandoned(Exception):
    """Nobody waits for this batch any more."""


class Seen(NamedTuple):
    """One text of a job after a step, as plain numbers."""

    row: int
    offset: int
    step: int
    steps: int
    t: float
    s: float
    tokens: list[int]
    moved: list[int]
    log_p: list[float]
    counts: list[int]
    nfe: int


@dataclass(eq=False)
class Job:
    """Either a run, which may share its evaluations, or work of another kind."""

    run: Run | None = None
    work: Callable[[], Any] | None = None
    finish: Callable[[tuple[Sample, ...]], Any] = lambda samples: samples
    """Makes the answer of the run's samples."""
    watch: Callable[[Seen], None] | None = None
    future: Future[Any] = field(default_factory=Future)
    wanted: bool = True
    arrived: float = field(default_factory=time.monotonic)
    key: Hashable = None
    rows: int = 1
    cost: float = 0.0
    """What its time is guessed by."""
    told: int = 0
    """Steps that the watcher has seen: a batch that failed is repeated, and what is known already is not told again."""

    def fit(self, limits: Limits) -> None:
        """Take the server's batch shape, and find out with whom this job may share."""
        if self.run is None:
            return
        self.run = Run.joined([self.run], batch_size=limits.batch)
        self.rows = len(self.run.starts)
        plan, lengths = self.run.plan, {len(row) for row in self.run.starts}
        steps = plan.steps + plan.extra_steps
        self.cost = sum(cost(len(row), steps) for row in self.run.starts)
        if len(lengths) == 1:  # texts of unequal length would pad each other
            self.key = (replace(plan, seed=0), id(self.run.engine.model.process), lengths.pop())

    def drop(self) -> None:
        """Nobody waits for the answer any more."""
        self.wanted = False
        self.future.cancel()


class Guarded:
    """The network of one batch: it stops as soon as nobody waits, and counts what it computes."""

    def __init__(self, inner: Denoiser, jobs: Sequence[Job], meters: Meters) -> None:
        self._inner, self._jobs, self._meters = inner, jobs, meters

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def hidden(self, z_t: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """`Denoiser.hidden`."""
        if not any(job.wanted for job in self._jobs):
            raise Abandoned
        self._meters.evaluations.inc()
        self._meters.evaluated_rows.inc(z_t.shape[0])
        return self._inner.hidden(z_t, *args, **kwargs)


def show(batch: BatchFrame, jobs: Sequence[Job], ends: Sequence[int], told: list[int]) -> None:
    """Hand every watcher its rows. The device is read once a frame. `told`: steps of each job so far, in this walk."""
    frame = batch.frame
    tokens, moved, log_p = frame.tokens.tolist(), frame.moved.tolist(), frame.log_p.tolist()
    counts, nfe = frame.counts.tolist(), frame.nfe.tolist()
    for r, place in enumerate(batch.places):
        which = next(i for i, end in enumerate(ends) if place < end)
        job = jobs[which]
        told[which] += 1
        if job.watch is None or not job.wanted or told[which] <= job.told:
            continue
        job.told = told[which]
        inside = slice(1, 1 + batch.lengths[r])
        job.watch(
            Seen(
                row=place - ends[which] + job.rows,
                offset=batch.offsets[r],
                step=frame.step,
                steps=frame.steps,
                t=frame.t,
                s=frame.s,
                tokens=tokens[r][inside],
                moved=moved[r][inside],
                log_p=log_p[r][inside],
                counts=counts[r],
                nfe=nfe[r],
            )
        )
