"""The job queue of a process that talks HTTP: jobs go to the process that computes, and what becomes of them comes back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any

from scdd.serve.channel import Kind, Message, Unpacker, packed
from scdd.serve.errors import lost
from scdd.serve.jobs import Job
from scdd.serve.metrics import Meters
from scdd.serve.orders import answer_of, order_of, refused
from scdd.serve.sums import families

PATIENCE = 5.0  # seconds in which the other process must answer for the server to be well


class RemoteQueue(asyncio.Protocol):
    """`job_queue.JobQueue`; all of it happens on the event loop."""

    def __init__(self, meters: Meters, drain: Callable[[bool], None]) -> None:
        """`drain` is told to take no more connections and end, maybe at once."""
        self._meters, self._drain = meters, drain
        self._jobs: dict[int, Job] = {}
        # by number: questions, and watched jobs that are not taken yet
        self._asked: dict[int, asyncio.Future[Any]] = {}
        self._number, self._unpacker = 0, Unpacker()
        self._transport: asyncio.Transport | None = None
        self.go = asyncio.get_running_loop().create_future()
        """Done when connections may be taken; false where the other process has ended first."""

    # -- the queue ----------------------------------------------------------------------------------------------------

    def submit(self, jobs: Sequence[Job]) -> None:
        """Send them; refusals come back as their futures' exceptions."""
        if self._transport is None:
            raise lost()
        first, watched = self._number, jobs[0].watch is not None
        self._number += len(jobs)
        if watched:
            self._asked[first] = asyncio.get_running_loop().create_future()
        for number, job in enumerate(jobs, first):
            self._jobs[number] = job
            job.future.add_done_callback(partial(self._over, number))
        self.send(Kind.ASK, first, jobs[0].arrived, watched, [order_of(job) for job in jobs])

    async def taken(self, job: Job) -> None:
        """Returns when a watched job is in the queue; a refusal is raised."""
        number = next((number for number, each in self._jobs.items() if each is job), None)
        if number in self._asked:
            await self._asked[number]
        if job.future.done():
            job.future.result()

    async def waiting(self) -> int:
        """Jobs in the queue."""
        return int(await self._ask(Kind.WAITING))

    async def metrics(self) -> bytes:
        """The page for Prometheus, of all processes together."""
        return bytes(await self._ask(Kind.METRICS))

    async def close(self) -> None:
        """The other process learns it by the channel's end."""

    async def _ask(self, kind: Kind) -> Any:
        number = self._number
        self._number += 1
        answer = self._asked[number] = asyncio.get_running_loop().create_future()
        self.send(kind, number)
        try:
            return await asyncio.wait_for(answer, PATIENCE)
        except asyncio.TimeoutError:
            raise lost() from None
        finally:
            self._asked.pop(number, None)

    def _over(self, number: int, future: Future[Any]) -> None:
        """A job is answered, or dropped: then the other process is told, and will not say whether it was taken."""
        self._answer(number, None)
        if self._jobs.pop(number, None) is not None and future.cancelled() and self._transport is not None:
            self.send(Kind.DROP, number)

    # -- the channel --------------------------------------------------------------------------------------------------

    def send(self, *message: Any) -> None:
        """To the process that computes; where that has ended, so does all that is asked of it."""
        if self._transport is None:
            raise lost()
        self._transport.write(packed(message))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The channel is there."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Messages."""
        for message in self._unpacker.messages(data):
            self._hear(message)

    def connection_lost(self, exc: Exception | None) -> None:
        """The process that computes has ended: all that it had is answered with that, and this one ends, too."""
        self._transport = None
        if not self.go.done():
            self.go.set_result(False)
        for job in list(self._jobs.values()):
            _settle(job, lambda future: future.set_exception(lost()))
        for answer in list(self._asked.values()):
            _set(answer, error=lost())
        self._drain(False)

    def _hear(self, message: Message) -> None:
        match message:
            case Kind.DONE, number, told if job := self._jobs.get(number):
                try:
                    answer = answer_of(job, told)
                except Exception as error:
                    _settle(job, lambda future, error=error: future.set_exception(error))  # type: ignore[misc]
                else:
                    _settle(job, lambda future: future.set_result(answer))
            case Kind.FAILED, number, told if job := self._jobs.get(number):
                _settle(job, lambda future: future.set_exception(refused(told)))
            case Kind.STEP, number, seen if job := self._jobs.get(number):
                if job.watch is not None:
                    job.watch(seen)
            case Kind.TAKEN, number:
                self._answer(number, None)
            case Kind.GIVEN, number, told:
                self._answer(number, told)
            case Kind.METERS, turn:
                self.send(Kind.METERS, turn, families(self._meters.registry))
            case (Kind.GO,):
                self.go.set_result(True)
            case (Kind.DRAIN | Kind.QUIT as kind,):
                self._drain(kind == Kind.QUIT)

    def _answer(self, number: int, told: Any) -> None:
        if (answer := self._asked.pop(number, None)) is not None:
            _set(answer, told)


def _settle(job: Job, how: Callable[[Future[Any]], None]) -> None:
    if not job.future.done():
        how(job.future)


def _set(answer: asyncio.Future[Any], told: Any = None, error: Exception | None = None) -> None:
    if answer.done():
        return
    if error is None:
        answer.set_result(told)
    else:
        answer.set_exception(error)
