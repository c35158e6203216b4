"""HTTP in processes of its own: the same answers, the same limits for all of them together, and what happens when one is killed."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import CancelledError, ThreadPoolExecutor
from http.client import HTTPException
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scdd.core.errors import UserError
from scdd.lm.loading import load
from scdd.lm.model import LM
from tests import tiny
from tests.serve.client import Answer, Client
from tests.serve.conftest import SMALL
from tests.serve.test_process import started
from tests.serve.test_stream import until

pytest.importorskip("fastapi", reason="needs fastapi: pip install -e '.[serve]'")
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")

LONG = {"length": 100, "steps": 4096, "stop": False}  # longer than any test
PLACES, QUEUE = 4, 3
OPTIONS = ["--http-processes", "2", "--batch-size", str(PLACES), "--max-queue", str(QUEUE), "--max-steps", "4096"]
OPTIONS += ["--timeout", "36000", "--max-length", str(SMALL["length"]), "--max-texts", str(SMALL["texts"])]


def children(process: int) -> list[int]:
    """The fronts of a server, oldest first."""
    tasks = Path(f"/proc/{process}/task").glob("*/children")
    found = [int(pid) for each in tasks for pid in read(each).split()]
    return sorted(pid for pid in found if b"spawn_main" in read(Path(f"/proc/{pid}/cmdline")))


def read(file: Path) -> bytes:
    """Of /proc; what it is about may end meanwhile."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return file.read_bytes()
    return b""


class Server:
    """A server of two fronts, and its processes."""

    def __init__(self, folder: Path) -> None:
        self.process, self.client = started(folder, *OPTIONS)

    @property
    def fronts(self) -> list[int]:
        """Oldest first."""
        return children(self.process.pid)

    @contextlib.contextmanager
    def only(self, front: int) -> Iterator[None]:
        """All others stand still: this one takes every connection."""
        others = [pid for pid in self.fronts if pid != front]
        for pid in others:
            os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            for pid in others:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Server]:
    made = Server(folder)
    yield made
    made.process.send_signal(signal.SIGTERM)
    assert made.process.wait(20) == 0


RIGHT: list[tuple[str, dict[str, Any]]] = [
    ("generate", {"length": 30, "num": 3, "seed": 5, "prompt": "The river"}),
    ("generate", {"length": 90, "seed": 5, "suffix": " the sea.", "top_p": 0.8, "temperature": 0.7}),
    ("generate", {"length": 20, "seed": 1, "process": {"kind": "mdlm"}, "sampler": "remdm-rescale"}),
    ("infill", {"text": ["The [MASK:5] dog", "[MASK] river"], "num": 2, "seed": 3}),
    ("infill", {"text": "The [MASK:2-5] dog", "seed": 3}),
    ("correct", {"text": "The rivr runs to the sea.", "mode": "edit", "seed": 1}),
    ("correct", {"text": "The river runs", "mode": "reverse", "strength": 0.4, "steps": 5, "seed": 2}),
    ("correct", {"text": ["The fox", "A lazy dog"], "mode": "pass", "freeze": [[0, 2]], "seed": 0}),
    ("score", {"text": ["The river", "runs to the sea"], "strength": 0.3}),
    ("tokenize", {"text": "The quick brown fox"}),
    (
        "completions",
        {"model": "tiny", "prompt": "The", "max_tokens": 60, "seed": 3, "logprobs": 1, "echo": True, "n": 2},
    ),
    (
        "completions",
        {"model": "tiny", "prompt": ["The", "A"], "max_tokens": 12, "seed": 3, "stop": "e", "temperature": 0},
    ),
]
WRONG: list[tuple[str, dict[str, Any]]] = [
    ("chat/completions", {"messages": [{"role": "user", "content": "Hi"}]}),
    ("generate", {"length": 101}),
    ("generate", {"lenght": 3}),
    ("generate", {"length": 20, "sampler": "prism"}),
    ("generate", {"length": 20, "model": "another"}),
    ("infill", {"text": ["[MASK]", "no hole"]}),
    ("correct", {"text": "The fox", "freeze": ["dog"]}),
]


