"""What every attack is held to: success or one sentence, in bounded time and memory."""

from __future__ import annotations

import random
import resource
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from scdd.core.errors import UserError

MEMORY = 1 << 30
SECONDS = 20

Inputs = Callable[[Path, random.Random], Iterator[Callable[[], Any]]]
"""An endless row of attacks, each to be called before the next is asked for, with a folder to work in: the tests take the
first few, `make soak` as many as there is time for."""


@contextmanager
def bounded(seconds: float = SECONDS, memory: int = MEMORY) -> Iterator[None]:
    """Fails what takes longer, or fetches more address space than `memory`."""

    def late(*_: object) -> None:
        raise TimeoutError(f"still running after {seconds} s")

    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    statm = Path("/proc/self/statm")
    taken = int(statm.read_text().split()[0]) * resource.getpagesize() if statm.exists() else None
    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        if taken is not None:
            resource.setrlimit(resource.RLIMIT_AS, (taken + memory, hard))
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def refused(read: Callable[[], Any], words: str = "", seconds: float = SECONDS) -> str:
    """The sentence that an attack is refused with; it holds `words`."""
    with bounded(seconds), pytest.raises(UserError) as caught:
        read()
    said = str(caught.value)
    assert words in said
    assert len(said) < 4000
    return said


def survived(read: Callable[[], Any]) -> bool:
    """Whether it could be read; anything but success and UserError fails the test."""
    said = ""
    try:
        read()
    except UserError as error:
        said = str(error)
    assert len(said) < 8000, said[:200]
    return not said


def attacked(inputs: Inputs, place: Path, times: int, seed: int = 18) -> None:
    """Each of the first so many is read or refused; some are read, and some refused."""
    with bounded():
        read = [survived(each) for each in islice(inputs(place, random.Random(seed)), times)]
    assert any(read)
    assert not all(read)


def mutated(content: bytes, random: random.Random, tokens: tuple[bytes, ...] = ()) -> bytes:
    """The bytes with a few changes: bits flipped, pieces cut, doubled, overwritten or replaced by `tokens`."""
    made = bytearray(content)
    for _ in range(random.choice((1, 1, 2, 4))):
        at = random.randrange(len(made) + 1)
        length = random.choice((0, 1, 1, 4, 8, 40))
        match random.randrange(6 if tokens else 5):
            case 0 if at < len(made):
                made[at] ^= 1 << random.randrange(8)
            case 1:
                del made[at : at + length]
            case 2:
                made[at:at] = made[at : at + length]
            case 3:
                made[at : at + length] = random.randbytes(length)
            case 4:
                made[at : at + length] = random.choice(
                    (b"\xff" * 8, b"\0" * 8, b"9" * 30, b"-1", b"{}", b"[[", b"null")
                )
            case _:
                made[at : at + length] = random.choice(tokens or (b"",))
    return bytes(made)


def changed(tree: Any, random: random.Random) -> Any:
    """Plain data with one value, anywhere, replaced by an odd one."""
    odd = (None, True, -1, 0, 1e308, float("nan"), 2**63, 10**40, "", "x", [], [[]], {}, {"kind": "x"}, "\ud800", "\0")
    if isinstance(tree, dict) and tree and random.random() < 0.9:
        key = random.choice(list(tree))
        if random.random() < 0.1:
            return {k: v for k, v in tree.items() if k != key} | random.choice(({}, {f"{key}x": 1}))
        return tree | {key: changed(tree[key], random)}
    if isinstance(tree, list) and tree and random.random() < 0.9:
        at = random.randrange(len(tree))
        return [*tree[:at], changed(tree[at], random), *tree[at + 1 :]]
    return random.choice(odd)
