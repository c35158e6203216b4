"""The application in front of replicas: every request goes to one of them, by Ray Serve's choice, and its answer comes back.

It stands behind the same `Guard` and the same connections as a server of one model, so whom it lets in, how much they may
send and how long they may take is no other than there.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

from scdd.cluster.replica import END, PLAIN
from scdd.serve.errors import ApiError, late, lost
from scdd.serve.metrics import Meters
from scdd.serve.stream import event
from scdd.serve.sums import REQUESTS, Families, added, families

HEALTH = 5.0  # seconds in which a replica must answer for the server to be well
GRACE = 5.0  # seconds beyond a replica's own limit, and for what it says after the end of an answer


class Front:
    """Plain ASGI. `handle` is Ray Serve's; `failures` are the exceptions that mean a replica's death or absence."""

    def __init__(self, handle: Any, failures: tuple[type[BaseException], ...], seconds: float) -> None:
        self._ask, self._seconds = handle.ask.options(stream=True), seconds
        self._failures: tuple[type[BaseException], ...] = (StopAsyncIteration, *failures)
        self.meters = Meters()
        self._replicas: dict[str, Families] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request; what goes wrong before the answer begins is for `Guard` to say."""
        if (scope["method"], scope["path"]) == ("GET", "/metrics"):
            own = families(self.meters.registry)
            answer = Response(added([own, *self._replicas.values()]), media_type="text/plain; version=0.0.4")
            scope["route"] = Route("/metrics", endpoint=lambda request: answer)
            await answer(scope, receive, send)
            return
        body = await _body(receive)
        if body is None:
            return
        answers = self._ask.remote({name: scope[name] for name in PLAIN if name in scope}, body)
        whole = asyncio.Event()
        left = asyncio.ensure_future(_gone(receive))
        passing = asyncio.ensure_future(self._pass(answers, scope, send, whole))
        try:
            await asyncio.wait({left, passing}, return_when=asyncio.FIRST_COMPLETED)
            if whole.is_set():  # a client that has its answer counts as one that left
                await asyncio.wait({passing}, timeout=GRACE)
        finally:
            left.cancel()
            passing.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await passing
            answers.cancel()  # the replica learns that nobody waits; nothing, where it has finished

    async def _pass(self, answers: Any, scope: Scope, send: Send, whole: asyncio.Event) -> None:
        """A replica's messages to the client; `whole` is set before the last of them."""
        begun: Message | None = None
        while True:
            try:
                message = await self._next(answers, scope["path"])
            except ApiError as why:
                if not whole.is_set():
                    await _broken(why, begun, send)
                return
            if message["type"] == END:
                break
            begun = begun or message
            if message["type"] == "http.response.body" and not message.get("more_body", False):
                whole.set()
            await send(message)
        scope["route"] = Route(message["route"], endpoint=_gone) if message["route"].startswith("/") else None
        self._learn(message["replica"], message["meters"])

    async def _next(self, answers: Any, path: str) -> Message:
        """A replica's next message; ApiError where there will be none."""
        asks_health = path == "/healthz"
        try:
            message: Message = await asyncio.wait_for(
                answers.__anext__(), HEALTH if asks_health else self._seconds + GRACE
            )
            return message
        except asyncio.TimeoutError:
            raise lost() if asks_health else late(self._seconds) from None
        except self._failures:
            raise lost() from None

    def _learn(self, replica: str, meters: Families) -> None:
        # a counter changes only while a request is answered, so the last answer's are right; those of a replica that has gone still count
        self._replicas[replica] = [family for family in meters if family.name not in REQUESTS]


async def _broken(why: ApiError, begun: Message | None, send: Send) -> None:
    """Say it as a status, or in a stream that has begun, as its last event; half of anything else is cut off."""
    if begun is None:
        raise why
    kinds = [value for name, value in begun["headers"] if name == b"content-type"]
    if not any(kind.startswith(b"text/event-stream") for kind in kinds):
        raise ConnectionError("a replica died in the middle of an answer")
    await send({"type": "http.response.body", "body": event("error", why.body), "more_body": False})


async def _body(receive: Receive) -> bytes | None:
    """The whole body, which `Guard` bounds; None if the client has left."""
    parts: list[bytes] = []
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        parts.append(message.get("body", b""))
        if not message.get("more_body", False):
            return b"".join(parts)


async def _gone(receive: Receive) -> None:
    """Returns when the client has left."""
    with contextlib.suppress(asyncio.CancelledError):
        while (await receive())["type"] != "http.disconnect":
            pass
