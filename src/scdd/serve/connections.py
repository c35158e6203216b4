"""Connections: how many there may be, and how long a client may take to say what it wants.

The HTTP server underneath waits for ever for the rest of a request, and takes connections until the process has no file
descriptors left for them.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import math
import time
from typing import Any, Literal

import h11
from starlette.responses import Response
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from scdd.serve.errors import ApiError, full, unfinished

log = logging.getLogger("scdd.serve")
MOST = 2048  # connections
BATCH = 32  # that the event loop takes at once, and again before it has looked at them
WAITING = 1024  # that the system keeps until then: a crowd that comes at once is not turned away
OTHERS = 256  # descriptors for everything else, and for connections that nobody has looked at
EVERY = 0.5  # seconds between two looks at all connections
AGAIN = 600.0  # seconds before the same complaint is worth another line
SPENT = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)

Owed = Literal["idle", "head", "body", "close"]
PATIENCE: dict[Owed, float] = {"idle": 30.0, "head": 10.0, "body": 30.0, "close": 30.0}
"""Seconds for the first byte of a request, the rest of its head, its body, and for reading the end of an answer."""


class Corked:
    """A transport that keeps the head of an answer until its body comes, which it does at once: one call to the system instead of two."""

    def __init__(self, inner: asyncio.Transport) -> None:
        self._inner, self._held, self._loop = inner, b"", asyncio.get_running_loop()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def write(self, data: bytes) -> None:
        """Now, with what was kept; or with what comes next, if that is before the loop goes on."""
        if self._held:
            data, self._held = self._held + data, b""
            self._inner.write(data)
        elif data:
            self._held = data
            self._loop.call_soon(self.flush)

    def flush(self) -> None:
        """What was kept goes alone."""
        if self._held:
            self.write(b"")

    def close(self) -> None:
        """After what was kept."""
        self.flush()
        self._inner.close()


class Connection(H11Protocol):
    """uvicorn's, which knows what its client owes and since when, and hangs up on whoever owes it for too long."""

    most = MOST

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Where there are too many, those that have been waiting longest make room; requests under way stay."""
        self._key: tuple[Owed | None, Any] = ("idle", None)
        self._since = time.monotonic()
        if len(self.connections) >= self.most:
            # a share of them: then a flood costs one look at all connections for many newcomers
            waiting = sorted((each for each in self._others() if each.owed() is not None), key=lambda each: each._since)
            for each in waiting[: max(1, self.most // 16)]:
                each.hang_up()
            if not waiting:
                self.app = _full
        super().connection_made(Corked(transport))  # type: ignore[arg-type]

    def _others(self) -> list[Connection]:
        return [each for each in self.connections if isinstance(each, Connection)]

    def owed(self) -> Owed | None:
        """What the client has to do next; None while it waits for us."""
        if self.transport.is_closing():
            return "close"
        if self.conn.their_state is h11.SEND_BODY:
            return "body"
        if self.conn.their_state is h11.IDLE:
            return "head" if self.conn.trailing_data[0] else "idle"
        return None

    def look(self, patience: float) -> None:
        """Hang up if the client has owed the same thing for too long. `patience`: most seconds, whatever it is."""
        now, key = time.monotonic(), (self.owed(), self.cycle)
        if key != self._key:
            self._key, self._since = key, now
        elif key[0] is not None and now - self._since > min(PATIENCE[key[0]], patience):
            self.hang_up(unfinished())

    def hang_up(self, why: ApiError | None = None) -> None:
        """Close, with an answer where one is due; at once, where closing has been tried."""
        if self.transport.is_closing():
            self.transport.abort()
            return
        if why is not None and self.owed() in ("head", "body") and self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            self._write(why.response())
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True  # whoever waits for the body learns that it is over
            self.cycle.message_event.set()
        self.transport.close()

    def _write(self, answer: Response) -> None:
        headers = [*answer.raw_headers, (b"connection", b"close")]
        parts = (
            h11.Response(status_code=answer.status_code, headers=headers),
            h11.Data(data=bytes(answer.body)),
            h11.EndOfMessage(),
        )
        self.transport.write(b"".join(self.conn.send(part) or b"" for part in parts))


async def _full(scope: Scope, receive: Receive, send: Send) -> None:
    """The application of connections for which there is no room."""
    await full().response()(scope, receive, send)


async def watch(connections: set[Any], patience: float) -> None:
    """Look at all connections again and again."""
    while True:
        await asyncio.sleep(min(EVERY, patience / 4))
        for each in list(connections):
            asyncio.get_running_loop().call_soon(each.look, patience)  # its errors are then its own


def room() -> int:
    """Connections that there may be, after asking the system for as many descriptors as are useful."""
    try:
        import resource
    except ImportError:  # not Unix
        return 512
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted, endless = MOST + OTHERS, resource.RLIM_INFINITY
    if soft == endless or soft >= wanted:
        return MOST
    soft = wanted if hard == endless else min(hard, wanted)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return soft - min(OTHERS, soft // 2)


def calm(loop: asyncio.AbstractEventLoop) -> None:
    """Say once that connections cannot be taken for want of descriptors: the loop says it hundreds of times a second."""
    said = -math.inf

    def handle(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        nonlocal said
        error = context.get("exception")
        if not (isinstance(error, OSError) and error.errno in SPENT and "accept" in context.get("message", "")):
            loop.default_exception_handler(context)
        elif time.monotonic() - said > AGAIN:
            said = time.monotonic()
            log.error("Connections cannot be taken (%s): raise the limit of open files (ulimit -n).", error.strerror)

    loop.set_exception_handler(handle)


class WithoutQuery(logging.Filter):
    """Access logs hold paths: what comes after the ? may be a token or somebody's text."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Shorten the path; nothing is left out."""
        if isinstance(record.args, tuple) and len(record.args) == 5:
            path = str(record.args[2]).partition("?")[0]
            record.args = (*record.args[:2], path[:200], *record.args[3:])
        return True


WITHOUT_QUERY = WithoutQuery()
