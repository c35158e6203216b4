"""Processes of this machine as an executor: one a GPU or a core, each of which does one task after the other."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import Connection, wait
from typing import Any, TypeVar

from scdd.core.machine import cores, even

Item = TypeVar("Item")
Result = TypeVar("Result")
PATIENCE = 60.0  # seconds for a training to save, once it is asked to stop
GRACE = 10.0  # for a process that has nothing to do


@dataclass(frozen=True)
class _Worker:
    """A process, the way to it, and the GPU that it sees."""

    process: Any
    connection: Any
    slot: str


class LocalProcesses:
    """So many processes, each of which does one item after the other, so that importing and compiling are done once; with
    GPUs, each process sees one.

    After `seconds` nothing is begun any more, and what runs is asked to stop: a training saves a checkpoint and ends. What
    would take longer than is left, by `expected`, is not begun at all. A process that dies takes its item with it, and another
    one goes on; so it is after a result that says that it is `spoilt`. Processes end with the one that started them, however that ends; inside `with` they last from one `map` to
    the next.
    """

    def __init__(
        self,
        workers: int = 1,
        gpus: Sequence[str] = (),
        seconds: float | None = None,
        expected: Callable[[Any], float] = lambda item: 0.0,
    ) -> None:
        self.slots = deque(gpus if gpus else [""] * workers)
        self.threads = None if gpus else even(max(1, cores() // workers))
        self.end = None if seconds is None else time.monotonic() + seconds
        self.expected, self.late = expected, False  # late: the time has kept something back
        self.died: list[Any] = []  # items whose processes ended without a word, unasked
        self._idle: list[_Worker] = []
        self._keeps = False

    def __enter__(self) -> LocalProcesses:
        self._keeps = True
        return self

    def __exit__(self, *error: object) -> None:
        self._keeps = False
        self._dismiss()

    def map(self, function: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
        """Results as they finish."""
        waiting = list(items)
        running: dict[Any, tuple[_Worker, Item]] = {}
        asked = False
        try:
            while True:
                while (self._idle or self.slots) and (item := self._next(waiting)) is not None:
                    worker = self._begin(function, item)
                    running[worker.connection] = worker, item
                if not running:
                    break
                for connection in wait(list(running), timeout=0.5):
                    worker, item = running.pop(connection)
                    try:
                        result = worker.connection.recv()
                    except (EOFError, ConnectionError):
                        self._lost(worker)
                        self.died += [] if asked else [item]
                        continue
                    if getattr(result, "spoilt", False):
                        self._lost(worker)
                    else:
                        self._idle.append(worker)
                    yield result
                if self._left() <= 0 and not asked:
                    asked = self.late = True
                    for worker, _ in running.values():
                        worker.process.terminate()
            self.late = self.late or bool(waiting)
        finally:
            _end([worker.process for worker, _ in running.values()])
            self.slots.extend(worker.slot for worker, _ in running.values())
            if not self._keeps:
                self._dismiss()

    def _left(self) -> float:
        """Seconds."""
        return float("inf") if self.end is None else self.end - time.monotonic()

    def _next(self, waiting: list[Any]) -> Any:
        """The first item for which the time suffices, taken out of the list; None if there is none."""
        left = self._left()
        for place, item in enumerate(waiting):
            if left > self.expected(item):
                return waiting.pop(place)
        return None

    def _begin(self, function: Callable[[Any], Any], item: Any) -> _Worker:
        while self._idle:
            worker = self._idle.pop()
            with contextlib.suppress(OSError):  # it died meanwhile
                worker.connection.send((function, item))
                return worker
            self._lost(worker)
        context: Any = _context()
        ours, theirs = context.Pipe()
        slot = self.slots.popleft()
        how = _How(slot, self.threads, dict(os.environ))
        process = context.Process(target=_work, args=(theirs, how))
        process.start()
        theirs.close()  # so that its end is heard
        ours.send((function, item))
        return _Worker(process, ours, slot)

    def _lost(self, worker: _Worker) -> None:
        worker.connection.close()
        worker.process.join()
        self.slots.append(worker.slot)

    def _dismiss(self) -> None:
        """Tell those who wait for work that there is none, and see them off."""
        for worker in self._idle:
            worker.connection.close()
        for worker in self._idle:
            worker.process.join(GRACE)
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join()
            self.slots.append(worker.slot)
        self._idle.clear()


def _end(processes: Sequence[Any]) -> None:
    for process in processes:
        process.terminate()
    end = time.monotonic() + PATIENCE
    for process in processes:
        process.join(max(0.0, end - time.monotonic()))
        if process.is_alive():
            process.kill()
            process.join()


def _context() -> Any:
    """Processes that begin with everything imported, where the system can fork; fresh ones elsewhere."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["scdd.reproduce.run", "scipy.stats"])  # what is missing is passed over
    # Ctrl-C reaches every process of a terminal. Here the command alone hears it, and asks the others to stop, once: a
    # training that is asked twice ends without saving.
    resource_tracker.ensure_running()  # it would let the signal in again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return context


@dataclass(frozen=True)
class _How:
    """What a process should know of its place."""

    gpu: str
    threads: int | None
    environment: dict[str, str]


def _work(connection: Connection, how: _How) -> None:
    """The life of a process: see one GPU, do what is asked for, answer, and end with the parent."""
    threading.Thread(target=_follow_parent, daemon=True).start()
    os.environ.update(how.environment)  # the server that it was forked from may be older
    if how.gpu:
        os.environ["CUDA_VISIBLE_DEVICES"] = how.gpu  # before anything asks for a device
    signal.signal(signal.SIGTERM, _interrupt)
    if how.threads is not None:
        import torch

        torch.set_num_threads(how.threads)
    with contextlib.suppress(EOFError, ConnectionError, KeyboardInterrupt):  # nothing more is asked for
        spoilt = False
        while not spoilt:
            function, item = connection.recv()
            result = function(item)
            connection.send(result)
            spoilt = getattr(result, "spoilt", False)


def _interrupt(number: int, frame: Any) -> None:
    raise KeyboardInterrupt


def _follow_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(70)
