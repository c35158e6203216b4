"""Who has the network when: a worker's turns.

In every turn each batch of texts takes one step, one short piece of work is done (a score, a one-pass correction), and a long
one (edits, the choice among fillings) makes one evaluation: nothing waits for the end of anything else.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from torch import Tensor

from scdd.core.denoiser import Denoiser
from scdd.serve.batches import Batches
from scdd.serve.jobs import Abandoned, Job
from scdd.serve.metrics import Meters
from scdd.serve.sharing import Sharing

Work = tuple[Job, Callable[[], Any]]


class Turns:
    """Everything that one worker has taken."""

    def __init__(self, denoiser: Denoiser, sharing: Sharing, meters: Meters, most: int) -> None:
        """`most`: texts under way at a time."""
        self.meters = meters
        self._made_of = (denoiser, sharing, meters, most, self._drawn, self._fail)
        self.batches = Batches(*self._made_of)
        self.refill: Callable[[], object] = lambda: None
        """Takes more jobs; asked between two evaluations of a long piece of work."""
        self._short: deque[Work] = deque()
        self._long: deque[Work] = deque()
        self._working: list[Job] = []  # a long piece of work, and inside of it maybe a short one
        self._broken: Exception | None = None
        self._begun = False  # whether the long one has made an evaluation
        self._done = 0.0  # cost of the work that was done
        self.seconds = 0.0  # since `spent` was asked for

    @property
    def idle(self) -> bool:
        """Whether there is nothing to do."""
        return not (self.batches.jobs or self._short or self._long or self._working)

    def room(self, lane: str) -> int:
        """How much more of a kind can be begun: texts as there are slots, pieces of work one at a time."""
        if lane == "texts":
            return self.batches.room
        long = any(job.long for job in self._working)
        return not self._short if lane == "short" else not (self._long or long)

    def jobs(self) -> list[Job]:
        """Whatever has been taken and is not done."""
        return [*self.batches.jobs, *self._working, *(job for job, _ in (*self._short, *self._long))]

    def spent(self) -> tuple[float, float]:
        """(Cost, seconds) of what was done since this was last asked."""
        found = self._done + self.batches.spent, self.seconds
        self._done = self.batches.spent = self.seconds = 0.0
        return found

    def take(self, job: Job) -> None:
        """Begin a job."""
        if job.run is not None:
            self.batches.take(job)
        else:
            assert job.work is not None
            self._queue(job, job.work)

    def turn(self) -> None:
        """One turn. The long piece of work that begins in it has further turns happen inside of it, until it is done."""
        self.batches.step()
        if self._short:
            self._do(*self._short.popleft())
        if self._long and not self._working:
            self._begun = False
            self._do(*self._long.popleft())

    def give_up(self, error: Exception) -> None:
        """Something went wrong that is no job's own: all that was taken is answered with it, and others can come."""
        jobs = [job for job in self.jobs() if not job.future.done()]
        self.batches = Batches(*self._made_of)
        self._short.clear()
        self._long.clear()
        self._broken = None
        for job in jobs:
            self._fail(job, error)

    def before(self, z: Tensor) -> None:
        """An evaluation that is no step is about to happen in this thread."""
        if not self._working:
            return
        job = self._working[-1]
        if len(self._working) == 1 and job.long:
            if self._begun:
                self._inside()
            self._begun = True
        if not job.wanted:
            raise Abandoned
        self.meters.evaluations.inc()
        self.meters.evaluated_rows.inc(z.shape[0])

    def _inside(self) -> None:
        try:
            self.refill()
            self.turn()
        except Exception as error:  # not the fault of the work that it happens in
            self._broken = error
            raise

    def _queue(self, job: Job, work: Callable[[], Any]) -> None:
        (self._long if job.long else self._short).append((job, work))

    def _drawn(self, job: Job, drawn: Any) -> None:
        """A job's texts are there: samples, or the texts themselves (`Job.bare`)."""
        if (finish := job.finish) is None:
            job.future.set_result(drawn)
        else:
            self._queue(job, lambda: finish(drawn))

    def _do(self, job: Job, work: Callable[[], Any]) -> None:
        self._working.append(job)
        try:
            if not job.wanted:
                raise Abandoned
            answer = work()
        except Exception as error:
            self._fail(job, error)
            if error is self._broken:
                raise
        else:
            job.future.set_result(answer)
            self._done += job.left
            job.left = 0.0
        finally:
            self._working.pop()

    def _fail(self, job: Job, error: Exception) -> None:
        if isinstance(error, Abandoned):
            self.meters.abandoned.inc()
        job.future.set_exception(error)
