"""Jobs, and who computes them when: a bounded queue, batches of jobs that agree, and workers that carry them out.

Texts of equal length with equal settings (steps, sampler, filters, …; seeds may differ) walk together. What a text becomes
does not depend on its company: random numbers are keyed by (seed, sample), and rows are evaluated in groups that change no
bit (`sharing`) or that all have one shape (a GPU's, `samplers.network`).
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from scdd.core.denoiser import Denoiser
from scdd.lm import Progress, Run, Sample
from scdd.serve.errors import busy, stopping
from scdd.serve.limits import Limits
from scdd.serve.metrics import Meters
from scdd.serve.sharing import Sharing

COMPANY = 8.0


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

    def fit(self, limits: Limits) -> None:
        """Take the server's batch shape, and find out with whom this job may share."""
        if self.run is None:
            return
        self.run.settings = replace(self.run.settings, batch_size=limits.batch)
        self.rows = len(self.run.starts)
        lengths = {len(row) for row in self.run.starts}
        if len(lengths) == 1:  # texts of unequal length would pad each other
            self.key = (replace(self.run.settings, seed=0), id(self.run.engine.process), lengths.pop())

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


class Scheduler:
    """Workers that take jobs from a queue, the oldest first together with those that agree with it."""

    def __init__(
        self,
        limits: Limits,
        meters: Meters,
        sharing: Sharing,
        threads: int | None = None,
        lent: bool = False,
    ) -> None:
        """`threads`: that torch may use inside each worker. `lent`: the first worker is whoever calls `work`."""
        self.limits, self.meters, self.sharing, self._intra = limits, meters, sharing, threads
        self._pending: deque[Job] = deque()
        self._changed = threading.Condition()
        self._idle, self._open, self._company = 0, True, False
        self._pace = 0.5  # seconds a job, smoothed
        self._workers = [
            threading.Thread(target=self.work, name=f"scdd-worker-{i}", daemon=True)
            for i in range(int(lent), limits.workers)
        ]
        meters.waiting.set_function(self.waiting)
        for worker in self._workers:
            worker.start()

    def waiting(self) -> int:
        """Jobs in the queue."""
        return len(self._pending)

    def submit(self, jobs: Sequence[Job]) -> None:
        """Queue all of these jobs or none."""
        for job in jobs:
            job.fit(self.limits)
        with self._changed:
            if not self._open:
                raise stopping()
            self._sweep()
            if len(self._pending) + len(jobs) > max(self.limits.queue, len(jobs) if not self._pending else 0):
                self.meters.rejected.inc()
                raise busy(self.retry_after())
            self._pending.extend(jobs)
            self._changed.notify_all()

    @property
    def _window(self) -> float:
        """Seconds to wait for company: longer where the last batch had some, whose clients may be about to ask again."""
        return self.limits.window * (COMPANY if self._company else 1.0)

    def retry_after(self) -> int:
        """Seconds until the queue will have shrunk, at the present pace."""
        return min(60, max(1, math.ceil(self._pace * len(self._pending) / (2 * self.limits.workers))))

    def close(self, wait: float | None = None) -> None:
        """Take nothing new, finish what was taken, and end the workers."""
        with self._changed:
            self._open = False
            self._changed.notify_all()
        for worker in self._workers:
            worker.join(wait)

    # -- workers ------------------------------------------------------------------------------------------------------

    def work(self) -> None:
        """Carry out jobs until the scheduler is closed and nothing is left."""
        if self._intra is not None:
            torch.set_num_threads(self._intra)
        while (jobs := self._take()) is not None:
            wanted = [job for job in jobs if job.future.set_running_or_notify_cancel()]
            self.meters.abandoned.inc(len(jobs) - len(wanted))
            if wanted:
                start = time.monotonic()
                self._carry_out(wanted)
                pace = (time.monotonic() - start) / len(wanted)
                self._pace += 0.2 * (pace - self._pace)

    def _take(self) -> list[Job] | None:
        """The next batch, or None at the end. Workers that wait share what there is evenly."""
        with self._changed:
            self._idle += 1
            try:
                while True:
                    self._sweep()
                    if self._pending:
                        first = self._pending[0]
                        alike = [job for job in self._pending if self._agree(job, first)]
                        pause = first.arrived + self._window - time.monotonic()
                        rows = sum(job.rows for job in alike)
                        if pause <= 0 or first.key is None or rows >= self.limits.batch or not self._open:
                            return self._picked(alike, math.ceil(rows / self._idle))
                        self._changed.wait(pause)
                    elif not self._open:
                        return None
                    else:
                        self._changed.wait()
            finally:
                self._idle -= 1

    def _picked(self, alike: Sequence[Job], share: int) -> list[Job]:
        picked: list[Job] = []
        room = min(self.limits.batch, share)
        for job in alike:
            if picked and job.rows > room:
                break
            picked.append(job)
            room -= job.rows
            self._pending.remove(job)
        self._company = len(picked) > 1
        return picked

    @staticmethod
    def _agree(job: Job, first: Job) -> bool:
        return job is first or (job.key is not None and job.key == first.key)

    def _sweep(self) -> None:
        """Forget jobs that nobody waits for."""
        kept = deque(job for job in self._pending if job.wanted)
        self.meters.abandoned.inc(len(self._pending) - len(kept))
        self._pending = kept

    def _carry_out(self, jobs: Sequence[Job]) -> None:
        self.meters.batch_rows.observe(sum(job.rows for job in jobs))
        self.meters.batch_jobs.observe(len(jobs))
        try:
            self._walk(jobs)
        except Abandoned as gone:
            self.meters.abandoned.inc(len(jobs))
            for job in jobs:
                job.future.set_exception(gone)
        except Exception as error:
            if len(jobs) == 1:
                jobs[0].future.set_exception(error)
            else:  # one job's mistake must not become another's
                for job in jobs:
                    self._carry_out([job])

    def _walk(self, jobs: Sequence[Job]) -> None:
        if jobs[0].run is None:
            assert jobs[0].work is not None
            jobs[0].future.set_result(jobs[0].work())
            return
        runs = [job.run for job in jobs if job.run is not None]
        engine = runs[0].engine
        guarded = cast(Denoiser, Guarded(engine.denoiser, jobs, self.meters))
        run = Run.joined(runs, replace(engine, denoiser=guarded))
        rows, length = len(run.starts), max(map(len, run.starts))
        run.settings = replace(run.settings, together=self.sharing.size(rows, length))
        ends = [sum(job.rows for job in jobs[: i + 1]) for i in range(len(jobs))]
        if any(job.watch is not None for job in jobs):
            for progress in run:
                _show(progress, jobs, ends)
        samples = run.results
        for job, end in zip(jobs, ends, strict=True):
            self._answer(job, samples[end - job.rows : end])

    def _answer(self, job: Job, samples: tuple[Sample, ...]) -> None:
        for sample in samples:
            self.meters.tokens.inc(sample.unmasked)
            self.meters.corrections.inc(sample.corrections)
            self.meters.remasked.inc(sample.remasked)
        try:
            answer = job.finish(samples)
        except Exception as error:
            job.future.set_exception(error)
        else:
            job.future.set_result(answer)


def _show(progress: Progress, jobs: Sequence[Job], ends: Sequence[int]) -> None:
    """Hand every watcher its rows. The device is read once a frame."""
    frame = progress.frame
    tokens, moved, log_p = frame.tokens.tolist(), frame.moved.tolist(), frame.log_p.tolist()
    counts, nfe = frame.counts.tolist(), frame.nfe.tolist()
    for r, place in enumerate(progress.places):
        which = next(i for i, end in enumerate(ends) if place < end)
        job = jobs[which]
        if job.watch is None or not job.wanted:
            continue
        inside = slice(1, 1 + progress.lengths[r])
        job.watch(
            Seen(
                row=place - ends[which] + job.rows,
                offset=progress.offsets[r],
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
