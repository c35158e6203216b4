"""`scdd serve` as people start it, and how it ends."""

from __future__ import annotations

import ctypes
import os
import re
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from scdd.cli.main import main
from tests.serve.client import Client

for needed in ("fastapi", "uvicorn", "prometheus_client"):
    pytest.importorskip(needed, reason=f"needs {needed}: pip install -e '.[serve]'")


def started(folder: Path, *options: str) -> tuple[subprocess.Popen[str], Client]:
    command = [
        sys.executable,
        "-m",
        "scdd",
        "serve",
        "--model",
        str(folder),
        "--port",
        "0",
        "--device",
        "cpu",
        *options,
    ]
    process = subprocess.Popen(
        command,
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert process.stderr is not None
    for line in process.stderr:
        found = re.search(r"http://127\.0\.0\.1:(\d+)", line)
        if found:
            threading.Thread(target=process.stderr.read, daemon=True).start()
            return process, Client(int(found[1]))
    raise AssertionError(f"it ended with {process.wait()}")


@pytest.mark.parametrize("processes", [0, 2])
def test_sigterm_under_load_loses_no_accepted_request(folder: Path, processes: int) -> None:
    options = ["--workers", "2", "--max-queue", "40", "--batch-size", "4", "--http-processes", str(processes)]
    process, client = started(folder, *options)
    bodies: list[dict[str, Any]] = [{"length": 24 + i % 6, "steps": 60, "seed": i} for i in range(24)]

    def once(body: dict[str, Any]) -> Any:
        return client.post("/v1/generate", body)

    with ThreadPoolExecutor(len(bodies) + 1) as pool:
        streaming = pool.submit(
            lambda: list(client.events("/v1/denoise", {"task": "generate", "steps": 100, "seed": 1}))
        )
        waiting = [pool.submit(once, body) for body in bodies]
        for _ in range(500):  # all are in: some under way, the others in the queue
            lines = client.get("/healthz").json
            if lines["waiting"] >= 6:
                break
            time.sleep(0.01)
        assert lines["waiting"] >= 6
        time.sleep(0.3)
        process.send_signal(signal.SIGTERM)
        answers = [each.result() for each in waiting]
        assert [kind for kind, _ in streaming.result()][-1] == "done"
    assert [answer.status for answer in answers] == [200] * len(bodies)
    assert [answer.json["samples"][0]["seed"] for answer in answers] == [body["seed"] for body in bodies]
    assert process.wait(20) in (0, -signal.SIGTERM)
    with pytest.raises(OSError, match="refused"):
        client.get("/healthz")


@pytest.mark.skipif(sys.platform != "linux", reason="looks for threads in /proc")
@pytest.mark.parametrize("processes", [0, 2])
def test_a_signal_that_another_thread_is_told_of_ends_an_idle_server(folder: Path, processes: int) -> None:
    """The system tells whichever thread it likes; handlers run in the first, which nothing wakes."""
    process, client = started(folder, "--http-processes", str(processes))
    assert client.post("/v1/generate", {"length": 8, "steps": 2, "seed": 0}).status == 200
    time.sleep(0.3)  # idle again
    tell_another_thread(process.pid, signal.SIGTERM)
    try:
        assert process.wait(20) in (0, -signal.SIGTERM)
    finally:
        process.kill()


@pytest.mark.parametrize(
    ("device", "cores", "platform", "ray", "processes"),
    [
        ("cpu", 64, "linux", False, 0),
        ("cuda", 64, "linux", False, 4),
        ("cuda:1", 64, "linux", False, 4),
        ("cuda", 6, "linux", False, 4),
        ("cuda", 5, "linux", False, 3),
        ("cuda", 3, "linux", False, 1),
        ("cuda", 2, "linux", False, 0),
        ("cuda", 1, "linux", False, 0),
        ("cuda", 64, "linux", True, 0),
        ("cuda", 64, "win32", False, 0),
        ("mps", 64, "darwin", False, 0),
    ],
)
def test_how_many_processes_talk_where_nobody_says(
    device: str, cores: int, platform: str, ray: bool, processes: int
) -> None:
    from scdd.serve.spec import usual_processes

    assert usual_processes(device, cores, platform, ray) == processes
    assert usual_processes(device, cores + 3, platform, ray, workers=4) == processes


@pytest.mark.parametrize(("said", "processes"), [(None, 3), (0, 0), (1, 1)])
def test_what_is_said_holds(folder: Path, monkeypatch: pytest.MonkeyPatch, said: int | None, processes: int) -> None:
    """Where three would be usual, as on a GPU of a small machine; 0 means none."""
    from scdd.serve import fronts, run, spec

    found = []
    monkeypatch.setattr(spec, "usual_processes", lambda *_: 3)
    monkeypatch.setattr(fronts, "run", lambda service, endpoint, count, ready: found.append(count))
    monkeypatch.setattr(run, "run", lambda *_: found.append(0))
    chosen = [] if said is None else ["--http-processes", str(said)]
    assert main(["serve", "--model", str(folder), "--device", "cpu", *chosen]) == 0
    assert found == [processes]


def tell_another_thread(process: int, number: signal.Signals) -> None:
    """A signal to a thread of a process that is not its first, and takes it."""
    others = sorted({int(each.name) for each in Path(f"/proc/{process}/task").iterdir()} - {process})
    hearing = [each for each in others if not blocked(process, each) >> (number - 1) & 1]
    ctypes.CDLL(None).tgkill(process, hearing[0], int(number))


def blocked(process: int, thread: int) -> int:
    """The signals that a thread does not take, a bit each."""
    status = Path(f"/proc/{process}/task/{thread}/status").read_text(encoding="ascii")
    return int(re.findall(r"SigBlk:\s*(\w+)", status)[0], 16)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--host", "0.0.0.0"], "set a token"),
        (["--host", "0.0.0.0", "--token", "é"], "ASCII"),
        (["--port", "70000"], "--port is 70000"),
        (["--host", "no such place", "--no-token"], "no such place"),
        (["--max-steps", "0"], "--max-steps is 0"),
        (["--timeout", "inf"], "--timeout is inf"),
        (["--token", " "], "--token"),
        (["--log-level", "loud"], "--log-level"),
        (["--http-processes", "-1"], "--http-processes is -1"),
        (["--http-processes", "2", "--ray"], "--http-processes"),
        (["--model", "/nowhere/at/all"], "/nowhere/at/all"),
    ],
)
def test_refusals(
    options: list[str], said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SCDD_TOKEN", raising=False)
    assert main(["serve", *options]) == 2
    assert said in capsys.readouterr().err
