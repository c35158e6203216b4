"""The door: token, host names, sizes, headers, files."""

from __future__ import annotations

import re
import socket
from importlib import resources
from typing import Any

import pytest

from tests.serve.client import Client
from tests.serve.conftest import Serving


@pytest.fixture(scope="module")
def closed(serving: Serving) -> object:
    with serving(token="s3cret") as made:
        yield made


def test_a_token_guards_everything_but_the_page_and_health(closed: Client) -> None:
    stranger = Client(closed.port)
    for path in ("/v1/models", "/v1/settings", "/metrics"):
        answer = stranger.get(path)
        assert (answer.status, answer.error["code"]) == (401, "invalid_api_key")
        assert answer.headers["www-authenticate"] == "Bearer"
        assert closed.get(path).status == 200
    for path in ("generate", "infill", "correct", "score", "tokenize", "denoise", "completions"):
        assert stranger.post(f"/v1/{path}", {}).status == 401
    for path in ("/", "/docs", "/healthz", "/openapi.json", "/static/app.js"):
        assert stranger.get(path).status == 200


@pytest.mark.parametrize("given", ["s3cret", "Bearer", "Bearer ", "Basic s3cret", "Bearer s3cret2", "Bearer S3CRET"])
def test_nothing_but_the_token_will_do(closed: Client, given: str) -> None:
    assert Client(closed.port).get("/v1/models", Authorization=given).status == 401


def test_the_token_is_in_no_log(
    serving: Serving, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    with serving(token="very-s3cret") as made:
        made.post("/v1/generate", {"prompt": "private words", "length": 20})
        Client(made.port).get("/v1/models", Authorization="Bearer wrong-s3cret")
    said = "".join(capfd.readouterr()) + caplog.text
    assert "s3cret" not in said
    assert "private words" not in said


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", ""])
def test_other_host_names_are_refused(client: Client, host: str) -> None:
    """DNS rebinding: a page elsewhere points its own name at this machine."""
    assert client.get("/v1/models", Host=host).error["code"] == "bad_host"


@pytest.mark.parametrize("host", ["localhost", "localhost:8000", "127.0.0.1:1", "[::1]", "[::1]:8000"])
def test_this_machine_is_not(client: Client, host: str) -> None:
    assert client.get("/v1/models", Host=host).status == 200


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", "http://localhost:1", "https://localhost.evil.example"]
)
def test_pages_elsewhere_cannot_make_it_work(client: Client, origin: str) -> None:
    """A page needs no permission to send a plain form; its browser says where it comes from."""
    headers = {"Origin": origin, "Content-Type": "application/json"}
    answer = client.ask("POST", "/v1/tokenize", {"text": "The"}, headers)
    assert (answer.status, answer.error["code"]) == (403, "bad_origin")


def test_its_own_page_can(client: Client) -> None:
    answer = client.ask("POST", "/v1/tokenize", {"text": "The"}, {"Origin": client.url})
    assert answer.status == 200


def test_large_bodies_are_refused_declared_or_not(client: Client) -> None:
    body = b'{"prompt": "' + b"a" * 300_000 + b'"}'
    answer = client.ask("POST", "/v1/generate", body)
    assert (answer.status, answer.error["code"]) == (413, "body_too_large")
    with socket.create_connection(("127.0.0.1", client.port)) as raw:
        raw.sendall(
            b"POST /v1/generate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n"
        )
        raw.sendall(b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body))
        assert raw.recv(4096).startswith(b"HTTP/1.1 413 ")


def test_browsers_are_told_to_be_careful(client: Client) -> None:
    for path in ("/", "/v1/models", "/nowhere", "/static/app.js"):
        headers = client.get(path).headers
        assert "default-src 'none'" in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert "access-control-allow-origin" not in headers
    asked = client.ask("OPTIONS", "/v1/generate", headers={"Origin": "http://evil.example"})
    assert asked.status == 405


@pytest.mark.parametrize(
    "path", ["../app.py", "..%2fapp.py", "%2e%2e/app.py", "....//app.py", "%2fetc%2fpasswd", "app.js%00.html", ""]
)
def test_no_path_reaches_the_disk(client: Client, path: str) -> None:
    assert client.get(f"/static/{path}").status == 404


def test_the_pages_ask_nobody_else(client: Client) -> None:
    files = {file.name for file in resources.files("scdd.serve").joinpath("static").iterdir()}
    assert {"app.js", "index.html", "style.css"} <= files
    for path in ("/", "/docs", *(f"/static/{name}" for name in files)):
        answer = client.get(path)
        assert answer.status == 200
        found = re.findall(rb"(?:https?:)?//[\w.-]+\.\w+", answer.raw.replace(b"http://www.w3.org/2000/svg", b""))
        assert found == [], (path, found)


def test_health(client: Client) -> None:
    assert client.get("/healthz").json == {"status": "ok", "model": "tiny", "waiting": 0}


def test_heads_are_answers_without_a_body(client: Client) -> None:
    for path in ("/", "/healthz", "/static/style.css"):
        head, whole = client.ask("HEAD", path), client.get(path)
        assert (head.status, head.raw) == (200, b"")
        assert head.headers["content-length"] == str(len(whole.raw))
    assert client.ask("HEAD", "/v1/generate").status == 405


def test_whoever_reads_nothing_is_hung_up_on() -> None:
    import asyncio

    from scdd.serve.guard import Guard
    from scdd.serve.metrics import Meters

    sent = []

    async def endless(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        while True:
            await send({"type": "http.response.body", "body": b"more", "more_body": True})

    async def send(message: Any) -> None:
        sent.append(message["type"])
        if len(sent) == 3:  # the client's buffers are full
            await asyncio.Event().wait()

    guard = Guard(endless, body=100, token=None, hosts=None, meters=Meters(), patience=0.05)
    scope = {"type": "http", "method": "GET", "path": "/", "headers": []}
    asyncio.run(asyncio.wait_for(guard(scope, asyncio.Event().wait, send), 10))  # type: ignore[arg-type]
    assert len(sent) == 3
