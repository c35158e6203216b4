"""Doing what is planned: parts of one model go together into a task, tasks go to an executor, and what fails is told.

An executor is any object with `map(function, items)` that yields results as they finish: processes of this machine
(`processes.LocalProcesses`), or a cluster.
"""

from __future__ import annotations

import contextlib
import gc
import os
import re
import shutil
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from scdd.bundle.folder import CHECKPOINTS
from scdd.core.errors import UserError, reason
from scdd.data.files import make_folder
from scdd.evals.measure.tasks import Executor
from scdd.reproduce.parts import RUNS, STAGES, Part
from scdd.reproduce.records import Records
from scdd.reproduce.work import Bench, Place, Stopped

LOGS = "logs"
VARIANTS = 64  # of one function that the compiler keeps: systems, training or measuring


@dataclass(frozen=True)
class Task:
    """Parts that one process does, one after the other."""

    name: str
    turn: int
    """Tasks of one turn may be done at the same time; a turn begins when the one before it is over."""
    parts: tuple[Part, ...]
    place: Place
    drop: tuple[str, ...] = ()
    """Runs whose checkpoints are deleted once all parts are finished."""

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
    spoilt: bool = False
    """Its process is of no more use."""


@dataclass
class Summary:
    """What became of everything."""

    finished: list[str] = field(default_factory=list)
    failed: list[tuple[str, str, Path]] = field(default_factory=list)
    """(Part, why, log)."""
    left: list[str] = field(default_factory=list)
    """Parts for the next time: they were stopped, or wait for what was."""


def group(parts: Sequence[Part], place: Place, drop_weights: bool = False) -> list[Task]:
    """Tasks in their order.

    By stages: all trainings, each by itself, then the measurements of one model together. With `drop_weights` by runs: what
    shares weights is trained, tuned, measured and deleted in one task, first seeds first, so that nothing but numbers is left of
    what is finished.
    """
    tasks = _by_run(parts, place) if drop_weights else _by_stage(parts, place)
    return sorted(tasks, key=lambda task: task.turn)


def _by_stage(parts: Sequence[Part], place: Place) -> list[Task]:
    grouped: dict[tuple[int, str], list[Part]] = {}
    for part in sorted(parts, key=lambda part: part.seed):  # first seeds first
        together = part.stage in ("tune", "measure")
        name = f"{part.stage}/{part.run}" if together else part.name
        grouped.setdefault((STAGES.index(part.stage), name), []).append(part)
    return [Task(name, turn, tuple(members), place) for (turn, name), members in grouped.items()]


def _by_run(parts: Sequence[Part], place: Place) -> list[Task]:
    """Data, then the run that judges, which stays, then the first seed, while its tuning is to be done, which the others use, then
    these: seed by seed, and what has most to do first, so that no process is left with it alone."""
    judges = {f"{asked['training']}/seed-{asked['seed']}" for part in parts
              if (asked := part.settings.get("reference")) and "training" in asked}  # fmt: skip
    first = {part.run: part.run for part in parts if part.training}  # of each family of runs that share weights, one

    def family(run: str) -> str:
        while first[run] != run:
            run = first[run]
        return run

    for part in parts:
        for need in part.needs:
            other = need.removeprefix("train/")
            if other in first and other not in judges and need.startswith("train/") and part.run not in judges:
                first[family(other)] = family(part.run)
    seeds = sorted({part.seed for part in parts if part.training and part.run not in judges})
    tuning = any(part.stage == "tune" for part in parts)
    grouped: dict[tuple[int, int, str], list[Part]] = {}
    for part in parts:
        if not part.training:
            key = 0, 0, part.name
        elif part.run in judges:
            key = 1, 0, part.run
        else:
            key = 3 if tuning and part.seed != seeds[0] else 2, seeds.index(part.seed), family(part.run)
        grouped.setdefault(key, []).append(part)
    tasks = []
    for key in sorted(grouped, key=lambda key: (*key[:2], -len(grouped[key]))):
        members, turn, name = grouped[key], key[0], key[2]
        runs = tuple(dict.fromkeys(part.run for part in members)) if turn > 1 else ()
        ordered = tuple(sorted(members, key=lambda part: STAGES.index(part.stage)))
        tasks.append(Task("+".join(runs) or name, turn, ordered, place, runs))
    return tasks


def run(tasks: Sequence[Task], executor: Executor, tell: Callable[[str], None] = lambda line: None) -> Summary:
    """Do all tasks, turn by turn; a task that fails keeps nothing back but what needs it."""
    summary, undone = Summary(), set[str]()
    for turn in sorted({task.turn for task in tasks}):
        ready = []
        for task in (task for task in tasks if task.turn == turn):
            parts = []
            for part in task.parts:
                missing = undone.intersection(part.needs)
                if missing:
                    summary.left.append(part.name)
                    undone.add(part.name)
                else:
                    parts.append(part)
            if parts:
                ready.append(replace(task, parts=tuple(parts), drop=task.drop if len(parts) == len(task.parts) else ()))
        silent, why = {task.name: task for task in ready}, "its process ended without a word"
        try:
            for outcome in executor.map(execute, ready) if ready else ():
                task = silent.pop(outcome.task)
                undone.update(_noted(outcome, task, summary))
                Records(task.place.out).publish()  # a machine may be taken away at any time: one file to bring home
                tell(_line(outcome, task))
        except UserError as error:  # the executor itself gives up, as a cluster may
            why = str(error)
        late, died = getattr(executor, "late", False), [task.name for task in getattr(executor, "died", ())]
        for task in silent.values():
            undone.update(part.name for part in task.parts)
            if late and task.name not in died:
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
    """Do the parts of a task in this process; what it prints goes to its log. One part's failure keeps back only what needs it."""
    start, finished, failed, stopped, spoilt = time.monotonic(), list[str](), dict[str, str](), False, False
    make_folder(task.log.parent)
    with _logged(task.log), _device():
        bench, undone = Bench(task.place), set[str]()
        for part in task.parts:
            if undone.intersection(part.needs):
                undone.add(part.name)
                continue
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
                spoilt = _spoilt()
                if spoilt:
                    break
            undone.update(failed)
        if len(finished) == len(task.parts):
            for run in task.drop:
                shutil.rmtree(task.place.out / RUNS / run / CHECKPOINTS, ignore_errors=True)
    return Outcome(task.name, tuple(finished), failed, stopped, time.monotonic() - start, spoilt)


def _spoilt() -> bool:
    """Whether the GPU answers nothing any more, as after an illegal access: only another process is heard again."""
    try:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
    except RuntimeError:
        return True
    return False


@contextlib.contextmanager
def _device() -> Iterator[None]:
    """A process does many tasks: what was compiled is kept for all of them, and memory is left to whoever shares the GPU."""
    if not torch.cuda.is_available():
        yield
        return
    from torch._dynamo import config

    config.recompile_limit = max(VARIANTS, config.recompile_limit)
    try:
        yield
    finally:
        gc.collect()
        with contextlib.suppress(RuntimeError):  # of a GPU that answers no more
            torch.cuda.empty_cache()


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
