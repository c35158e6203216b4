"""Seeded attacks in processes of their own: whatever becomes of them is counted."""

from __future__ import annotations

import json
import os
import random
import resource
import select
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

from tests.attack.bounds import MEMORY, SECONDS, Inputs, survived
from tests.attack.tally import Part, Tally

AT_FIRST = 120  # seconds to set up what is attacked


def fuzzing(inputs: Inputs, size: int) -> Part:
    """A round is so many inputs with its number as the seed."""

    def rounds(place: Path, first: int) -> Iterator[Tally]:
        for number in count(first):
            shutil.rmtree(place, ignore_errors=True)
            place.mkdir(parents=True)
            yield one_round(inputs, place, number, size)

    return rounds


def one_round(inputs: Inputs, place: Path, number: int, size: int) -> Tally:
    """Fork, attack there, and count from here: a child that hangs is killed, one that dies has crashed."""
    tally, began = Tally(rounds=1), time.monotonic()
    sys.stdout.flush()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        attack(inputs, place, number, size, writer)
    os.close(writer)
    ended, base, turn = False, 0, 0
    for line in lines(reader):
        if line is None:
            tally.fault("hangs", f"round {number}, input {turn}: more than {SECONDS} s")
            os.kill(child, signal.SIGKILL)
            ended = True
            break
        match line["kind"]:
            case "base":
                base = line["size"]
            case "end":
                ended = True
            case "read" | "refused" as kind:
                turn += 1
                tally.refused += kind == "refused"
            case kind:
                tally.fault(kind, f"round {number}, input {turn}: {line['note']}")
                turn += 1
    os.close(reader)
    _, status, used = os.wait4(child, 0)
    if not ended:
        tally.fault("tracebacks", f"round {number}, input {turn}: the process ended with {status}")
    tally.peak = max(0, used.ru_maxrss - base) >> 10
    if tally.peak << 20 > MEMORY:
        tally.fault("memory", f"round {number}: {tally.peak} MiB beyond the start")
    tally.inputs, tally.seconds = turn, time.monotonic() - began
    return tally


def lines(reader: int) -> Iterator[dict[str, Any] | None]:
    """What the child tells, line by line; None if it has not told anything for too long."""
    rest, patience = b"", AT_FIRST
    while True:
        if not select.select([reader], [], [], patience)[0]:
            yield None
            return
        part = os.read(reader, 1 << 16)
        if not part:
            return
        *whole, rest = (rest + part).split(b"\n")
        yield from map(json.loads, whole)
        patience = SECONDS


def attack(inputs: Inputs, place: Path, number: int, size: int, writer: int) -> None:
    """In the child: one line for each input, and never a way back."""
    log = os.open(place.with_name(f"{place.name}.log"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(log, 1)
    os.dup2(log, 2)

    def tell(kind: str, **more: Any) -> None:
        os.write(writer, (json.dumps({"kind": kind, **more}) + "\n").encode())

    pages = [int(each) for each in Path("/proc/self/statm").read_text().split()]
    room = (pages[0] * resource.getpagesize()) + 4 * MEMORY  # beyond it nothing is given: the machine must survive too
    resource.setrlimit(resource.RLIMIT_AS, (room, room))
    try:
        row = inputs(place, random.Random(number))
        read = next(row)
        tell("base", size=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
        for turn in range(size):
            kind, note = outcome(read)
            tell(kind, note=note)
            if turn + 1 < size:
                read = next(row)
    except BaseException:  # while an input was made
        tell("tracebacks", note=traceback.format_exc()[-500:])
    finally:
        tell("end")
        os._exit(0)


def outcome(read: Any) -> tuple[str, str]:
    """One input's: read, refused, or what is wrong and where."""
    try:
        return ("read" if survived(read) else "refused"), ""
    except MemoryError:
        return "memory", traceback.format_exc()[-500:]
    except AssertionError:
        return "differing", traceback.format_exc()[-500:]
    except BaseException:
        return "tracebacks", traceback.format_exc()[-500:]
