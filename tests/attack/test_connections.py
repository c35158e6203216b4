"""Clients that connect and say little, or nothing, or too much."""

from __future__ import annotations

import json
import re
import resource
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

pytest.importorskip("fastapi", reason="needs fastapi: pip install 'scdd[serve]'")

from scdd.serve import connections
from tests.serve.client import Client
from tests.serve.conftest import Serving, folder, lm, serving  # noqa: F401

HALVES = {
    "idle": b"",
    "half a head": b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-A",
    "half a body": b'POST /v1/generate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 90\r\n\r\n{"pro',
    "half a refused body": b"POST /nowhere HTTP/1.1\r\nHost: localhost\r\nContent-Length: 90\r\n\r\n{",
    "half a chunk": b"POST /v1/score HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{",
}


def connected(port: int, said: bytes = b"") -> socket.socket:
    made = socket.create_connection(("127.0.0.1", port), timeout=10)
    made.sendall(said)
    return made


def heard(one: socket.socket) -> bytes:
    """Everything until the other side hangs up."""
    parts = []
    try:
        while part := one.recv(65536):
            parts.append(part)
    except ConnectionResetError:
        pass
    return b"".join(parts)


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "PATIENCE", dict.fromkeys(connections.PATIENCE, 0.4))
    monkeypatch.setattr(connections, "EVERY", 0.1)


def test_unfinished_requests_end_at_their_deadline(hurried: None, serving: Serving) -> None:  # noqa: F811
    with serving() as client, ExitStack() as stack:
        begun = time.monotonic()
        open_ = {name: stack.enter_context(connected(client.port, said)) for name, said in HALVES.items()}
        said = {name: heard(one) for name, one in open_.items()}
        assert time.monotonic() - begun < 5
        assert said.pop("idle") == b""
        for name, answer in said.items():
            assert answer.startswith(b"HTTP/1.1 408 "), name
            assert "not complete in time" in json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["message"]
        assert client.get("/healthz").status == 200


@pytest.mark.parametrize("said", [HALVES["half a head"], HALVES["half a body"]], ids=["head", "body"])
def test_a_trickle_does_not_put_the_deadline_off(hurried: None, serving: Serving, said: bytes) -> None:  # noqa: F811
    with serving() as client, connected(client.port, said) as one:
        begun = time.monotonic()

        def trickle() -> None:
            while time.monotonic() - begun < 5:
                one.sendall(b"a")
                time.sleep(0.05)

        with pytest.raises(OSError, match=r"reset|pipe"):
            trickle()


def test_answers_take_their_time_and_connections_stay(hurried: None, serving: Serving) -> None:  # noqa: F811
    """Deadlines are for what the client owes, not for us."""
    with serving({"steps": 20000}) as client:
        begun = time.monotonic()
        steps = 32
        while time.monotonic() - begun < 0.6:  # until one request takes longer than all deadlines
            begun, steps = time.monotonic(), steps * 2
            assert client.post("/v1/generate", {"length": 30, "steps": steps}).status == 200
        connection = HTTPConnection("127.0.0.1", client.port)
        for _ in range(6):
            connection.request("GET", "/healthz")
            assert connection.getresponse().read()
            time.sleep(0.15)
        connection.close()


def test_those_who_wait_make_room(monkeypatch: pytest.MonkeyPatch, serving: Serving) -> None:  # noqa: F811
    monkeypatch.setattr(connections, "room", lambda: 32)
    with serving() as client, ExitStack() as stack:
        for said in HALVES.values():
            for _ in range(60):
                stack.enter_context(connected(client.port, said))
            assert client.post("/v1/generate", {"length": 12, "steps": 2}).status == 200


