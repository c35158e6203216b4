"""Who computes what when: a bounded queue, batches of jobs that agree, and workers that carry them out.

Texts of equal length with equal settings (steps, sampler, filters, …; seeds may differ) walk together. What a text becomes
does not depend on its company: random numbers are keyed by (seed, sample), and rows are evaluated in groups that change no
bit (`sharing`) or that all have one shape (a GPU's, `samplers.prediction`).
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import cast

import torch

from scdd.core.denoiser import Denoiser
from scdd.lm.results import Sample
from scdd.lm.run import Run
from scdd.serve.errors import busy, stopping
from scdd.serve.jobs import Abandoned, Guarded, Job, show
from scdd.serve.limits import Limits
from scdd.serve.metrics import Meters
from scdd.serve.sharing import Sharing

COMPANY = 8.0  # times as long a wait for others, where the last batch had some: they may be about to ask again
SOON = 0.4  # of the time limit: what a batch may take, for its first job waits as long as its last
SURE = 0.8  # of the time limit: when jobs should be done, since guesses are guesses


class Scheduler:
    """Workers that take jobs from a queue, the oldest first together with those that agree with it."""

    def __init__(
        self, limits: Limits, meters: Meters, sharing: Sharing, threads: int | None = None, lent: bool = False
    ) -> None:
        """`threads`: that torch may use inside each worker. `lent`: the first worker is whoever calls `work`."""
        self.limits, self.meters, self.sharing, self._intra = limits, meters, sharing, threads
        self._pending: deque[Job] = deque()
        self._changed = threading.Condition()
        self._idle, self._open, self._company = 0, True, False
        self._pace = 0.0  # seconds for a unit of cost, smoothed; 0 until something was carried out
        self._busy: dict[int, tuple[float, float]] = {}  # by worker: the cost of what it does, and since when
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
            most = self.limits.queue if self._pending else max(self.limits.queue, len(jobs))
            full = len(self._pending) + len(jobs) > most
            ahead, own = self._ahead(), self._pace * sum(job.cost for job in jobs)
            if full or own <= SURE * self.limits.seconds < ahead + own:
                self.meters.rejected.inc()
                raise busy(len(self._pending), min(60, max(1, math.ceil(ahead / 2))))
            self._pending.extend(jobs)
            self._changed.notify_all()

    def learn(self, cost: float, seconds: float) -> None:
        """Something took this long."""
        self._pace += (0.2 if self._pace else 1.0) * (seconds / cost - self._pace)

    def _ahead(self) -> float:
        """Seconds before a job that comes now is begun, at the present pace."""
        now, waiting = time.monotonic(), self._pace * sum(job.cost for job in self._pending)
        under_way = sum(max(0.0, self._pace * cost - (now - since)) for cost, since in self._busy.values())
        return (waiting + under_way) / self.limits.workers

    def alive(self) -> bool:
        """Whether every worker thread is at its place."""
        return all(worker.is_alive() for worker in self._workers)

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
                start, cost = time.monotonic(), sum(job.cost for job in wanted)
                self._carry_out(wanted)
                if cost and all(job.future.exception() is None for job in wanted):
                    self.learn(cost, time.monotonic() - start)

    def _take(self) -> list[Job] | None:
        """The next batch, or None at the end. Workers that wait share what there is evenly."""
        with self._changed:
            self._idle += 1
            self._busy.pop(threading.get_ident(), None)
            try:
                while True:
                    self._sweep()
                    if self._pending:
                        first = self._pending[0]
                        alike = [job for job in self._pending if job is first or (job.key and job.key == first.key)]
                        window = self.limits.window * (COMPANY if self._company else 1.0)
                        pause = first.arrived + window - time.monotonic()
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
        first, limit = alike[0], self.limits.seconds
        if row := self._pace * first.cost / first.rows:
            left = first.arrived + SURE * limit - time.monotonic()
            room = min(room, int(min(SOON * limit, left) / row))
        for job in alike:
            if picked and job.rows > room:
                break
            picked.append(job)
            room -= job.rows
            self._pending.remove(job)
        self._company = len(picked) > 1
        self._busy[threading.get_ident()] = (sum(job.cost for job in picked), time.monotonic())
        return picked

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
            else:  # one job's mistake must not become another's, and a smaller batch may fit into memory
                for job in jobs:
                    self._carry_out([job])

    def _walk(self, jobs: Sequence[Job]) -> None:
        if jobs[0].run is None:
            assert jobs[0].work is not None
            jobs[0].future.set_result(jobs[0].work())
            return
        runs = [job.run for job in jobs if job.run is not None]
        engine = runs[0].engine
        guarded = cast(Denoiser, Guarded(engine.model.denoiser, jobs, self.meters))
        engine = replace(engine, model=replace(engine.model, denoiser=guarded))
        rows, length = sum(job.rows for job in jobs), max(len(start) for run in runs for start in run.starts)
        rows_per_forward = self.sharing.size(min(rows, self.limits.batch), length)
        run = Run.joined(runs, engine, rows_per_forward=rows_per_forward)
        ends = [sum(job.rows for job in jobs[: i + 1]) for i in range(len(jobs))]
        if any(job.watch is not None for job in jobs):
            told = [0] * len(jobs)
            for batch in run:
                show(batch, jobs, ends, told)
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
