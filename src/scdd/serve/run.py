"""uvicorn, with a drain: after SIGTERM nothing new is taken, and everything taken is answered."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any

import uvicorn
from fastapi import FastAPI

from scdd.core.errors import UserError

GRACE = 5.0  # seconds beyond the time limit of a request


class Server(uvicorn.Server):
    """Says on /healthz that it is going down."""

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """The first signal drains, a second interrupt stops at once."""
        app: Any = self.config.app
        app.state.service.draining = True
        super().handle_exit(sig, frame)


def server(app: FastAPI, host: str, port: int, log_level: str = "info") -> Server:
    """A server that is ready to run."""
    seconds = app.state.service.limits.seconds
    config = uvicorn.Config(
        app,
        host=host,
        port=port,
        log_level=log_level,
        timeout_graceful_shutdown=int(seconds + GRACE) + 1,
        timeout_keep_alive=30,
        server_header=False,
        backlog=256,
    )
    return Server(config)


def run(app: FastAPI, host: str, port: int, log_level: str = "info") -> None:
    """Serve until a signal comes; the app was made with `lent=True`.

    This thread, the process's first, computes, and another one talks: OpenMP's threads wait actively, which small products
    need, only while there are no more of them than cores, and the first thread counts whether it computes or not (a step of
    a nano model on two cores: 9 ms here, 13 ms in another thread).
    """
    made, scheduler = server(app, host, port, log_level), app.state.service.scheduler

    def talk() -> None:
        try:
            made.run()
        except SystemExit:  # uvicorn's way to say that it could not start
            pass
        finally:
            scheduler.close(wait=0.0)

    app.state.service.warm_up()
    for sign in (signal.SIGTERM, signal.SIGINT):
        signal.signal(sign, made.handle_exit)
    thread = threading.Thread(target=talk, name="scdd-http", daemon=True)
    thread.start()
    scheduler.work()
    thread.join()
    if not made.started:
        raise UserError(
            f"--port {port} on {host} cannot be bound: another program may have it; choose another."
        )
