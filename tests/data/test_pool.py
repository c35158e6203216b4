from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from itertools import count
from multiprocessing import active_children

import pytest

from scdd.core.errors import UserError
from scdd.data.pool import ordered_map

pytestmark = pytest.mark.dist


def square(number: int) -> int:
    time.sleep(0.02 if number % 3 == 0 else 0)  # so that answers come out of order
    return number * number


def fail_at_five(number: int) -> int:
    if number >= 5:
        raise UserError(f"number {number}")
    return number


def break_at_five(number: int) -> int:
    return 1 // (5 - number)


def die_at_five(number: int) -> int:
    if number == 5:
        os.kill(os.getpid(), signal.SIGKILL)
    return number


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_answers_come_in_order(workers: int) -> None:
    assert list(ordered_map(square, iter(range(40)), workers)) == [n * n for n in range(40)]


def test_few_items_start_few_processes() -> None:
    """A machine of many cores spends seconds on starting them all."""
    answers = ordered_map(square, iter(range(2)), 16)
    assert next(answers) == 0
    assert 1 <= len(active_children()) <= 2
    assert list(answers) == [1]


def test_no_more_items_are_taken_than_can_be_held() -> None:
    taken = count()
    answers = ordered_map(square, taken, 2)
    for _ in range(10):
        next(answers)
    assert next(taken) <= 10 + 4 * 2 + 1
    answers.close()


@pytest.mark.parametrize("workers", [1, 3])
def test_the_first_mistake_is_the_one_reported(workers: int) -> None:
    answers = ordered_map(fail_at_five, iter(range(40)), workers)
    assert [next(answers) for _ in range(5)] == [0, 1, 2, 3, 4]
    with pytest.raises(UserError, match="number 5"):
        next(answers)


def test_bugs_keep_their_traceback() -> None:
    with pytest.raises(RuntimeError, match="break_at_five"):
        list(ordered_map(break_at_five, iter(range(9)), 2))


def test_a_killed_worker_is_noticed() -> None:
    with pytest.raises(UserError, match="a worker process was killed"):
        list(ordered_map(die_at_five, iter(range(40)), 2))


def test_workers_leave_when_their_parent_is_killed() -> None:
    code = (
        "import multiprocessing, os, signal\n"
        "from scdd.data.pool import ordered_map\n"
        "from tests.data.test_pool import square\n"
        "if __name__ == '__main__':\n"
        "    answers = ordered_map(square, iter(range(10**9)), 2)\n"
        "    next(answers)\n"
        "    print(*[p.pid for p in multiprocessing.active_children()], flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    children = [int(pid) for pid in done.stdout.split()]
    assert len(children) == 2, done.stderr
    limit = time.monotonic() + 10
    while any(_alive(pid) for pid in children) and time.monotonic() < limit:
        time.sleep(0.05)
    assert not any(_alive(pid) for pid in children)


def _alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False
