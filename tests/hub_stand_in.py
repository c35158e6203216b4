"""A Hugging Face Hub on this machine: as much of its HTTP interface as huggingface_hub uses to push a folder and load it."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

TOKEN = "hf_of_someone"
USER = "someone"
LARGE = (".safetensors",)  # what goes by LFS


@dataclass
class Repository:
    private: bool
    branches: dict[str, str] = field(default_factory=dict)  # name → commit
    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)  # commit → files
    messages: list[str] = field(default_factory=list)

    def commit(self, branch: str, files: dict[str, bytes], message: str) -> str:
        names = sorted((path, hashlib.sha256(content).hexdigest()) for path, content in files.items())
        sha = hashlib.sha1(json.dumps([names, message, len(self.commits)]).encode()).hexdigest()
        self.commits[sha], self.branches[branch] = files, sha
        self.messages.append(message)
        return sha

    def files(self, revision: str) -> tuple[str, dict[str, bytes]] | None:
        sha = self.branches.get(revision, revision)
        return (sha, self.commits[sha]) if sha in self.commits else None


class Hub(ThreadingHTTPServer):
    """What it holds; `blobs` by their SHA-256 are uploads that no commit may name yet."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.repositories: dict[str, Repository] = {}
        self.blobs: dict[str, bytes] = {}
        self.asked: list[str] = []

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


