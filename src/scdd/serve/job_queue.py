"""Where requests hand in their jobs: the scheduler of this process, or that of another one (`remote_queue`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from fastapi.concurrency import run_in_threadpool

from scdd.serve.jobs import Job
from scdd.serve.scheduler import Scheduler


class JobQueue(Protocol):
    """Asked on the event loop."""

    def submit(self, jobs: Sequence[Job]) -> None:
        """Queue all of these jobs or none: a refusal is raised, here or by their futures."""

    async def taken(self, job: Job) -> None:
        """Returns when the job is in the queue; a refusal is raised."""

    async def waiting(self) -> int:
        """Jobs in the queue."""

    async def metrics(self) -> bytes:
        """The page for Prometheus."""

    async def close(self) -> None:
        """No request will come any more."""


class LocalQueue:
    """The queue of a scheduler of this process."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self.submit = scheduler.submit

    async def taken(self, job: Job) -> None:
        """What is submitted here is taken."""

    async def waiting(self) -> int:
        """Jobs in the queue."""
        return self._scheduler.waiting()

    async def metrics(self) -> bytes:
        """The page for Prometheus."""
        return self._scheduler.meters.text()

    async def close(self) -> None:
        """Finish what was taken."""
        await run_in_threadpool(self._scheduler.close)
