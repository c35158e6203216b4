"""Processes that talk HTTP, as the one that computes sees them: their jobs, and questions to all of them."""

from __future__ import annotations

import math
import multiprocessing
import signal
import socket
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from multiprocessing import resource_tracker
from typing import Any

from scdd.serve import front
from scdd.serve.channel import Kind, Sender
from scdd.serve.jobs import Job
from scdd.serve.orders import plain, refusal
from scdd.serve.sums import Families

SOON = 1.0  # seconds in which fronts tell their meters; those of one that does not are the last ones known


class Front:
    """One of them, as this process sees it."""

    def __init__(self, process: Any, channel: socket.socket) -> None:
        self.process, self.channel = process, channel
        self.send = Sender(channel).send
        self.ready, self.since = threading.Event(), math.inf  # whether it takes connections, and since when
        self.meters: Families = []
        self._lock = threading.Lock()
        self._jobs: dict[int, Job | None] = {}  # None: asked for, and not made yet

    def begins(self) -> None:
        """It takes connections."""
        self.since = time.monotonic()
        self.ready.set()

    def asked(self, numbers: Sequence[int]) -> None:
        """Jobs are about to be made."""
        with self._lock:
            self._jobs.update(dict.fromkeys(numbers))

    def made(self, number: int, job: Job) -> None:
        """A job is there; maybe nobody wants it any more."""
        with self._lock:
            if number in self._jobs:
                self._jobs[number] = job
                return
        job.drop()

    def dropped(self, number: int) -> None:
        """Nobody waits for a job any more, if it was not answered meanwhile."""
        with self._lock:
            job = self._jobs.pop(number, None)
        if job is not None:
            job.drop()

    def fail(self, number: int, error: BaseException) -> None:
        """Say what became of a job, unless somebody has."""
        if self._over(number):
            self.send((Kind.FAILED, number, refusal(error)))

    def answer(self, number: int, future: Future[Any]) -> None:
        """A job is over: in the thread that has computed it."""
        if future.cancelled():
            self.dropped(number)
        elif (error := future.exception()) is not None:
            self.fail(number, error)
        elif self._over(number):
            try:
                self.send((Kind.DONE, number, plain(future.result())))
            except Exception as bug:  # else somebody would wait for ever
                self.send((Kind.FAILED, number, refusal(bug)))

    def _over(self, number: int) -> bool:
        """Whether somebody has waited for it until now."""
        with self._lock:
            return self._jobs.pop(number, self) is not self

    def forget(self) -> None:
        """It has ended: nobody waits for its jobs."""
        with self._lock:
            numbers = list(self._jobs)
        for number in numbers:
            self.dropped(number)


def started(listening: Sequence[socket.socket], setting: front.Setting) -> Front:
    """A front that has begun to start: spawned, not forked, since this process has threads, and maybe a GPU."""
    ours, theirs = socket.socketpair()
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=front.main, args=(theirs, listening), name="scdd-front", daemon=True)
    resource_tracker.ensure_running()  # it would be with the first process, and unblock signals
    before = signal.pthread_sigmask(signal.SIG_BLOCK, front.SIGNALS)
    try:
        process.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        theirs.close()
    made = Front(process, ours)
    made.send((Kind.SETTING, setting))
    return made


class Survey:
    """A question to all fronts, answered when each has said something or time is up."""

    last = 0

    def __init__(self, fronts: Sequence[Front], answer: Callable[[], None]) -> None:
        Survey.last += 1
        self.number, self._missing, self._answer = Survey.last, set(map(id, fronts)), answer
        self._lock = threading.Lock()
        self._timer = threading.Timer(SOON, self._over)
        self._timer.daemon = True
        self._timer.start()

    def told(self, front: Front) -> None:
        """One of them has."""
        with self._lock:
            self._missing.discard(id(front))
            whole = not self._missing
        if whole:
            self._over()

    def _over(self) -> None:
        with self._lock:
            answer, self._answer = self._answer, lambda: None
        self._timer.cancel()
        answer()
