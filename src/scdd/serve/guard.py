"""The door: size of bodies, bearer token, names the server answers to, headers for browsers, and the count of requests."""

from __future__ import annotations

import asyncio
import hmac
import time
from collections.abc import Iterable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from scdd.serve.errors import ApiError, as_api_error
from scdd.serve.metrics import Meters

OPEN = ("/", "/healthz", "/docs", "/openapi.json", "/favicon.ico")
"""Reached without a token: the page and its files hold no secret, and health is for whoever restarts the server."""
LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
READS = ("GET", "HEAD", "OPTIONS")
"""Methods that a link may use: they compute nothing, and no other page can read their answers."""
CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
SAFE = {
    "content-security-policy": CSP,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
}


class Guard:
    """Plain ASGI, so that streams pass through unbuffered and disconnects stay visible."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        body: int,
        token: str | None,
        hosts: Iterable[str] | None,
        meters: Meters,
        patience: float,
    ) -> None:
        """`hosts`: the names that a request's Host may have, and the pages that may send one (None: any). `patience`:
        seconds that a client may take to read what it is sent."""
        self.app, self.body, self.meters, self.patience = app, body, meters, patience
        self.token = token.encode() if token else None
        self.hosts = None if hosts is None else {host.lower() for host in hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        # HEAD is answered as GET; the HTTP server knows what was asked for and keeps the body back
        if scope["method"] == "HEAD":
            scope = {**scope, "method": "GET"}
        passage = _Passage(scope, receive, send, self.body, self.patience)
        start = time.monotonic()
        try:
            refusal = self._refusal(scope)
            if refusal is None:
                await self.app(scope, passage.receive, passage.send)
            else:
                await refusal.response()(scope, receive, passage.send)
        except Exception as error:
            if passage.stalled:
                return
            if passage.begun:  # half an answer: all that is left is to hang up
                raise
            await as_api_error(error).response()(scope, receive, passage.send)
        finally:
            route = getattr(scope.get("route"), "path", "other")
            self.meters.requests.labels(route, str(passage.status)).inc()
            self.meters.seconds.labels(route).observe(time.monotonic() - start)

    def _refusal(self, scope: Scope) -> ApiError | None:
        headers = dict(scope["headers"])
        if self.hosts is not None:
            host = headers.get(b"host", b"").decode("latin-1").lower()
            name = host if host.endswith("]") else host.rpartition(":")[0] or host
            if name not in self.hosts:  # a web page elsewhere may have pointed its own name at this machine
                return _forbidden("that host name: use localhost, or start it with a token", "bad_host")
            origin = headers.get(b"origin", b"").decode("latin-1").lower()
            if origin and scope["method"] not in READS and origin.partition("://")[2] != host:
                return _forbidden("pages other than its own: start it with a token", "bad_origin")
        if self.token is not None and not scope["path"].startswith("/static/") and scope["path"] not in OPEN:
            kind, _, given = headers.get(b"authorization", b"").partition(b" ")
            if kind.lower() != b"bearer" or not hmac.compare_digest(given.strip(), self.token):
                return ApiError(
                    401, "This server asks for a token: send Authorization: Bearer ….", "authentication_error",
                    code="invalid_api_key", headers={"WWW-Authenticate": "Bearer"},
                )  # fmt: skip
        length = headers.get(b"content-length", b"0")
        if not length.isdigit() or int(length) > self.body:
            return too_large(self.body)
        return None


def _forbidden(what: str, code: str) -> ApiError:
    return ApiError(403, f"This server does not answer to {what}.", "permission_error", code=code)


def too_large(most: int) -> ApiError:
    """The body is beyond the limit."""
    return ApiError(413, f"The body is larger than {most} bytes.", code="body_too_large")


class _Passage:
    """One request's messages: bodies without a declared length are counted as they arrive, answers get their headers."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, most: int, patience: float) -> None:
        self._receive, self._send, self._most, self._patience = receive, send, most, patience
        self._total, self._over, self.begun, self.stalled, self.status = 0, False, False, False, 500
        self._head: Message | None = None  # of the answer, until its body comes
        names = {name for name, _ in scope["headers"]}
        # whoever asks for leave to send a body has sent nothing yet that must be read
        self._read = b"expect" in names or names.isdisjoint((b"content-length", b"transfer-encoding"))

    async def receive(self) -> Message:
        """The next part of the body, or the client's leaving."""
        message = await self._receive()
        self._read = not message.get("more_body", False)
        self._total += len(message.get("body", b""))
        if self._total > self._most:
            self._over = True  # whatever the framework makes of this, the answer is 413
            raise too_large(self._most)
        return message

    async def send(self, message: Message) -> None:
        """The next part of the answer."""
        # Most clients read nothing before they have sent everything, and a socket that is closed with something unread in it
        # is reset: they would never see the answer. The connection's own deadline bounds this.
        while not self._read and message["type"] == "http.response.start":
            self._read = not (await self._receive()).get("more_body", False)
        if self._over:
            if message["type"] == "http.response.start":
                await self._refuse()
            return
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self._head = {**message, "headers": [*message["headers"], *_missing(message["headers"])]}
            return
        try:
            await asyncio.wait_for(self._onwards(message), self._patience)
        except asyncio.TimeoutError:
            # whoever stays and reads nothing would keep an answer in memory for ever
            self.stalled = True
            raise

    async def _onwards(self, message: Message) -> None:
        """The head goes with the first part of the body, which comes right after it: one packet, one deadline."""
        if self._head is not None:
            head, self._head, self.begun = self._head, None, True
            await self._send(head)
        await self._send(message)

    async def _refuse(self) -> None:
        answer = too_large(self._most).response()
        self.begun, self.status = True, answer.status_code
        headers = [*answer.raw_headers, *_missing(answer.raw_headers), (b"connection", b"close")]
        await self._send({"type": "http.response.start", "status": self.status, "headers": headers})
        await self._send({"type": "http.response.body", "body": answer.body})


def _missing(headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """The headers for browsers that an answer does not have yet."""
    have = {name.lower() for name, _ in headers}
    return [(k.encode(), v.encode()) for k, v in SAFE.items() if k.encode() not in have]
