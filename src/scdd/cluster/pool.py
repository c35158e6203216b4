"""Ray as a pool of workers: `data.pool`'s contract on many machines, and results as they finish.

Scheduling, retries and moving data are Ray's. Here is how much is under way at a time, and in which order answers are given.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

from scdd import __version__
from scdd.cluster.connect import LOCAL, check_address, connected, require_ray, resource
from scdd.core.errors import UserError, reason
from scdd.data.pool import AHEAD, attempt

A = TypeVar("A")
B = TypeVar("B")
RETRIES = 3  # of a task whose worker or machine died
LOOK = 10.0  # seconds after which a cluster may have grown

_known: dict[str, Callable[[Any], Any]] = {}
"""In a worker process: what it does, by name. A tokenizer is then read once a process, not once a task."""


@dataclass
class RayPool:
    """Workers on Ray. Nothing starts before the first answer is asked for, and Ray is left when the last one was given."""

    address: str = LOCAL
    most: int | None = None
    """Workers at a time; by default as many as there are cores, or GPUs where a task takes one."""
    gpus: bool = False
    """Whether a task takes a GPU, where the cluster has any, beside its core."""
    workers: int = 0
    """How many there were when it was last looked."""

    def has_gpus(self) -> bool:
        """Whether tasks get a GPU. Asks the cluster."""
        if not self.gpus:
            return False
        if self.address == LOCAL:
            import torch

            return torch.cuda.is_available()
        with connected(self.address) as ray:
            return resource(ray, "GPU") >= 1

    def ordered_map(self, function: Callable[[A], B], items: Iterator[A]) -> Generator[B, None, None]:
        """function(item) for each item, in order; a few items a worker are held. As `data.pool.ordered_map`."""
        return self._answers(function, items, ordered=True)

    def map(self, function: Callable[[A], B], items: Iterable[A]) -> Generator[B, None, None]:
        """function(item) for each item, as they finish."""
        return self._answers(function, iter(items), ordered=False)

    def _answers(self, function: Callable[[A], B], items: Iterator[A], ordered: bool) -> Generator[B, None, None]:
        with connected(self.address, self.most) as ray:
            crew = _Crew(ray, self, function)
            try:
                yield from crew.in_order(items) if ordered else crew.as_they_finish(items)
            finally:
                crew.dismiss()


def pool_at(address: str, most: int | None = None, gpus: bool = False) -> RayPool:
    """Workers at this address; refused at once where there can be none."""
    check_address(address)
    require_ray()
    return RayPool(address, most, gpus)


class _Crew:
    """Tasks under way."""

    def __init__(self, ray: Any, pool: RayPool, function: Callable[[Any], Any]) -> None:
        self._ray, self._pool, self._looked, self._room = ray, pool, -LOOK, 1
        self._on_gpus = pool.gpus and resource(ray, "GPU") >= 1
        self._function = ray.put(function)
        self._task = ray.remote(num_cpus=1, num_gpus=int(self._on_gpus), max_retries=RETRIES, name="scdd")(_work)
        self._running: dict[Any, int] = {}
        self._sent = 0

    def in_order(self, items: Iterator[Any]) -> Iterator[Any]:
        """The answers in the items' order."""
        done: dict[int, Any] = {}
        given = 0
        while self._fill(items, given) or done:
            done |= self._finished()
            while given in done:
                yield self._answer(done.pop(given))
                given += 1

    def as_they_finish(self, items: Iterator[Any]) -> Iterator[Any]:
        """The answers in the order in which they come."""
        while self._fill(items, self._sent - len(self._running)):
            for ref in self._finished().values():
                yield self._answer(ref)

    def _fill(self, items: Iterator[Any], given: int) -> bool:
        """Send as many items as may be held; whether anything is under way."""
        while self._sent - given < self._most_held():
            try:
                item = next(items)
            except StopIteration:
                break
            # the function in a list: as an argument of its own Ray would read it anew for every task
            ref = self._task.remote(self._function.hex(), [self._function], __version__, item)
            self._running[ref], self._sent = self._sent, self._sent + 1
        return bool(self._running)

    def _most_held(self) -> int:
        """A few items for each worker, so that none waits for its next one."""
        if time.monotonic() - self._looked >= LOOK:
            self._looked = time.monotonic()
            there = max(1, int(resource(self._ray, "GPU" if self._on_gpus else "CPU")))
            self._pool.workers = min(self._pool.most or there, there)
            self._room = self._pool.workers * (AHEAD if self._pool.workers == there else 1)
        return self._room

    def _finished(self) -> dict[int, Any]:
        """Tasks that have ended, by number; waits for one."""
        if not self._running:
            return {}
        ready, rest = self._ray.wait(list(self._running), num_returns=1, fetch_local=False)
        if rest:
            ready += self._ray.wait(rest, num_returns=len(rest), timeout=0, fetch_local=False)[0]
        return {self._running.pop(ref): ref for ref in ready}

    def _answer(self, ref: Any) -> Any:
        broken = self._ray.exceptions
        try:
            error, value = self._ray.get(ref)
        except (broken.WorkerCrashedError, broken.OutOfMemoryError, broken.NodeDiedError) as death:
            raise UserError(
                f"a worker was killed {RETRIES + 1} times over the same piece, perhaps for lack of memory: run it again with "
                "fewer workers."
            ) from death
        except broken.RayError as failure:
            raise UserError(
                f"a worker on Ray could not start ({reason(failure)}): install the same scdd {__version__} and Python on every machine."
            ) from failure
        if error is not None:
            raise error
        return value

    def dismiss(self) -> None:
        """Whoever is still at work stops."""
        for ref in self._running:
            with contextlib.suppress(self._ray.exceptions.RayError):
                self._ray.cancel(ref, force=True)


def _work(name: str, shared: list[Any], version: str, item: Any) -> tuple[Exception | None, Any]:
    """What a worker process does: (error, answer) of one item."""
    if version != __version__:
        mistake = f"this machine has scdd {version} and one of the cluster {__version__}: install the same on all."
        return UserError(mistake), None
    if name not in _known:
        import ray

        _known.clear()  # the last command's
        _known[name] = ray.get(shared[0])
    return attempt(_known[name], item)
