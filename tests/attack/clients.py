"""Many clients of one server, and clients that send what is no request."""

from __future__ import annotations

import random
import re
import resource
import select
import shutil
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import count, pairwise
from pathlib import Path
from typing import Any

from tests import tiny
from tests.attack.bounds import MEMORY, SECONDS, mutated
from tests.attack.tally import Tally
from tests.attack.test_connections import process
from tests.serve.client import Client
from tests.serve.test_batching import asked, told
from tests.serve.test_fuzz import schemathesis

DIFFERENT = 64  # requests; the others repeat them
WARM = 6  # rounds before memory must stay as it is, one of the largest crowds among them
GROWTH = 64 << 20  # bytes that it may still grow by
CROWDS = (200, 200, 200, 200, 1000)  # clients at once, round by round
REQUESTS = 200  # of odd bytes, a round
DESCRIPTORS = 4096
PATIENCE = 280.0  # seconds that a client of a crowd waits
PAUSE = 0.3  # seconds for an answer to begin, before the request is said to be over
OPTIONS = ("--name", "tiny", "--max-queue", "2000", "--timeout", "300", "--log-level", "warning")
BODIES = (
    ("generate", b'{"prompt": "The river", "length": 12, "steps": 2, "seed": 1, "num": 1, "top_p": 0.9}'),
    ("infill", b'{"text": "The [MASK:3] runs", "steps": 2, "seed": 1}'),
    ("correct", b'{"text": "The river runs.", "seed": 1, "strength": 0.3, "steps": 2}'),
    ("score", b'{"text": "The river runs."}'),
    ("completions", b'{"model": "tiny", "prompt": "The fox", "max_tokens": 8, "seed": 1, "logprobs": 1}'),
)
PIECES = (
    *(
        b"\r\n",
        b"\r\n\r\n",
        b"\0",
        b": ",
        b"Transfer-Encoding: chunked\r\n",
        b"Content-Length: 99999999999999999999\r\n",
    ),
    *(
        b"Expect: 100-continue\r\n",
        b"Upgrade: websocket\r\n",
        b"HTTP/9.9",
        b"GET ",
        b"/../../etc/passwd",
        b"%00",
        b"?a=b&",
    ),
    *(b"\xff\xfe", b'"\\ud800"', b"1e999", b"NaN", b"[" * 2000, b'{"a":' * 500, b"[MASK:99999999999]", b"-0", b"true"),
)


def fresh(place: Path) -> Path:
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    return tiny.checkpoint(place / "tiny")


def resident(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize()


def note_memory(tally: Tally, grown: int, where: str, most: int = MEMORY) -> None:
    """What the server holds beyond its start, and whether that is too much."""
    tally.peak = max(0, grown) >> 20
    if tally.peak << 20 > most:
        tally.fault("memory", f"{where}: the server has grown by {tally.peak} MiB")


def many(place: Path, first: int) -> Iterator[Tally]:
    """Rounds of 200 clients at once, each fifth of 1,000: every answer is the one that it would be alone."""
    model = fresh(place)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, DESCRIPTORS), hard))
    with process(model, min(hard, DESCRIPTORS), *OPTIONS) as (client, said, pid):
        alone = [told(client.post(*asked(i)).json) for i in range(DIFFERENT)]
        base = resident(pid)
        for number in count(first):
            tally = crowd(client, alone, CROWDS[number % len(CROWDS)], number)
            if number < first + WARM:
                base = max(base, resident(pid))
            note_memory(tally, resident(pid) - base, f"round {number}", GROWTH)
            if "Traceback" in said():
                tally.fault("tracebacks", f"round {number}: {said()[-600:]}")
            yield tally


