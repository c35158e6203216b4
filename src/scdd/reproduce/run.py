"""Doing what is planned: parts of one model go together into a task, tasks go to an executor, and what fails is told.

An executor is any object with `map(function, items)` that yields results as they finish: processes of this machine
(`LocalProcesses`), or a cluster.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import re
import signal
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, TypeVar

from scdd.core.errors import UserError, reason
from scdd.core.machine import cores
from scdd.data.files import make_folder
from scdd.evals.measure.tasks import Executor
from scdd.reproduce.parts import STAGES, Part
from scdd.reproduce.work import Bench, Place, Stopped

Item = TypeVar("Item")
Result = TypeVar("Result")
LOGS = "logs"
PATIENCE = 60.0  # seconds for a training to save, once it is asked to stop


@dataclass(frozen=True)
class Task:
    """Parts that one process does, one after the other, with one model."""

    name: str
    stage: str
    parts: tuple[Part, ...]
    place: Place

    @property
    def log(self) -> Path:
        """Where its process writes what it has to say."""
        return self.place.out / LOGS / (re.sub(r"[^\w.+=-]+", "_", self.name) + ".log")


@dataclass(frozen=True)
class Outcome:
    """What became of a task's parts: finished ones, and for the others why not."""

    task: str
    finished: tuple[str, ...]
    failed: dict[str, str]
    stopped: bool = False
    """It was asked to end; what is left is done next time."""
    seconds: float = 0.0


@dataclass
class Summary:
    """What became of everything."""

    finished: list[str] = field(default_factory=list)
    failed: list[tuple[str, str, Path]] = field(default_factory=list)
    """(Part, why, log)."""
    left: list[str] = field(default_factory=list)
    """Parts for the next time: they were stopped, or wait for what was."""


def group(parts: Sequence[Part], place: Place) -> list[Task]:
    """Tasks by stage: trainings alone, measurements of one model together."""
    grouped: dict[tuple[str, str], list[Part]] = {}
    for part in parts:
        together = part.stage in ("tune", "measure")
        name = f"{part.stage}/{part.training}/seed-{part.seed}" if together else part.name
        grouped.setdefault((part.stage, name), []).append(part)
    tasks = [Task(name, stage, tuple(members), place) for (stage, name), members in grouped.items()]
    return sorted(tasks, key=lambda task: STAGES.index(task.stage))


def run(tasks: Sequence[Task], executor: Executor, tell: Callable[[str], None] = lambda line: None) -> Summary:
    """Do all tasks, stage by stage; a task that fails keeps nothing back but what needs it."""
    summary, undone = Summary(), set[str]()
    for stage in STAGES:
        ready = []
        for task in (task for task in tasks if task.stage == stage):
            parts = []
            for part in task.parts:
                missing = undone.intersection(part.needs)
                if missing:
                    summary.left.append(part.name)
                    undone.add(part.name)
                else:
                    parts.append(part)
            if parts:
                ready.append(Task(task.name, task.stage, tuple(parts), task.place))
        silent, why = {task.name: task for task in ready}, "its process ended without a word"
        try:
            for outcome in executor.map(execute, ready) if ready else ():
                task = silent.pop(outcome.task)
                undone.update(_noted(outcome, task, summary))
                tell(_line(outcome, task))
        except UserError as error:  # the executor itself gives up, as a cluster may
            why = str(error)
        late = getattr(executor, "late", False)
        for task in silent.values():
            undone.update(part.name for part in task.parts)
            if late:
                summary.left += [part.name for part in task.parts]
            else:
                summary.failed += [(part.name, why, task.log) for part in task.parts]
                tell(f"{task.name}: {why}, see {task.log}")
    return summary


def _noted(outcome: Outcome, task: Task, summary: Summary) -> list[str]:
    """Put an outcome into the summary; the parts that it leaves undone."""
    summary.finished += outcome.finished
    summary.failed += [(name, why, task.log) for name, why in outcome.failed.items()]
    left = [p.name for p in task.parts if p.name not in outcome.finished and p.name not in outcome.failed]
    summary.left += left
    return [*left, *outcome.failed]


