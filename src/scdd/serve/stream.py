"""Server-sent events: every step of a walk as it happens."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

from fastapi import Request
from fastapi.responses import StreamingResponse

from scdd.serve.errors import as_api_error, late
from scdd.serve.jobs import Job, StepEvent
from scdd.serve.service import Service
from scdd.serve.waiting import ClientGone, gone

ALIVE = 10.0  # seconds of silence after which a comment says that the connection is still wanted
HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}


def event(kind: str, data: Any) -> bytes:
    """One event of a stream."""
    return f"event: {kind}\ndata: {json.dumps(data, ensure_ascii=False, allow_nan=False)}\n\n".encode()


class Watched:
    """A job whose steps arrive on the event loop."""

    def __init__(self, service: Service, job: Job, request: Request) -> None:
        """Submits the job; ask `taken` before any answer begins."""
        self.service, self.job, self.request = service, job, request
        self._loop = asyncio.get_running_loop()
        self._news: asyncio.Queue[StepEvent | None] = asyncio.Queue()
        job.watch = self._tell
        job.future.add_done_callback(lambda _: self._tell(None))
        service.queue.submit([job])

    async def taken(self) -> None:
        """Returns when the job is in the queue; refused ones raise here."""
        try:
            await asyncio.wait_for(self.service.queue.taken(self.job), self.service.limits.seconds)
        except BaseException as error:
            self.job.drop()
            if isinstance(error, asyncio.TimeoutError):
                raise late(self.service.limits.seconds) from None
            raise

    def _tell(self, news: StepEvent | None) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended, and with it whoever listened
            self._loop.call_soon_threadsafe(self._news.put_nowait, news)

    async def steps(self) -> AsyncIterator[StepEvent | None]:
        """Steps until the job is done; None after some seconds without one. Raises when time runs out."""
        left = asyncio.ensure_future(gone(self.request))
        left.add_done_callback(lambda _: self._news.put_nowait(None))
        end = self.job.arrived + self.service.limits.seconds
        try:
            while True:
                # what is ready is sent, however long that takes
                rest = math.inf if self.job.future.done() else max(0.0, end - time.monotonic())
                try:
                    seen = await asyncio.wait_for(self._news.get(), min(ALIVE, rest))
                except asyncio.TimeoutError:
                    if rest <= ALIVE:
                        raise late(self.service.limits.seconds) from None
                    yield None
                    continue
                if left.done():
                    raise ClientGone
                if seen is None:
                    return
                yield seen
        finally:
            left.cancel()

    def result(self) -> Any:
        """The job's answer, when its steps have ended."""
        return self.job.future.result(timeout=0)


async def denoise(
    service: Service, job: Job, request: Request, facts: Callable[[Any], dict[str, Any]]
) -> StreamingResponse:
    """`start`, then a `frame` for every text and step, then `result` and `done`; or `error`."""
    watched = Watched(service, job, request)
    await watched.taken()
    assert job.run is not None
    plan, texts = job.run.plan, [[_shown(service, token) for token in row] for row in job.run.starts]
    start = {"model": service.name, "seed": plan.seed, "texts": texts, "steps": plan.steps}

    async def events() -> AsyncIterator[bytes]:
        try:
            yield event("start", start)
            async for seen in watched.steps():
                yield b": still here\n\n" if seen is None else event("frame", frame(service, seen))
            yield event("result", facts(watched.result()))
            yield event("done", {})
        except ClientGone:
            return
        except Exception as error:
            yield event("error", as_api_error(error).body)
        finally:
            job.drop()

    return StreamingResponse(events(), media_type="text/event-stream", headers=HEADERS)


def _shown(service: Service, token: int) -> str | None:
    """What a token reads as; null is a mask."""
    return None if token == service.lm.tokenizer.mask_id else service.lm.tokenizer.token(token)


def frame(service: Service, seen: StepEvent) -> dict[str, Any]:
    """A step of one text: [position, what happened, new text or null for a mask], and x_θ of every token there."""
    moves = [
        [seen.offset + i, kind, _shown(service, token)]
        for i, (token, kind) in enumerate(zip(seen.tokens, seen.moved, strict=True))
        if kind
    ]
    p = [None if math.isnan(value) else round(math.exp(value), 4) for value in seen.log_p]
    return {
        "row": seen.row,
        "step": seen.step,
        "steps": seen.steps,
        "t": round(seen.t, 6),
        "s": round(seen.s, 6),
        "offset": seen.offset,
        "moves": moves,
        "p": p,
        "nfe": seen.nfe,
        "counts": dict(zip(("unmasked", "corrected", "remasked"), seen.counts, strict=True)),
    }


def streamed_chunks(
    watched: Watched, head: dict[str, Any], chunks: AsyncIterator[dict[str, Any] | None]
) -> StreamingResponse:
    """A stream as OpenAI's clients read it: each chunk is `head` and its own fields; None says that the connection is still wanted."""

    def line(data: dict[str, Any]) -> bytes:
        return f"data: {json.dumps(data, ensure_ascii=False, allow_nan=False)}\n\n".encode()

    async def events() -> AsyncIterator[bytes]:
        try:
            yield b": diffusion: text arrives when it is final\n\n"
            async for fields in chunks:
                yield b": still here\n\n" if fields is None else line({**head, "choices": [], **fields})
            yield b"data: [DONE]\n\n"
        except ClientGone:
            return
        except Exception as error:
            yield line(as_api_error(error).body)
        finally:
            watched.job.drop()

    return StreamingResponse(events(), media_type="text/event-stream", headers=HEADERS)