def test_where_all_are_busy_the_next_is_told_so(monkeypatch: pytest.MonkeyPatch, serving: Serving) -> None:  # noqa: F811
    monkeypatch.setattr(connections, "room", lambda: 2)
    with serving({"steps": 20000, "workers": 1}) as client:
        asked = [client.open("POST", "/v1/denoise", {"task": "generate", "steps": 20000}) for _ in range(2)]
        answer = client.post("/v1/generate", {})
        assert (answer.status, answer.error["code"]) == (503, "too_many_connections")
        assert answer.headers["retry-after"] == "5"
        for connection, _ in asked:
            connection.sock.close()
            connection.close()


def refused(client: Client, path: str, body: bytes, **headers: str) -> Any:
    """What urllib, which reads nothing before it has sent everything, makes of it."""
    with pytest.raises(HTTPError) as caught:
        urlopen(Request(client.url + path, body, {"Content-Type": "application/json", **headers}), timeout=20)
    with caught.value as answer:
        return answer.code, json.load(answer)["error"]["code"]


def test_large_bodies_get_their_answer(serving: Serving) -> None:  # noqa: F811
    large = b"a" * 20_000_000
    with serving(token="s3cret") as client:
        known = {"Authorization": "Bearer s3cret"}
        assert refused(client, "/v1/generate", large, **known) == (413, "body_too_large")
        assert refused(client, "/v1/nowhere", large[:250_000], **known) == (404, "not_found")
        assert refused(client, "/v1/generate", large[:250_000]) == (401, "invalid_api_key")
        pieces = iter([large[:500_000]] * 20)
        assert refused(client, "/v1/generate", pieces, **known) == (413, "body_too_large")  # type: ignore[arg-type]
        # whoever asks first is told before it has sent anything
        head = (
            b"POST /v1/generate HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9999999\r\nExpect: 100-continue\r\n\r\n"
        )
        with connected(client.port, head.replace(b"\r\n\r\n", b"\r\nAuthorization: Bearer s3cret\r\n\r\n")) as one:
            assert one.recv(4096).startswith(b"HTTP/1.1 413 ")


@contextmanager
def process(model: Path, descriptors: int, *options: str) -> Iterator[tuple[Client, Any, int]]:
    """`scdd serve` with a limit of open files, what it has said so far, and the number of its process."""
    command = [sys.executable, "-m", "scdd", "serve", "--model", str(model), "--port", "0", "--device", "cpu"]
    command += options
    with tempfile.TemporaryFile("w+") as log:
        run = subprocess.Popen(
            ["sh", "-c", f'ulimit -n {descriptors} && exec "$@"', "sh", *command], stderr=log, stdout=log
        )

        def said() -> str:
            log.seek(0)
            return log.read()

        try:
            while not (found := re.search(r"http://127\.0\.0\.1:(\d+)", said())):
                assert run.poll() is None, said()
                time.sleep(0.05)
            yield Client(int(found[1])), said, run.pid
        finally:
            run.kill()
            run.wait()


def test_more_connections_than_descriptors(folder: Path) -> None:  # noqa: F811
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 2048:
        pytest.skip("needs 2048 open files: raise the limit of this machine (ulimit -Hn)")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2048), hard))
    try:
        with process(folder, 1024) as (client, said, _), ExitStack() as stack:
            for _ in range(1100):
                stack.enter_context(connected(client.port))
            begun = time.monotonic()
            for path in ("/healthz?token=s3cret", "/v1/models?prompt=private%20words"):
                assert client.get(path).status == 200
            assert client.post("/v1/generate", {"length": 12, "steps": 2}).status == 200
            assert time.monotonic() - begun < 10
            log = said()
            assert "GET /v1/models HTTP" in log, "the route is logged"
            assert "s3cret" not in log
            assert "private" not in log
            assert len(log) < 4000
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_want_of_descriptors_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    import asyncio

    loop = asyncio.new_event_loop()
    try:
        connections.calm(loop)
        for _ in range(300):
            error = OSError(24, "Too many open files")
            loop.call_exception_handler({"message": "socket.accept() out of system resource", "exception": error})
    finally:
        loop.close()
    assert caplog.text.count("Connections cannot be taken (Too many open files)") == 1
    assert "Traceback" not in caplog.text