def told(answer: Answer) -> tuple[int, Any]:
    """Without what is new each time."""
    volatile = ("id", "created")
    return answer.status, {name: value for name, value in answer.json.items() if name not in volatile}


@pytest.mark.parametrize(("route", "body"), [*RIGHT, *WRONG])
def test_answers_are_those_of_one_process(server: Server, client: Client, route: str, body: dict[str, Any]) -> None:
    path = f"/v1/{route}"
    answer = told(server.client.post(path, body))
    assert (answer[0] == 200) == ((route, body) in RIGHT)
    assert answer == told(client.post(path, body))


@pytest.mark.parametrize("path", ["/", "/docs", "/openapi.json", "/static/app.js", "/nowhere", "/healthz"])
def test_so_are_pages(server: Server, client: Client, path: str) -> None:
    one, other = server.client.get(path), client.get(path)
    assert (one.status, one.raw, set(one.headers)) == (other.status, other.raw, set(other.headers))


def test_so_are_settings(server: Server, client: Client) -> None:
    mine, theirs = (each.get("/v1/settings").json for each in (server.client, client))
    assert {**mine, "limits": {}} == {**theirs, "limits": {}}  # which are other ones here


@pytest.mark.parametrize(
    "body",
    [
        {"task": "generate", "length": 70, "steps": 4, "num": 2, "seed": 4},
        {"task": "infill", "text": "The [MASK:2-4] dog", "seed": 1},
        {"task": "correct", "text": "The river runs to the sea.", "strength": 0.4, "seed": 2, "steps": 8},
    ],
)
def test_so_are_streams(server: Server, client: Client, body: dict[str, Any]) -> None:
    def rows(events: list[tuple[str, Any]]) -> list[tuple[str, Any]]:
        return sorted(events, key=lambda each: (each[0], each[1].get("row", 0)))  # texts of a request take turns

    mine, theirs = (list(each.events("/v1/denoise", body)) for each in (server.client, client))
    assert mine[-1][0] == "done"
    assert rows(mine) == rows(theirs)


@pytest.mark.parametrize("logprobs", [None, 1])
def test_so_are_streams_of_completions(server: Server, client: Client, logprobs: int | None) -> None:
    body = {
        "model": "tiny",
        "prompt": "The",
        "max_tokens": 80,
        "seed": 3,
        "stream": True,
        "logprobs": logprobs,
        "steps": 4,
    }

    def choices(each: Client) -> list[Any]:
        connection, response = each.open("POST", "/v1/completions", body)
        lines = response.read().decode().splitlines()
        connection.close()
        assert "data: [DONE]" in lines, lines
        return [line.partition('"choices"')[2] for line in lines if line.startswith("data: {")]

    found = choices(server.client)
    assert len(found) >= (2 if logprobs is None else 1)  # windows
    assert found == choices(client)


def sent(client: Client, path: str, body: Any) -> socket.socket:
    """A request whose client can leave."""
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
    raw = socket.create_connection(("127.0.0.1", client.port))
    raw.sendall(head.encode() + data)
    return raw


@contextlib.contextmanager
def walking(client: Client, **more: Any) -> Iterator[Iterator[tuple[str, Any]]]:
    """A stream of which a step was seen: its texts have their places."""
    with contextlib.closing(client.events("/v1/denoise", {"task": "generate", **LONG, **more})) as events:
        assert [next(events)[0], next(events)[0]] == ["start", "frame"]
        yield events


def queued(client: Client, jobs: int) -> bool:
    """Whether so many jobs come to wait."""
    return until(lambda: client.get("/healthz").json["waiting"] == jobs, 30.0)


