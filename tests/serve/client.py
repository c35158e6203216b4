"""A small HTTP client for the tests: answers as they are, streams event by event, and rude goodbyes."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Generator
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPResponse
from typing import Any


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    raw: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.raw)

    @property
    def error(self) -> dict[str, Any]:
        return dict(self.json["error"])


@dataclass(frozen=True)
class Client:
    port: int
    token: str | None = None
    patience: float = 60

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def open(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> tuple[HTTPConnection, HTTPResponse]:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=self.patience)
        given = {"Content-Type": "application/json", **(headers or {})}
        if self.token:
            given["Authorization"] = f"Bearer {self.token}"
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        connection.request(method, path, data, given)
        return connection, connection.getresponse()

    def ask(self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> Answer:
        connection, response = self.open(method, path, body, headers)
        try:
            lowered = {name.lower(): value for name, value in response.getheaders()}
            return Answer(response.status, lowered, response.read())
        finally:
            connection.close()

    def get(self, path: str, **headers: str) -> Answer:
        return self.ask("GET", path, headers=headers)

    def post(self, path: str, body: Any) -> Answer:
        return self.ask("POST", path, body)

    def events(self, path: str, body: Any) -> Generator[tuple[str, Any], None, None]:
        """Of a stream; whoever closes them leaves."""
        connection, response = self.open("POST", path, body)
        with contextlib.closing(connection), response:
            assert response.status == 200, response.read()
            kind = ""
            for line in response:
                text = line.decode().rstrip("\n")
                if text.startswith("event: "):
                    kind = text[7:]
                if text.startswith("data: "):
                    yield kind, json.loads(text[6:])

    def meter(self, name: str) -> float:
        """The value of a meter without labels."""
        lines = self.get("/metrics").raw.decode().splitlines()
        return float(next(line for line in lines if line.startswith(f"{name} ")).split()[1])
