"""Worker processes that answer in order: the result does not depend on how many there are.

Written on bare pipes so that both deaths are noticed: a killed parent closes the pipes and its workers leave; a killed worker
(out of memory, say) is reported instead of waited for.
"""

from __future__ import annotations

import signal
import traceback
from collections.abc import Callable, Generator, Iterator
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from typing import Any, TypeVar, cast

from scdd.core.errors import UserError

A = TypeVar("A")
B = TypeVar("B")
AHEAD = 4  # items that are held for each worker


def ordered_map(function: Callable[[A], B], items: Iterator[A], workers: int) -> Generator[B, None, None]:
    """function(item) for each item, in order, computed by `workers` processes; at most 4 items a worker are held."""
    if workers <= 1:
        yield from map(function, items)
        return
    # spawn, not fork: the tokenizers library has threads of its own, which do not survive a fork
    context = get_context("spawn")
    processes: list[tuple[Any, Connection]] = []

    def another() -> Connection | None:
        """A new process, unless there are all of them. Each takes its time to start, so few items have few."""
        if len(processes) == workers:
            return None
        ours, theirs = context.Pipe()
        process = context.Process(target=_serve, args=(function, theirs), daemon=True)
        process.start()
        theirs.close()
        processes.append((process, ours))
        return ours

    try:
        yield from _answers(items, another, AHEAD * workers)
    finally:
        for _, connection in processes:
            connection.close()
        for process, _ in processes:
            process.join(timeout=5)
            if process.is_alive():
                process.terminate()


def _answers(items: Iterator[Any], another: Callable[[], Connection | None], window: int) -> Iterator[Any]:
    """Hand one item at a time to each idle process, at most `window` of them ahead, and yield the answers in the items' order."""
    idle: list[Connection] = []
    busy: dict[Connection, int] = {}
    done: dict[int, tuple[Exception | None, Any]] = {}
    sent = given = 0
    upcoming: Any = next(items, None)
    while upcoming is not None or busy or done:
        # One item a worker, and the next one is already read: a second one in the pipe could block both ends.
        while upcoming is not None and sent - given < window:
            connection = idle.pop() if idle else another()
            if connection is None:
                break
            connection.send(upcoming)
            busy[connection], sent = sent, sent + 1
            upcoming = next(items, None)
        while given in done:
            error, value = done.pop(given)
            if error is not None:
                raise error
            given += 1
            yield value
        starved = not idle or upcoming is None or sent - given >= window
        for connection in cast(list[Connection], wait(list(busy))) if busy and starved else []:
            try:
                done[busy.pop(connection)] = connection.recv()
            except (EOFError, ConnectionError) as death:
                raise UserError(
                    "a worker process was killed, perhaps for lack of memory: run it again with fewer workers."
                ) from death
            idle.append(connection)


def _serve(function: Callable[[Any], Any], connection: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    while True:
        try:
            item = connection.recv()
        except (EOFError, ConnectionError):
            return
        try:
            connection.send(attempt(function, item))
        except (BrokenPipeError, ConnectionError):
            return


def attempt(function: Callable[[Any], Any], item: Any) -> tuple[Exception | None, Any]:
    """(None, the answer), or (the error, None) as another process can read it."""
    try:
        return None, function(item)
    except UserError as error:
        return error, None
    except Exception:
        return RuntimeError(f"in a worker process:\n{traceback.format_exc()}"), None