def test_the_queue_is_one_for_all_of_them(server: Server) -> None:
    """One front has all the places, another one the queue, which both find full."""
    client = server.client
    one, other = server.fronts
    with contextlib.ExitStack() as asked:
        with server.only(one):
            for seed in range(PLACES):
                asked.enter_context(walking(client, seed=seed))
        with server.only(other):
            for seed in range(QUEUE):
                asked.enter_context(sent(client, "/v1/generate", {**LONG, "seed": seed}))
            assert queued(client, QUEUE)
        refused = []
        for front in (one, other):
            with server.only(front):
                refused += [client.post("/v1/generate", LONG), client.post("/v1/denoise", {"task": "generate", **LONG})]
    for each in refused:
        assert (each.status, each.error["code"]) == (429, "rate_limit_exceeded")
        assert f"{QUEUE} jobs in the queue" in each.error["message"]
    assert queued(client, 0)


def test_meters_are_of_all_of_them(server: Server) -> None:
    def count() -> float:
        lines = server.client.get("/metrics").raw.decode().splitlines()
        named = 'scdd_requests_total{route="/v1/tokenize",status="200"} '
        return sum(float(line.removeprefix(named)) for line in lines if line.startswith(named))

    before = count()
    for front in server.fronts:
        with server.only(front):
            assert server.client.post("/v1/tokenize", {"text": "The"}).status == 200
    # A request is counted when its answer is out, which another process need not know yet.
    assert until(lambda: count() == before + 2)


@pytest.mark.parametrize("path", ["/v1/generate", "/v1/denoise"])
def test_whoever_leaves_frees_the_places(server: Server, path: str) -> None:
    client = server.client
    before, drawn = client.meter("scdd_abandoned_jobs_total"), client.meter("scdd_unmasked_tokens_total")
    body = {"task": "generate", **LONG} if path == "/v1/denoise" else {**LONG, "num": 4}
    with sent(client, path, body):
        steps = client.meter("scdd_network_evaluations_total") + 8  # others may have some left
        assert until(lambda: client.meter("scdd_network_evaluations_total") > steps)
    assert until(lambda: client.meter("scdd_abandoned_jobs_total") == before + 1)
    assert client.meter("scdd_unmasked_tokens_total") == drawn  # it did not end by itself


def test_a_killed_front_takes_its_requests_alone_and_is_replaced(server: Server) -> None:
    client = server.client
    victim, other = server.fronts
    before = client.meter("scdd_abandoned_jobs_total")
    with ThreadPoolExecutor(2) as pool, contextlib.ExitStack() as asked:
        with server.only(victim):
            events = asked.enter_context(walking(client, num=PLACES))
            lost = pool.submit(client.post, "/v1/generate", LONG)
            assert queued(client, 1)
        with server.only(other):
            kept = pool.submit(client.post, "/v1/generate", {"length": 20, "seed": 1})
            assert queued(client, 2)
            os.kill(victim, signal.SIGKILL)
            assert kept.result().status == 200
        with pytest.raises((OSError, HTTPException)):
            lost.result()
        with contextlib.suppress(OSError, HTTPException):  # it is cut off
            assert "done" not in dict(events)
    assert until(lambda: client.meter("scdd_abandoned_jobs_total") == before + 2)
    assert until(lambda: len(server.fronts) == 2)
    fresh = max(server.fronts)
    assert {victim, other}.isdisjoint({fresh})
    with server.only(fresh):  # it may have to start first
        assert client.post("/v1/generate", {"length": 20, "seed": 1}).json == kept.result().json


def test_a_replacement_that_is_killed_as_it_starts_is_replaced(server: Server) -> None:
    client, before = server.client, server.fronts
    models = client.get("/v1/models").json
    for _ in range(2):
        os.kill(max(server.fronts), signal.SIGKILL)
        known = {*before, *server.fronts}
        assert until(lambda known=known: not known.issuperset(server.fronts), 5.0)  # type: ignore[misc]
    with server.only(max(server.fronts)):
        assert client.get("/v1/models").json == models


