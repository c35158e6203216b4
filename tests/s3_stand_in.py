"""An object store on this machine: as much of S3's HTTP interface as s3fs uses, in memory, with troubles to order."""

from __future__ import annotations

import hashlib
import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

WHEN = "2026-01-01T00:00:00.000Z"
KEYS = {"AWS_ACCESS_KEY_ID": "someone", "AWS_SECRET_ACCESS_KEY": "a-secret", "AWS_DEFAULT_REGION": "us-east-1"}


class Store(ThreadingHTTPServer):
    """What it holds, by /bucket/key, and what it was asked for."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.objects: dict[str, bytes] = {}
        self.asked: list[tuple[str, str]] = []  # (method, path)
        self.busy = 0  # so many requests are turned away
        self.cut = 0  # so many objects end in the middle

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    @property
    def environment(self) -> dict[str, str]:
        """What a process needs to find it."""
        return {**KEYS, "AWS_ENDPOINT_URL": self.address, "AWS_EC2_METADATA_DISABLED": "true"}


@contextmanager
def running() -> Iterator[Store]:
    store = Store()
    thread = threading.Thread(target=store.serve_forever, daemon=True)
    thread.start()
    before = {name: os.environ.get(name) for name in store.environment}
    os.environ |= store.environment
    try:
        yield store
    finally:
        for name, value in before.items():
            os.environ.pop(name, None) if value is None else os.environ.update({name: value})
        store.shutdown()
        store.server_close()
        thread.join()


class Answer(BaseHTTPRequestHandler):
    """One request."""

    server: Store
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        """Quiet."""

    def reply(self, status: int, body: bytes = b"", **headers: str) -> None:
        cut = self.command == "GET" and status in (200, 206) and len(body) > 64 and self.server.cut > 0
        self.server.cut -= cut
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body[: len(body) // 2] if cut else body)
        self.close_connection = self.close_connection or cut

    def refuse(self, status: int, code: str) -> None:
        self.reply(status, f"<Error><Code>{code}</Code><Message>{code}</Message></Error>".encode())

    def handled(self) -> None:
        split = urlsplit(self.path)
        path, query = unquote(split.path), parse_qs(split.query, keep_blank_values=True)
        content = self.content()
        self.server.asked.append((self.command, path))
        if self.server.busy > 0:
            self.server.busy -= 1
            self.refuse(503, "SlowDown")
        elif self.command in ("GET", "HEAD"):
            self.give(path, query)
        elif self.command == "PUT":
            self.server.objects[path] = content
            self.reply(200, ETag=etag(content))
        elif self.command == "POST" and "delete" in query:
            for key in re.findall(rb"<Key>(.*?)</Key>", content):
                self.server.objects.pop(f"{path.rstrip('/')}/{key.decode()}", None)
            self.reply(200, b"<DeleteResult></DeleteResult>")
        elif self.command == "DELETE":
            self.server.objects.pop(path, None)
            self.reply(204)
        else:
            self.refuse(501, "NotImplemented")

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = handled

    def content(self) -> bytes:
        raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if "aws-chunked" not in self.headers.get("Content-Encoding", ""):
            return raw
        pieces = []
        while raw:
            size, _, raw = raw.partition(b"\r\n")
            length = int(size.split(b";")[0], 16)
            if not length:
                break
            pieces.append(raw[:length])
            raw = raw[length + 2 :]
        return b"".join(pieces)

    def give(self, path: str, query: dict[str, list[str]]) -> None:
        if path.count("/") < 2 or (path.endswith("/") and path.count("/") == 2):
            self.listed(path.strip("/"), query)
            return
        found = self.server.objects.get(path)
        if found is None:
            self.refuse(404, "NoSuchKey")
            return
        headers = {"ETag": etag(found), "Last-Modified": "Thu, 01 Jan 2026 00:00:00 GMT"}
        wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if wanted is None:
            self.reply(200, found, **headers)
            return
        start, stop = int(wanted[1]), min(int(wanted[2] or len(found)) + 1, len(found))
        if start >= len(found):
            self.refuse(416, "InvalidRange")
            return
        headers["Content-Range"] = f"bytes {start}-{stop - 1}/{len(found)}"
        self.reply(206, found[start:stop], **headers)

    def listed(self, bucket: str, query: dict[str, list[str]]) -> None:
        prefix, delimiter = (query.get(name, [""])[0] for name in ("prefix", "delimiter"))
        keys = [path.removeprefix(f"/{bucket}/") for path in self.server.objects if path.startswith(f"/{bucket}/")]
        if not keys and self.command == "HEAD":
            self.refuse(404, "NoSuchBucket")
            return
        lines, folders = [], set()
        for key in sorted(key for key in keys if key.startswith(prefix)):
            rest = key[len(prefix) :]
            if delimiter and delimiter in rest:
                folders.add(prefix + rest.partition(delimiter)[0] + delimiter)
                continue
            held = self.server.objects[f"/{bucket}/{key}"]
            about = f"<LastModified>{WHEN}</LastModified><ETag>{escape(etag(held))}</ETag><Size>{len(held)}</Size>"
            lines.append(f"<Contents><Key>{escape(key)}</Key>{about}</Contents>")
        lines += [f"<CommonPrefixes><Prefix>{escape(each)}</Prefix></CommonPrefixes>" for each in sorted(folders)]
        body = f"<Name>{bucket}</Name><IsTruncated>false</IsTruncated>{''.join(lines)}"
        self.reply(200, f"<ListBucketResult>{body}</ListBucketResult>".encode())


def etag(content: bytes) -> str:
    return f'"{hashlib.md5(content).hexdigest()}"'
