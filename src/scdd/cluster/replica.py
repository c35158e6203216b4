"""One copy of a model on Ray Serve: it runs the server's application, without a socket of its own.

A request comes as an ASGI scope and a body, and goes as ASGI messages, one by one, so that a stream stays a stream.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from typing import Any

from starlette.types import Message

from scdd.serve.app import app_of
from scdd.serve.spec import ServeSpec
from scdd.serve.sums import families

END = "scdd.end"
"""The last message: the route that answered, and the replica's meters."""
PLAIN = ("type", "asgi", "http_version", "scheme", "method", "root_path", "path", "raw_path", "query_string", "headers")
"""What of a scope makes sense elsewhere."""


class Replica:
    """What Ray Serve runs, watches and restarts."""

    def __init__(self, spec: ServeSpec, threads: int) -> None:
        """Ready when it returns: the model is loaded, and has written a text."""
        self.service = spec.service(threads)
        self.app: Any = app_of(self.service, token=None, hosts=None)
        self.service.warm_up()
        self._id = secrets.token_hex(8)
        self._tasks: set[asyncio.Future[None]] = set()

    async def ask(self, scope: dict[str, Any], body: bytes) -> AsyncIterator[Message]:
        """The answer's messages. Whoever stops reading them has left."""
        messages: asyncio.Queue[Message | None] = asyncio.Queue()
        left, given = asyncio.Event(), False

        async def receive() -> Message:
            nonlocal given
            if not given:
                given = True
                return {"type": "http.request", "body": body, "more_body": False}
            await left.wait()
            return {"type": "http.disconnect"}

        task = asyncio.ensure_future(self.app(scope, receive, messages.put))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda _: messages.put_nowait(None))
        try:
            while (message := await messages.get()) is not None:
                yield message
            await task
            route = getattr(scope.get("route"), "path", "other")
            yield {"type": END, "route": route, "replica": self._id, "meters": families(self.service.meters.registry)}
        finally:
            left.set()  # the job is given up at the next network evaluation

    def check_health(self) -> None:
        """Ray Serve replaces a replica that raises here."""
        if not self.service.scheduler.alive():
            raise RuntimeError("a worker thread has ended")

    def __del__(self) -> None:
        """Ray Serve has drained it."""
        if hasattr(self, "service"):
            self.service.scheduler.close(wait=0.0)