def test_a_killed_computing_process_is_told_and_leaves_nobody(folder: Path) -> None:
    made = Server(folder)
    client, fronts = made.client, made.fronts
    assert len(fronts) == 2
    with ThreadPoolExecutor(2) as pool:
        plain = pool.submit(client.post, "/v1/generate", LONG)
        assert until(lambda: client.meter("scdd_network_evaluations_total") > 4)
        with walking(client) as events:
            stream = pool.submit(list, events)
            made.process.kill()
            assert (plain.result().status, plain.result().error["code"]) == (503, "replica_lost")
            kind, body = stream.result()[-1]
    assert (kind, body["error"]["code"]) == ("error", "replica_lost")
    assert made.process.wait(10) == -signal.SIGKILL
    assert until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in fronts))
    with pytest.raises(OSError, match="refused"):
        client.get("/healthz")


def test_on_a_cpu_there_are_none_unless_asked_for(folder: Path) -> None:
    process, client = started(folder)
    assert client.post("/v1/generate", {"length": 8, "steps": 2, "seed": 0}).status == 200
    assert children(process.pid) == []
    process.send_signal(signal.SIGTERM)
    process.wait(20)


@pytest.mark.gpu
def test_on_a_gpu_there_are_some(folder: Path) -> None:
    from scdd.core.machine import cores
    from scdd.serve.spec import usual_processes

    process, client = started(folder, "--device", "cuda")
    assert len(children(process.pid)) == usual_processes("cuda", cores(), sys.platform, ray=False)
    body = {"length": 8, "steps": 2, "seed": 0}
    assert client.post("/v1/generate", body).json == client.post("/v1/generate", body).json
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) in (0, -signal.SIGTERM)


