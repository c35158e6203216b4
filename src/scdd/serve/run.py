"""uvicorn, with a drain: after SIGTERM nothing new is taken, and everything taken is answered."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import signal
import socket
import threading
from collections.abc import Callable
from typing import Any

import uvicorn
from fastapi import FastAPI
from starlette.types import ASGIApp

from scdd.core.errors import UserError
from scdd.serve import connections
from scdd.serve.spec import Endpoint

GRACE = 5.0  # seconds beyond the time limit of a request


class Server(uvicorn.Server):
    """Says where it listens, in place of uvicorn's own account of its start, and watches over its connections."""

    def __init__(self, config: uvicorn.Config, patience: float, ready: Callable[[str], None] | None = None) -> None:
        """`patience`: most seconds that a client may take for anything."""
        super().__init__(config)
        self._patience, self._ready = patience, ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Bind, then say so."""
        connections.calm(asyncio.get_running_loop())
        await super().startup(sockets)
        if not self.started:
            return
        for each in (sock for server in self.servers for sock in server.sockets):
            with each.dup() as listening:  # the loop takes its batch for the length of the system's queue
                listening.listen(connections.WAITING)
        self._watch = asyncio.ensure_future(connections.watch(self.server_state.connections, self._patience))
        if self._ready is not None:
            self._ready(address_of(self.servers[0].sockets[0]))


def address_of(sock: Any) -> str:
    """Where a socket listens."""
    host, port = sock.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def server(
    app: FastAPI, host: str, port: int, log_level: str = "info", ready: Callable[[str], None] | None = None
) -> Server:
    """A server that can be run; `ready` is told its address when it listens."""
    return server_of(app, app.state.service.limits.seconds, Endpoint(host, port, log_level=log_level), ready)


def server_of(
    app: ASGIApp, seconds: float, endpoint: Endpoint, ready: Callable[[str], None] | None = None, among: int = 1
) -> Server:
    """The same of any application. `seconds`: the time limit of a request; `among`: processes that share the connections."""
    log_level = endpoint.log_level
    config = uvicorn.Config(
        app,
        host=endpoint.host,
        port=endpoint.port,
        loop="asyncio",  # whatever else is installed: what is known of its connections holds for this one
        http=type("Connection", (connections.Connection,), {"most": max(1, connections.room() // among)}),
        ws="none",
        log_level=log_level,
        timeout_graceful_shutdown=int(seconds + GRACE) + 1,
        timeout_keep_alive=30,
        server_header=False,
        # several take turns, so that no one gets a whole crowd while the others have nothing to do
        backlog=connections.BATCH if among == 1 else 1,
    )
    if log_level == "info":
        logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
    logging.getLogger("uvicorn.access").addFilter(connections.WITHOUT_QUERY)
    return Server(config, seconds, ready)


def run(app: FastAPI, host: str, port: int, log_level: str, ready: Callable[[str], None]) -> None:
    """Serve until a signal comes; the app was made with `lent=True`.

    This thread, the process's first, computes, and another one talks: OpenMP's threads wait actively, which small products
    need, only while there are no more of them than cores, and the first thread counts whether it computes or not (a step of
    a nano model on two cores: 9 ms here, 13 ms in another thread).
    """
    sockets = bound(host, port)  # before anything that takes long
    made, scheduler = server(app, host, port, log_level, ready), app.state.service.scheduler
    app.state.service.warm_up()
    keep()
    until_signalled(made, sockets, scheduler.work, lambda: scheduler.close(wait=0.0))


def keep() -> None:
    """What is here stays: to look through all of torch's objects again and again would stop everybody for a tenth of a second."""
    gc.collect()
    gc.freeze()


def until_signalled(
    made: Server, sockets: list[socket.socket], meanwhile: Callable[[], object], after: Callable[[], None]
) -> None:
    """Talk in another thread, on sockets that are `bound`, until a signal comes, and then `after`; this thread does something else
    meanwhile."""

    def talk() -> None:
        try:
            made.run(sockets=sockets)
        except (SystemExit, OSError):  # it could not start: somebody has begun to listen there since
            if made.started:
                raise
        finally:
            after()

    before = {sign: signal.signal(sign, made.handle_exit) for sign in (signal.SIGTERM, signal.SIGINT)}
    thread = threading.Thread(target=talk, name="scdd-http", daemon=True)
    thread.start()
    try:
        meanwhile()
        thread.join()
    finally:
        for sign, handler in before.items():
            signal.signal(sign, handler)
    if not made.started:
        raise unbound(made.config.host, made.config.port)


def bound(host: str, port: int) -> list[socket.socket]:
    """Sockets for every address that a host has here, by the loop's own rules; they do not listen yet."""

    async def bind() -> list[socket.socket]:
        made = await asyncio.get_running_loop().create_server(asyncio.Protocol, host, port, start_serving=False)
        with contextlib.closing(made):
            return [sock.dup() for sock in made.sockets]

    try:
        return asyncio.run(bind())
    except OSError as error:
        raise unbound(host, port) from error


def unbound(host: str, port: int) -> UserError:
    """The address cannot be had."""
    return UserError(
        f"port {port} of {host} cannot be bound: another program may have it, or the address is not this machine's; choose "
        "another.",
        "port",
    )