@contextmanager
def running() -> Iterator[Hub]:
    hub = Hub()
    thread = threading.Thread(target=hub.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        hub.shutdown()
        hub.server_close()
        thread.join()


class Answer(BaseHTTPRequestHandler):
    """One request."""

    server: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        """Quiet."""

    def reply(self, status: int, content: Any = None, headers: dict[str, str] | None = None) -> None:
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for name, value in (headers or {"Content-Type": "application/json"}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def refuse(self, status: int, why: str, code: str = "") -> None:
        headers = {"X-Error-Message": why, **({"X-Error-Code": code} if code else {})}
        self.reply(status, {"error": why}, headers)

    def body(self) -> bytes:
        if "chunked" not in self.headers.get("Transfer-Encoding", ""):
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        parts = []
        while size := int(self.rfile.readline(), 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def path_parts(self) -> list[str]:
        path = urlsplit(self.path).path
        self.server.asked.append(f"{self.command} {path}")
        return [unquote(part) for part in path.strip("/").split("/")]

    # -- writing ----------------------------------------------------------------------------------------------------------

    def do_PUT(self) -> None:
        _, oid = self.path_parts()
        content = self.body()
        if hashlib.sha256(content).hexdigest() != oid:
            return self.refuse(400, "another content than was announced")
        self.server.blobs[oid] = content
        return self.reply(200, b"")

    def do_POST(self) -> None:
        parts, body = self.path_parts(), self.body()
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            return self.refuse(401, "Invalid username or password.")
        if parts == ["api", "validate-yaml"]:
            return self.reply(200, {"errors": [], "warnings": []})
        if parts == ["api", "repos", "create"]:
            return self.create(json.loads(body))
        if parts[2:] == ["info", "lfs", "objects", "batch"]:
            return self.batch(json.loads(body))
        _, _, owner, name, verb, revision = parts
        repository = self.server.repositories[f"{owner}/{name}"]
        if verb == "branch":
            if revision in repository.branches:
                return self.refuse(409, "There is such a branch.")
            repository.branches[revision] = repository.branches["main"]
            return self.reply(201, {})
        if revision not in repository.branches:
            return self.refuse(404, f"Invalid rev id: {revision}", "RevisionNotFound")
        if verb == "preupload":
            files = [
                {
                    "path": each["path"],
                    "uploadMode": "lfs" if each["path"].endswith(LARGE) else "regular",
                    "shouldIgnore": False,
                    "oid": None,
                }
                for each in json.loads(body)["files"]
            ]
            return self.reply(200, {"files": files})
        assert verb == "commit"
        return self.commit(repository, f"{owner}/{name}", revision, body)

    def create(self, wanted: dict[str, Any]) -> None:
        owner = wanted.get("organization") or USER
        repo = f"{owner}/{wanted['name']}"
        if owner != USER:
            return self.refuse(403, f"You don't have the rights to create a model under the namespace {owner}.")
        if repo in self.server.repositories:
            return self.reply(
                409, {"error": "You already created this model repo.", "url": f"{self.server.address}/{repo}"}
            )
        private = wanted.get("visibility") == "private" or bool(wanted.get("private"))  # newer and older versions
        made = self.server.repositories[repo] = Repository(private)
        made.commit("main", {".gitattributes": b""}, "initial commit")
        return self.reply(200, {"url": f"{self.server.address}/{repo}", "name": repo, "id": repo})

    def batch(self, wanted: dict[str, Any]) -> None:
        objects = [
            {**each, "actions": {"upload": {"href": f"{self.server.address}/lfs/{each['oid']}"}}}
            for each in wanted["objects"]
        ]
        self.reply(200, {"transfer": "basic", "objects": objects})

    def commit(self, repository: Repository, repo: str, branch: str, body: bytes) -> None:
        files, message = dict(repository.commits[repository.branches[branch]]), ""
        for line in body.splitlines():
            entry = json.loads(line)
            value = entry["value"]
            if entry["key"] == "header":
                message = value["summary"]
            elif entry["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif entry["key"] == "lfsFile":
                files[value["path"]] = self.server.blobs[value["oid"]]
        sha = repository.commit(branch, files, message)
        self.reply(200, {"commitUrl": f"{self.server.address}/{repo}/commit/{sha}", "commitOid": sha, "success": True})

    # -- reading ----------------------------------------------------------------------------------------------------------

    def do_GET(self) -> None:
        parts = self.path_parts()
        if parts == ["api", "whoami-v2"]:
            return self.reply(200, {"type": "user", "name": USER, "auth": {"accessToken": {"role": "write"}}})
        api = parts[0] == "api"
        if len(parts) < 4:
            return self.refuse(404, "not here")
        owner, name, *rest = parts[2:] if api else parts
        repository = self.server.repositories.get(f"{owner}/{name}")
        if repository is None or (repository.private and self.headers.get("Authorization") != f"Bearer {TOKEN}"):
            return self.refuse(401, "Repository not found", "RepoNotFound")
        verb, revision, *path = rest or ["revision", "main"]
        found = repository.files(revision)
        if found is None:
            return self.refuse(404, f"Invalid rev id: {revision}", "RevisionNotFound")
        sha, files = found
        if not api:
            return self.resolve(sha, files, "/".join(path))
        if verb == "tree":
            return self.reply(200, [self.entry(*item) for item in sorted(files.items())])
        siblings = [{"rfilename": path} for path in sorted(files)]
        facts = {"id": f"{owner}/{name}", "modelId": f"{owner}/{name}", "sha": sha, "private": repository.private}
        return self.reply(200, {**facts, "siblings": siblings, "tags": [], "downloads": 0, "likes": 0})

    do_HEAD = do_GET

    def resolve(self, sha: str, files: dict[str, bytes], path: str) -> None:
        if path not in files:
            return self.refuse(404, "Entry not found", "EntryNotFound")
        content = files[path]
        tag = hashlib.sha256(content).hexdigest()
        headers = {"ETag": f'"{tag}"', "X-Repo-Commit": sha, "Content-Type": "application/octet-stream"}
        return self.reply(200, content, headers)

    def entry(self, path: str, content: bytes) -> dict[str, Any]:
        oid, large = hashlib.sha1(content).hexdigest(), path.endswith(LARGE)
        lfs = {"oid": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 134}
        return {"type": "file", "path": path, "size": len(content), "oid": oid, **({"lfs": lfs} if large else {})}
