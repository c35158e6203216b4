"""A tiny model behind a real server on a free port."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from scdd.lm.loading import load
from scdd.lm.model import LM
from tests import tiny
from tests.serve.client import Client

Serving = Callable[..., AbstractContextManager[Client]]
SMALL = {"length": 100, "steps": 256, "texts": 4, "workers": 2, "batch": 8, "seconds": 30.0}


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.checkpoint(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="session")
def lm(folder: Path) -> LM:
    return load(folder, device="cpu")


@pytest.fixture(scope="session")
def serving(lm: LM) -> Serving:
    """Start a server of one's own: `with serving({"queue": 2}, token=…) as client`."""
    for needed in ("fastapi", "uvicorn", "prometheus_client"):
        pytest.importorskip(needed, reason=f"needs {needed}: pip install -e '.[serve]'")
    from scdd.serve import Limits, create_app
    from scdd.serve.run import server

    @contextmanager
    def start(limits: dict[str, Any] | None = None, model: LM = lm, **options: Any) -> Iterator[Client]:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        app = create_app(model, Limits(**{**SMALL, **(limits or {})}), threads=1, **options)
        running = server(app, "127.0.0.1", port, "warning")
        thread = threading.Thread(target=running.run, daemon=True)
        thread.start()
        while not running.started:
            assert thread.is_alive()
            time.sleep(0.01)
        try:
            yield Client(port, options.get("token"))
        finally:
            running.should_exit = True
            thread.join(30)

    return start


@pytest.fixture(scope="session")
def client(serving: Serving) -> Iterator[Client]:
    """One server for all tests that do not need a special one."""
    with serving() as made:
        yield made


@pytest.fixture(scope="session")
def bundled() -> LM:
    """The model that comes with the package."""
    return load(device="cpu")


@pytest.fixture(scope="session")
def bundled_client(serving: Serving, bundled: LM) -> Iterator[Client]:
    """One server of that model, for the tests whose texts must make sense."""
    with serving({"length": 508, "workers": 1}, model=bundled) as made:
        yield made