def _line(outcome: Outcome, task: Task) -> str:
    done = f"{len(outcome.finished)} of {len(task.parts)} parts in {outcome.seconds:.1f} s"
    failed = f", {len(outcome.failed)} failed" if outcome.failed else ""
    return f"{task.name}: {done}{failed}{', stopped' if outcome.stopped else ''}"


def execute(task: Task) -> Outcome:
    """Do the parts of a task in this process; what it prints goes to its log. One part's failure keeps no other back."""
    start, finished, failed, stopped = time.monotonic(), list[str](), dict[str, str](), False
    make_folder(task.log.parent)
    with _logged(task.log):
        bench = Bench(task.place)
        for part in task.parts:
            _say(f"== {part.name}")
            try:
                bench.do(part)
                finished.append(part.name)
            except (Stopped, KeyboardInterrupt) as error:
                _say(reason(error))
                stopped = True
                break
            except UserError as error:
                failed[part.name] = str(error)
                _say(f"error: {error}")
            except Exception as error:
                failed[part.name] = f"{type(error).__name__}: {reason(error)}"
                traceback.print_exc()
    return Outcome(task.name, tuple(finished), failed, stopped, time.monotonic() - start)


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


@contextlib.contextmanager
def _logged(path: Path) -> Iterator[None]:
    """Standard output and error of this process, and of libraries below Python, at the end of a file."""
    sys.stdout.flush()
    sys.stderr.flush()
    kept = [(number, os.dup(number)) for number in (1, 2)]
    with open(path, "a", encoding="utf-8", errors="backslashreplace") as file:
        for number, _ in kept:
            os.dup2(file.fileno(), number)
        try:
            with contextlib.redirect_stdout(file), contextlib.redirect_stderr(file):
                yield
        finally:
            for number, old in kept:
                os.dup2(old, number)
                os.close(old)


# -- processes of this machine ------------------------------------------------------------------------------------------


class LocalProcesses:
    """A process a task, so many at a time; with GPUs, each process sees one.

    After `seconds` nothing is begun any more, and what runs is asked to stop: a training saves a checkpoint and ends.
    Processes end with the one that started them, however that ends.
    """

    def __init__(self, workers: int = 1, gpus: Sequence[str] = (), seconds: float | None = None) -> None:
        self.slots = list(gpus) if gpus else [""] * workers
        self.threads = None if gpus else max(1, cores() // workers)
        self.end = None if seconds is None else time.monotonic() + seconds

    @property
    def late(self) -> bool:
        """Whether the time is over."""
        return self.end is not None and time.monotonic() >= self.end

    def map(self, function: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
        """Results as they finish."""
        context: Any = _context()
        waiting, free = deque(items), deque(self.slots)
        running: dict[Connection, tuple[Any, str]] = {}
        asked = False
        try:
            while (waiting and not self.late) or running:
                while waiting and free and not self.late:
                    slot = free.popleft()
                    ours, theirs = context.Pipe(duplex=False)
                    how = _How(slot, self.threads, dict(os.environ))
                    process = context.Process(target=_work, args=(function, waiting.popleft(), theirs, how))
                    process.start()
                    theirs.close()  # so that its end is heard
                    running[ours] = process, slot
                for connection in wait(list(running), timeout=0.5):
                    assert isinstance(connection, Connection)
                    process, slot = running.pop(connection)
                    free.append(slot)
                    with contextlib.suppress(EOFError):
                        yield connection.recv()
                    process.join()
                    connection.close()
                if self.late and not asked:
                    asked = True
                    for process, _ in running.values():
                        process.terminate()
        finally:
            _end([process for process, _ in running.values()])


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


def _work(function: Callable[[Any], Any], item: Any, answer: Connection, how: _How) -> None:
    """The life of a process: see one GPU, do the work, answer, and end with the parent."""
    threading.Thread(target=_follow_parent, daemon=True).start()
    os.environ.update(how.environment)  # the server that it was forked from may be older
    if how.gpu:
        os.environ["CUDA_VISIBLE_DEVICES"] = how.gpu  # before anything asks for a device
    signal.signal(signal.SIGTERM, _interrupt)
    if how.threads is not None:
        import torch

        torch.set_num_threads(how.threads)
    answer.send(function(item))
    answer.close()


def _interrupt(number: int, frame: Any) -> None:
    raise KeyboardInterrupt


def _follow_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(70)
