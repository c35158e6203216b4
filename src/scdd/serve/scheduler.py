"""Who is let in when: a bounded queue, and workers that take from it between two steps.

A request's texts take their first step in the next turn of a worker that has slots for them (`turns`, `batches`). What a text
becomes does not depend on its company: random numbers are keyed by (seed, sample), and rows are evaluated in groups that
change no bit (`sharing`) or that all have one shape (a GPU's, `samplers.prediction`).
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import get_args

import torch
from torch import Tensor

from scdd.core.denoiser import Denoiser
from scdd.serve.errors import busy, stopping
from scdd.serve.jobs import Job, Lane
from scdd.serve.limits import Limits
from scdd.serve.metrics import Meters
from scdd.serve.sharing import Sharing
from scdd.serve.turns import Turns

SURE = 0.8  # of the time limit: when jobs should be done, since guesses are guesses
OFTEN = 0.1  # seconds between two looks at how fast things go, and at who has left the queue
NOTICE = 0.5
"""Seconds that a process's first thread sleeps at most. Handlers of signals run in it, and only once it runs: the system may have
told another thread, or told this one just before it fell asleep."""


class Scheduler:
    """Workers that take jobs from a queue, the oldest of each kind first."""

    def __init__(
        self,
        denoiser: Denoiser,
        limits: Limits,
        meters: Meters,
        sharing: Sharing,
        threads: int | None = None,
        lent: bool = False,
    ) -> None:
        """`threads`: that torch may use inside each worker. `lent`: the first worker is whoever calls `work`."""
        self.limits, self.meters, self.sharing, self._intra, self._lent = limits, meters, sharing, threads, lent
        self._pending: dict[Lane, deque[Job]] = {lane: deque() for lane in get_args(Lane)}
        self._changed = threading.Condition()
        self._here = threading.local()
        self._idle, self._open, self._swept = 0, True, 0.0
        self._pace = 0.0  # seconds for a unit of cost, smoothed; 0 until something was carried out
        self._turns = [Turns(denoiser, sharing, meters, limits.batch) for _ in range(limits.workers)]
        self._workers = [
            threading.Thread(target=self.work, args=(i,), name=f"scdd-worker-{i}", daemon=True)
            for i in range(int(lent), limits.workers)
        ]
        meters.waiting.set_function(self.waiting)
        for worker in self._workers:
            worker.start()

    def waiting(self) -> int:
        """Jobs in the queue."""
        return sum(map(len, self._pending.values()))

    def submit(self, jobs: Sequence[Job]) -> None:
        """Queue all of these jobs or none."""
        with self._changed:
            if not self._open:
                raise stopping()
            self._sweep()
            waiting = self.waiting()
            most = self.limits.queue if waiting else max(self.limits.queue, len(jobs))
            full = waiting + len(jobs) > most
            own, end = self._pace * sum(job.cost for job in jobs), SURE * self.limits.seconds
            # what all others need is quickly known, and mostly little enough, whatever of it they will wait for
            if full or own <= end < self._pace * sum(job.left for job in self._jobs() if job.left > 0.0) + own:
                ahead = self._ahead(jobs)
                if full or end < ahead + own:
                    self.meters.rejected.inc()
                    raise busy(waiting, min(60, max(1, math.ceil(ahead / 2))))
            for job in jobs:
                self._pending[job.lane].append(job)
            self._changed.notify_all()

    def learn(self, cost: float, seconds: float) -> None:
        """Something took this long."""
        self._pace += (0.2 if self._pace else 1.0) * (seconds / cost - self._pace)

    def _ahead(self, jobs: Sequence[Job]) -> float:
        """Seconds that these jobs will wait for others, at the present pace: all that came before them, or, where there is
        a slot for every text, as much of each as they take themselves, since everybody takes steps in turn."""
        others, slots = self._jobs(), self.limits.batch * self.limits.workers
        own = sum(job.cost for job in jobs)
        fits = sum(job.rows for job in (*others, *jobs)) <= slots
        return self._pace * sum(max(0.0, min(job.left, own) if fits else job.left) for job in others) / len(self._turns)

    def _jobs(self) -> list[Job]:
        """Whatever was submitted and is not done."""
        taken = [job for turns in self._turns for job in turns.jobs()]
        return taken + [job for lane in self._pending.values() for job in lane]

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

    def work(self, number: int = 0) -> None:
        """Carry out jobs until the scheduler is closed and nothing is left."""
        if self._intra is not None:
            torch.set_num_threads(self._intra)
        turns = self._here.turns = self._turns[number]
        turns.refill = lambda: self._refill(turns)
        while self._refill(turns, wait=True):
            self._turn(turns)

    def _turn(self, turns: Turns) -> None:
        start = time.monotonic()
        try:
            turns.turn()
        except Exception as error:  # a worker that ends would leave everybody waiting
            turns.give_up(error)
        turns.seconds += time.monotonic() - start
        if turns.idle or turns.seconds > OFTEN:
            cost, seconds = turns.spent()
            if cost:
                self.learn(cost, seconds)

    def at_once(self, job: Job) -> None:
        """Carry out a job before others come, in the first worker's thread, and count it nowhere."""
        with self._uncounted():
            if not self._lent:
                self.submit([job])
                job.future.result()
                return
            job.future.set_running_or_notify_cancel()
            self._turns[0].take(job)
            while not self._turns[0].idle:
                self._turns[0].turn()
            self._turns[0].spent()
            job.future.result()

    @contextmanager
    def _uncounted(self) -> Iterator[None]:
        for turns in self._turns:
            turns.meters = turns.batches.meters = Meters()
        try:
            yield
        finally:
            for turns in self._turns:
                turns.meters = turns.batches.meters = self.meters

    def before(self, z: Tensor) -> None:
        """An evaluation that is no step of a batch is about to happen in this thread (`jobs.Guarded`)."""
        turns: Turns | None = getattr(self._here, "turns", None)
        if turns is not None:
            turns.before(z)

    def _refill(self, turns: Turns, wait: bool = False) -> bool:
        """Take what there is a place for; `wait` for it, if there is nothing else to do. False at the end."""
        if not turns.idle and not self.waiting():
            return True
        with self._changed:
            while True:
                if time.monotonic() > self._swept + OFTEN:
                    self._sweep()
                jobs = self._picked(turns)
                if jobs or not turns.idle or not wait:
                    break
                if not self._open:
                    return False
                self._idle += 1
                self._changed.wait(NOTICE if self._lent else None)
                self._idle -= 1
        for job in jobs:
            if job.future.set_running_or_notify_cancel():
                turns.take(job)
            else:
                self.meters.abandoned.inc()
        return True

    def _picked(self, turns: Turns) -> list[Job]:
        """The oldest of each kind, as many as there is room for. Workers that wait share what there is evenly."""
        picked: list[Job] = []
        for lane, jobs in self._pending.items():
            share = math.ceil(sum(job.rows for job in jobs) / (self._idle + 1)) if self._idle else math.inf
            room = min(turns.room(lane), share)
            while jobs and room > 0 and (lane != "texts" or self._harmless(jobs[0], [*turns.batches.jobs, *picked])):
                room -= jobs[0].rows
                picked.append(jobs.popleft())
        return picked

    def _harmless(self, new: Job, others: Sequence[Job]) -> bool:
        """Whether all that would be answered in time without this job will be with it, at the present pace.

        Everybody takes steps in turn, so a job waits for as much of another as it takes itself.
        """
        if not self._pace or not others:
            return True
        end, now = SURE * self.limits.seconds, time.monotonic()
        lefts = [max(0.0, job.left) for job in others]
        first = min(job.arrived for job in others)
        if self._pace * (sum(lefts) + new.left) <= first + end - now:
            return True
        for job, left in zip(others, lefts, strict=True):
            spare = job.arrived + end - now - self._pace * sum(min(left, each) for each in lefts)
            if 0.0 <= spare < self._pace * min(left, new.left):
                return False
        return True

    def _sweep(self) -> None:
        """Forget jobs that nobody waits for."""
        self._swept = time.monotonic()
        for lane, jobs in self._pending.items():
            if any(not job.wanted for job in jobs):
                kept = deque(job for job in jobs if job.wanted)
                self.meters.abandoned.inc(len(jobs) - len(kept))
                self._pending[lane] = kept
