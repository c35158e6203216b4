"""A process that talks HTTP: it understands requests and writes answers, and leaves the computing to another (`fronts`).

It runs the server's application, with a queue that is elsewhere. When the process that computes ends, whatever way, the channel between them
does too: then all that is under way is answered with 503, and this process ends.
"""

from __future__ import annotations

import asyncio
import pickle
import signal
import socket
from collections.abc import Sequence
from typing import NamedTuple

from scdd.lm.model import LM
from scdd.serve.app import app_of
from scdd.serve.channel import Kind, first
from scdd.serve.limits import Limits
from scdd.serve.metrics import Meters
from scdd.serve.remote_queue import RemoteQueue
from scdd.serve.run import Server, keep, server_of
from scdd.serve.service import Service
from scdd.serve.spec import Endpoint


class Setting(NamedTuple):
    """What a front is told as it starts; all of it can be pickled."""

    lm: bytes
    """The model without its weights, pickled already: the way of torch's own would share tensors between processes."""
    name: str
    limits: Limits
    endpoint: Endpoint
    among: int
    """How many there are."""
    born: int
    """When the server began, in seconds since 1970."""


SIGNALS = (signal.SIGINT, signal.SIGTERM)
"""Terminals and supervisors send these to all processes: until a front serves, that is not its business. It is started with them blocked."""


def main(channel: socket.socket, listening: Sequence[socket.socket]) -> None:
    """Until the process that computes says so, or has ended."""
    for sign in SIGNALS:
        signal.signal(sign, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    try:
        # by the channel, since a process that is started is waited for until it has read its arguments, or for ever if it dies first
        kind, setting = first(channel)
    except (EOFError, OSError):
        return
    assert kind == Kind.SETTING
    asyncio.run(_main(channel, listening, setting))


async def _main(channel: socket.socket, listening: Sequence[socket.socket], setting: Setting) -> None:
    lm: LM = pickle.loads(setting.lm)
    meters, servers = Meters(), list[Server]()
    ending = False

    def drain(at_once: bool) -> None:
        nonlocal ending
        ending = True
        for server in servers:
            server.should_exit, server.force_exit = True, server.force_exit or at_once

    queue = RemoteQueue(meters, drain)
    channel.setblocking(False)
    await asyncio.get_running_loop().create_connection(lambda: queue, sock=channel)
    service = Service.at(queue, lm, setting.limits, setting.name, meters, setting.born)
    app = app_of(service, setting.endpoint.token, setting.endpoint.hosts)
    server = server_of(app, setting.limits.seconds, setting.endpoint, lambda _: queue.send(Kind.READY), setting.among)
    servers.append(server)
    server.should_exit = ending
    keep()
    if await queue.go:
        await server.serve(sockets=list(listening))
