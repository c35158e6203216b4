"""Waiting for jobs: until they are answered, their client leaves, or time runs out."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from typing import Any

from fastapi import Request

from scdd.serve.errors import late
from scdd.serve.jobs import Abandoned, Job


class ClientGone(Exception):
    """Whoever asked has left."""


async def settled(jobs: Sequence[Job], request: Request, seconds: float) -> list[Any]:
    """The answers of jobs that were submitted, if they come within so many seconds of their own coming."""
    loop, here = asyncio.get_running_loop(), threading.get_ident()
    # one for all that may happen: tasks cost more than what they wait for
    news: asyncio.Future[None] = loop.create_future()
    waiting = len(jobs)

    def happened(*_: object) -> None:
        if not news.done():
            news.set_result(None)

    def answered(future: Future[Any]) -> None:
        nonlocal waiting
        waiting -= 1
        if not waiting or future.cancelled() or future.exception() is not None:
            happened()

    def told(future: Future[Any]) -> None:
        if threading.get_ident() == here:  # the answer has come by a channel, which this loop reads
            answered(future)
            return
        with suppress(RuntimeError):  # the loop has ended, and with it whoever listened
            loop.call_soon_threadsafe(answered, future)

    for job in jobs:
        job.future.add_done_callback(told)
    left = asyncio.ensure_future(gone(request))
    left.add_done_callback(happened)
    late_at = loop.call_later(max(0.0, jobs[0].arrived + seconds - time.monotonic()), happened)
    try:
        await news
        failed = next((job for job in jobs if job.future.done() and _error(job.future) is not None), None)
        if failed is not None or all(job.future.done() for job in jobs):
            return [job.future.result() for job in ([failed] if failed is not None else jobs)]
        if left.done():
            raise ClientGone
        raise late(seconds)
    except Abandoned:
        raise ClientGone from None
    finally:
        late_at.cancel()
        left.cancel()
        for job in jobs:
            job.future.cancel()


def _error(future: Future[Any]) -> BaseException | None:
    return CancelledError() if future.cancelled() else future.exception()


async def gone(request: Request) -> None:
    """Returns when the client has left; the body has been read by then."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