def crowd(client: Client, alone: list[Any], size: int, number: int) -> Tally:
    """All at once; each asks something, and asks again when it is told to come back later.

    The last of a thousand waits for all the others, which says nothing of the server: it hangs if it answers nobody for long.
    """
    tally, began, gate = Tally(rounds=1, inputs=size), time.monotonic(), threading.Barrier(size)
    client, heard = replace(client, patience=PATIENCE), []

    def once(i: int) -> str | None:
        gate.wait(120)
        heard.append(time.monotonic())
        for _ in range(400):
            answer = client.post(*asked(i % DIFFERENT))
            heard.append(time.monotonic())
            if answer.status != 429:
                break
            time.sleep(0.05)
        if answer.status != 200:
            return f"round {number}, client {i}: {answer.status} {answer.raw[:200]!r}"
        return None if told(answer.json) == alone[i % DIFFERENT] else f"round {number}, client {i}: another answer"

    with ThreadPoolExecutor(size) as pool:
        for waiting in [pool.submit(once, i) for i in range(size)]:
            try:
                wrong = waiting.result()
            except TimeoutError as error:  # of a socket
                tally.fault("hangs", f"round {number}: {error}")
                continue
            except OSError as error:
                wrong = f"round {number}: {error}"
            if wrong:
                tally.fault("differing", wrong)
    heard.sort()
    silence = max((b - a for a, b in pairwise(heard)), default=0.0)
    if silence > SECONDS:
        tally.fault("hangs", f"round {number}: {size} clients, and none was answered for {silence:.0f} s")
    tally.seconds = time.monotonic() - began
    return tally


def bytes_sent(place: Path, first: int) -> Iterator[Tally]:
    """Rounds of mutated requests, head and body: an answer below 500 or none, and the server serves on."""
    with process(fresh(place), 1024, "--name", "tiny", "--log-level", "warning") as (client, said, pid):
        client.post(*asked(0))
        base = resident(pid)
        for number in count(first):
            tally, began, dice = Tally(rounds=1, inputs=REQUESTS), time.monotonic(), random.Random(number)
            for turn in range(REQUESTS):
                judge(client.port, request(dice), f"round {number}, request {turn}", tally)
            if client.get("/healthz").status != 200:
                tally.fault("differing", f"round {number}: the server is not well")
            if "Traceback" in said():
                tally.fault("tracebacks", f"round {number}: {said()[-600:]}")
            note_memory(tally, resident(pid) - base, f"round {number}")
            tally.seconds = time.monotonic() - began
            yield tally


def request(dice: random.Random) -> bytes:
    """Wrong in its head, its body, or both; the length is right where only the body is wrong."""
    verb, body = dice.choice(BODIES)
    if dice.random() < 0.7:
        body = mutated(body, dice, PIECES)
    head = f"POST /v1/{verb} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: {len(body)}"
    whole = head.encode() + b"\r\n\r\n"
    return (mutated(whole, dice, PIECES) if dice.random() < 0.4 else whole) + body


def judge(port: int, sent: bytes, where: str, tally: Tally) -> None:
    answer = b""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=SECONDS) as one:
            one.sendall(sent)
            if select.select([one], [], [], PAUSE)[0]:
                answer += one.recv(65536)
            one.shutdown(socket.SHUT_WR)  # nothing more will come: what is unfinished need not be waited for
            while part := one.recv(65536):
                answer += part
    except TimeoutError:
        tally.fault("hangs", f"{where}: {sent!r}")
    except OSError:  # it has hung up, as it may
        pass
    statuses = [int(each) for each in re.findall(rb"^HTTP/1\.1 (\d{3}) ", answer)]
    if any(status >= 500 for status in statuses):
        tally.fault("tracebacks", f"{where}: {statuses} for {sent!r}")
    tally.refused += any(400 <= status < 500 for status in statuses) or not statuses


def documented(place: Path, first: int) -> Iterator[Tally]:
    """Rounds of schemathesis over the OpenAPI document."""
    options = ("--max-steps", "12", "--max-length", "60", "--log-level", "warning")
    with process(fresh(place), 1024, *options) as (client, said, pid):
        base = resident(pid)
        for number in count(first):
            tally, began = Tally(rounds=1), time.monotonic()
            done = schemathesis(client, place, seed=number, examples=20)
            found = re.search(r"(\d+) generated", done.stdout)
            tally.inputs = int(found[1]) if found else 0
            if done.returncode or "Traceback" in said():
                tally.fault("tracebacks", f"seed {number}: {done.stdout[-1500:-900]} {said()[-300:]}")
            note_memory(tally, resident(pid) - base, f"seed {number}")
            tally.seconds = time.monotonic() - began
            yield tally
