"""`scdd serve --ray`: two replicas, many clients, and a replica that is killed."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from scdd.cli.main import main
from scdd.lm.loading import load
from scdd.lm.model import LM
from tests import tiny
from tests.serve.client import Answer, Client
from tests.serve.test_process import tell_another_thread

pytest.importorskip("ray", reason="needs ray: pip install -e '.[ray]'")
pytestmark = pytest.mark.dist
CLIENTS, TOKEN = 64, "a-token"
STEPS = 150  # enough for some to wait still when it is asked who does, on a quick machine too


def replicas(address: str) -> set[int]:
    """Process ids of the replicas of that Ray cluster: others of this machine may be another test's."""
    # -ww: a raylet's address stands far to the right, where ps cuts lines if a test has set COLUMNS
    shown = subprocess.run(["ps", "-ww", "-eo", "pid=,ppid=,args="], capture_output=True, text=True, check=True).stdout
    lines = [
        (int(pid), int(parent), what) for pid, parent, what in (line.split(None, 2) for line in shown.splitlines())
    ]
    raylets = {pid for pid, _, what in lines if "raylet/raylet" in what and f"--gcs-address={address}" in what}
    return {pid for pid, parent, what in lines if parent in raylets and "ray::ServeReplica:scdd-" in what}


class Server:
    """The command as people start it, and its own replicas."""

    def __init__(self, folder: Path, address: str, log: Path, *options: str) -> None:
        others = replicas(address)
        command = ["serve", "--model", str(folder), "--port", "0", "--device", "cpu", f"--ray={address}", *options]
        self.log = log
        self.process = subprocess.Popen(
            [sys.executable, "-m", "scdd", *command], stdout=subprocess.DEVNULL, stderr=log.open("w"), text=True
        )
        limit = time.monotonic() + 240
        while not (found := re.search(r"http://127\.0\.0\.1:(\d+)", log.read_text())):
            assert self.process.poll() is None, log.read_text()
            assert time.monotonic() < limit, log.read_text()
            time.sleep(0.1)
        self.client = Client(int(found[1]), TOKEN)
        self.others, self.address = others, address

    def replicas(self) -> set[int]:
        return replicas(self.address) - self.others


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.checkpoint(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="module")
def server(folder: Path, ray_address: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    log = tmp_path_factory.mktemp("log") / "serve.log"
    options = ("--replicas", "2", "--token", TOKEN, "--timeout", "2000", "--batch-size", "4")  # so few that some wait
    started = Server(folder, ray_address, log, *options)
    yield started
    if started.process.poll() is None:
        started.process.send_signal(signal.SIGTERM)
        started.process.wait(120)


@pytest.fixture(scope="module")
def lm(folder: Path) -> Iterator[LM]:
    """The model as a replica has it: with one of the cluster's two cores."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield load(folder, device="cpu")
    torch.set_num_threads(threads)


def body_of(number: int) -> dict[str, Any]:
    return {"length": 20 + number % 4, "steps": STEPS, "seed": number}


def check(lm: LM, number: int, answer: Answer) -> None:
    body = body_of(number)
    assert answer.status == 200, answer.raw
    assert answer.json["samples"][0]["text"] == lm.generate(**body)[0].text, f"request {number}"


def test_the_door_is_the_same(server: Server) -> None:
    client = server.client
    assert client.get("/healthz").json["model"] == "tiny"
    assert Client(client.port).post("/v1/generate", {}).status == 401
    assert client.post("/v1/generate", {"steps": -1}).error["param"] == "steps"
    too_much = client.post("/v1/generate", b"x" * (300 << 10))
    assert (too_much.status, too_much.error["code"]) == (413, "body_too_large")
    assert client.get("/nothing").error["code"] == "not_found"
    assert client.post("/metrics", {}).error["code"] == "method_not_allowed"
    page = client.get("/")
    assert page.raw.startswith(b"<!doctype html>")
    assert "server" not in page.headers
    assert page.headers["x-content-type-options"] == "nosniff"
    kinds = [kind for kind, _ in client.events("/v1/denoise", {"task": "generate", "steps": 5, "length": 20})]
    assert kinds == ["start", *["frame"] * 5, "result", "done"]
    limit = time.monotonic() + 30
    while 'scdd_requests_total{route="/v1/denoise",status="200"} 1.0' not in client.get("/metrics").raw.decode():
        assert time.monotonic() < limit, "counted when it is over"
    assert client.meter("scdd_network_evaluations_total") == 5


def test_whoever_leaves_is_not_worked_for(server: Server) -> None:
    client, limit = server.client, time.monotonic() + 60
    while client.meter("scdd_abandoned_jobs_total") < 1:  # each replica's meters come with its answers
        assert time.monotonic() < limit
        # a walk may be over before its end is heard of, so another one is left
        connection, response = client.open("POST", "/v1/denoise", {"task": "generate", "steps": 1000, "length": 30})
        response.readline()
        response.close()
        connection.close()
        for _ in range(20):
            assert client.get("/healthz").status == 200
            time.sleep(0.05)


def test_a_killed_replica_costs_only_what_it_had(server: Server, lm: LM) -> None:
    client, before = server.client, server.replicas()
    assert len(before) == 2

    def once(number: int) -> Answer:
        return client.post("/v1/generate", body_of(number))

    def watched(seed: int) -> list[tuple[str, Any]]:
        body = {"task": "generate", "steps": 2 * STEPS, "length": 30, "seed": seed}
        try:
            return list(client.events("/v1/denoise", body))
        except AssertionError as refused:  # a stream that had not begun is refused as a whole
            if "replica_lost" not in str(refused):
                raise
            return [("error", {"error": {"code": "replica_lost"}})]

    with ThreadPoolExecutor(CLIENTS + 4) as pool:
        streams = [pool.submit(watched, seed) for seed in range(4)]
        answers = [pool.submit(once, number) for number in range(CLIENTS)]
        while client.get("/healthz").json["waiting"] < 4:
            assert not all(each.done() for each in answers), "too quick to be disturbed"
        os.kill(min(before), signal.SIGKILL)
        given = [each.result() for each in answers]
        ends = [each.result()[-1] for each in streams]
        lost = {number: answer for number, answer in enumerate(given) if answer.status == 503}
        again = dict(zip(lost, pool.map(once, lost), strict=True))
    assert 0 < len(lost) < CLIENTS
    for number, answer in enumerate(given):
        check(lm, number, again.get(number, answer))
    for answer in lost.values():
        assert answer.error["code"] == "replica_lost"
        assert int(answer.headers["retry-after"]) > 0
    assert {kind for kind, _ in ends} <= {"done", "error"}
    assert all(news["error"]["code"] == "replica_lost" for kind, news in ends if kind == "error")
    limit = time.monotonic() + 120
    while len(server.replicas()) < 2:
        assert time.monotonic() < limit, "Ray Serve starts another one"
        time.sleep(0.1)
    assert server.replicas() != before


def test_sigterm_loses_no_accepted_request(server: Server, lm: LM) -> None:
    with ThreadPoolExecutor(CLIENTS) as pool:
        answers = [pool.submit(server.client.post, "/v1/generate", body_of(number)) for number in range(CLIENTS)]
        while server.client.get("/healthz").json["waiting"] < 1:
            assert not all(each.done() for each in answers), "too quick to be disturbed"
        time.sleep(0.3)  # the others are on their way
        tell_another_thread(server.process.pid, signal.SIGTERM)
        for number, each in enumerate(answers):
            check(lm, number, each.result())
    assert server.process.wait(120) == 0
    assert not server.replicas()
    with pytest.raises(OSError, match="refused"):
        server.client.get("/healthz")
    assert "Traceback" not in server.log.read_text()


def test_more_replicas_than_a_machine_can_hold_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--ray", "--replicas", "9999", "--port", "0"]) == 2
    assert "or name a cluster" in capsys.readouterr().err