def test_each_of_them_asks_for_the_token_and_logs_as_it_is_told(folder: Path) -> None:
    command = [sys.executable, "-m", "scdd", "serve", "--model", str(folder), "--device", "cpu", "--port", "0"]
    command += ["--host", "0.0.0.0", "--token", "a word", "--log-level", "warning", "--http-processes", "2"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    said = [next(process.stderr) for _ in range(3)]
    assert "HTTP in 2 other processes; Ctrl+C" in said[0]
    port = int(said[1].rpartition(":")[2].rstrip("/\n"))
    fronts = children(process.pid)
    assert len(fronts) == 2
    for still in fronts:
        os.kill(still, signal.SIGSTOP)
        try:
            answers = [Client(port, token).post("/v1/tokenize", {"text": "The"}) for token in (None, "a word")]
        finally:
            os.kill(still, signal.SIGCONT)
        assert [answer.status for answer in answers] == [401, 200]
    process.send_signal(signal.SIGTERM)
    assert process.communicate(timeout=20) == ("", "")
    assert process.returncode in (0, -signal.SIGTERM)


@pytest.mark.parametrize("processes", ["0", "1"])
def test_a_taken_port_is_told_in_one_sentence(folder: Path, processes: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        command = [sys.executable, "-m", "scdd", "serve", "--model", str(folder), "--device", "cpu", "--port", port]
        done = subprocess.run([*command, "--http-processes", processes], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    [said] = done.stderr.splitlines()
    assert said.startswith(f"error: --port {port} of 127.0.0.1 cannot be bound")


def broken(*_: object) -> None:
    """A front that cannot start."""
    sys.exit(3)


def test_fronts_that_cannot_start_end_the_server(lm: LM, monkeypatch: pytest.MonkeyPatch) -> None:
    from scdd.serve import front, fronts
    from scdd.serve.limits import Limits
    from scdd.serve.service import Service
    from scdd.serve.spec import Endpoint

    monkeypatch.setattr(front, "main", broken)
    service = Service(lm, Limits(**SMALL), threads=1, lent=True)
    with pytest.raises(UserError, match="ended with 3"):
        fronts.run(service, Endpoint("127.0.0.1", 0), 1, lambda address: None)


def test_fronts_that_die_before_they_know_anything_keep_nobody_waiting(lm: LM, monkeypatch: pytest.MonkeyPatch) -> None:
    """However much they would have to be told."""
    from scdd.serve import front, fronts
    from scdd.serve.limits import Limits
    from scdd.serve.service import Service
    from scdd.serve.spec import Endpoint

    absent = ModuleType("not_there")
    exec("def main(*_): pass", absent.__dict__)
    monkeypatch.setitem(sys.modules, "not_there", absent)  # for this process alone: a front cannot import it
    monkeypatch.setattr(front, "main", absent.main)
    service = Service(lm, Limits(**SMALL), name="x" * 500_000, threads=1, lent=True)
    made = fronts.Fronts(service, Endpoint("127.0.0.1", 0), 1)
    thread = threading.Thread(target=made.start, daemon=True)
    thread.start()
    thread.join(10)
    assert not thread.is_alive()
    made.until_ended()
    assert "ended with 1" in str(made.failure)


def test_a_port_that_was_taken_meanwhile_is_told(lm: LM) -> None:
    """Two that do not listen yet may both have it."""
    from scdd.serve.fronts import Fronts
    from scdd.serve.limits import Limits
    from scdd.serve.service import Service
    from scdd.serve.spec import Endpoint

    made = Fronts(Service(lm, Limits(**SMALL), threads=1, lent=True), Endpoint("127.0.0.1", 0), 0)
    with socket.socket() as rival:
        rival.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        rival.bind(("127.0.0.1", int(made.address.rpartition(":")[2])))
        rival.listen()
        made.listen()
    assert "cannot be bound" in str(made.failure)
    made.until_ended()


@pytest.mark.parametrize("host", ["", "localhost", "127.0.0.1"])
def test_addresses_are_those_of_one_process(host: str) -> None:
    from scdd.serve.run import bound

    async def alone() -> set[Any]:
        async with await asyncio.get_running_loop().create_server(asyncio.Protocol, host, 0) as made:
            return {(sock.family, sock.getsockname()[0]) for sock in made.sockets}

    found = bound(host, 0)
    assert {(sock.family, sock.getsockname()[0]) for sock in found} == asyncio.run(alone())
    for sock in found:
        sock.close()


def test_signals_to_all_while_they_start_end_them_quietly(folder: Path) -> None:
    command = [sys.executable, "-m", "scdd", "serve", "--model", str(folder), "--device", "cpu", "--port", "0"]
    process = subprocess.Popen(
        [*command, "--http-processes", "2"], stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    assert until(lambda: len(children(process.pid)) == 2, 30.0)
    os.killpg(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=20)
    assert (process.returncode, said) == (0, "")


def test_a_stream_that_is_dropped_before_it_was_taken_leaves_nothing(lm: LM) -> None:
    """Nobody says any more whether it was."""
    from scdd.serve.jobs import Job
    from scdd.serve.metrics import Meters
    from scdd.serve.remote_queue import RemoteQueue

    async def dropped() -> list[Any]:
        ours, theirs = socket.socketpair()
        queue = RemoteQueue(Meters(), lambda at_once: None)
        transport, _ = await asyncio.get_running_loop().create_connection(lambda: queue, sock=ours)
        job = Job(run=lm.start(length=10, plan=lm.plan(steps=2)), watch=lambda seen: None)
        queue.submit([job])
        taken = asyncio.ensure_future(queue.taken(job))
        await asyncio.sleep(0)
        job.drop()
        found = await asyncio.wait_for(asyncio.gather(taken, return_exceptions=True), 5)
        transport.close()
        theirs.close()
        return found

    assert isinstance(asyncio.run(dropped())[0], CancelledError)


@pytest.mark.parametrize("kind", ["ar", "quality", "chat"])
def test_a_model_without_weights_understands_what_the_model_does(tmp_path: Path, kind: str) -> None:
    """Kinds of models that the server above is not."""
    from scdd.serve.limits import Limits
    from scdd.serve.metrics import Meters
    from scdd.serve.openai_chat import ChatOrder
    from scdd.serve.openai_shapes import ChatCompletion
    from scdd.serve.orders import Described, answer_of, job_of, order_of, plain
    from scdd.serve.requests import Generate
    from scdd.serve.service import Service
    from scdd.serve.settings import settings_of

    ar = ("process.kind=ar", "objective.kind=ar", "sampling.sampler.kind=ar")
    overrides = {"ar": ar, "quality": tiny.MASKED}.get(kind, ())
    lm = load(
        tiny.checkpoint(tmp_path / kind, *overrides, causal=kind == "ar", quality=kind == "quality"), device="cpu"
    )
    lm.chat_template = "{% for m in messages %}{{ m.content }}{% endfor %}" if kind == "chat" else None
    here = Service(lm, Limits(**SMALL), threads=1)
    there = Service.at(
        here.queue, pickle.loads(pickle.dumps(Described(lm))), here.limits, here.name, Meters(), here.born
    )

    def made(service: Service) -> Any:
        if kind == "chat":
            chat = ChatCompletion(model=here.name, messages=[{"role": "user", "content": "The"}], seed=1, n=2)  # type: ignore[list-item]
            return ChatOrder(service, chat).job
        sampler = "prism" if kind == "quality" else None
        return service.generate(Generate(prompt="The", length=20, num=2, seed=1, sampler=sampler))

    asked = made(there)
    jobs = [made(here), job_of(here, pickle.loads(pickle.dumps(order_of(asked))))]
    here.scheduler.submit(jobs)
    expected, told = (job.future.result(30) for job in jobs)
    here.scheduler.close()
    assert answer_of(asked, pickle.loads(pickle.dumps(plain(told)))) == expected
    assert there.lm.parameters == lm.parameters
    assert settings_of(there) == settings_of(here)


@given(st.lists(st.binary(max_size=40), max_size=8), st.lists(st.integers(1, 30), min_size=1, max_size=20))
def test_messages_arrive_whole_however_they_are_cut(bodies: list[bytes], cuts: list[int]) -> None:
    from scdd.serve.channel import Kind, Unpacker, packed

    data, unpacker, found, i = b"".join(packed((Kind.DONE, 1, body)) for body in bodies), Unpacker(), [], 0
    while data:
        size = cuts[i % len(cuts)]
        found += unpacker.messages(data[:size])
        data, i = data[size:], i + 1
    assert found == [(Kind.DONE, 1, body) for body in bodies]


def test_whoever_reads_nothing_keeps_no_sender_waiting() -> None:
    from scdd.serve.channel import PIECE, Kind, Sender, Unpacker

    ours, theirs = socket.socketpair()
    sender, big = Sender(ours), b"x" * 100_000
    start = time.monotonic()
    threads = [threading.Thread(target=lambda: [sender.send((Kind.STEP, i, big)) for i in range(20)]) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert time.monotonic() - start < 5
    unpacker, found = Unpacker(), []
    while len(found) < 40:
        found += unpacker.messages(theirs.recv(PIECE))
    numbers = [number for _, number, body in found if body == big]
    assert sorted(numbers) == sorted([*range(20)] * 2)
    ours.close()
    theirs.close()


def test_whoever_stands_still_is_given_up() -> None:
    from scdd.serve.channel import Kind, Sender

    ours, theirs = socket.socketpair()
    sender, big = Sender(ours, most=1_000_000), b"x" * 100_000
    ended = threading.Thread(target=ours.recv, args=(1,))  # as the server listens to a front
    ended.start()
    for i in range(40):
        sender.send((Kind.STEP, i, big))
    ended.join(10)
    assert not ended.is_alive()
    ours.close()
    theirs.close()


def test_a_front_that_stands_still_is_killed_and_replaced(lm: LM, monkeypatch: pytest.MonkeyPatch) -> None:
    from scdd.serve import fronts
    from scdd.serve.limits import Limits
    from scdd.serve.service import Service
    from scdd.serve.spec import Endpoint

    monkeypatch.setattr(fronts, "ENDING", 0.2)
    service = Service(lm, Limits(**SMALL), threads=1, lent=True)
    made = fronts.Fronts(service, Endpoint("127.0.0.1", 0), 1)
    made.start()
    made.listen()
    (still,) = made.processes
    os.kill(still, signal.SIGSTOP)
    made._fronts[0].channel.shutdown(socket.SHUT_RDWR)  # as `Sender` does
    assert until(lambda: still not in made.processes and len(made.processes) == 1, 20.0)
    assert not Path(f"/proc/{still}").exists()
    made.end()
    made.until_ended()
