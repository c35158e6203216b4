"""Measurements as tasks: planned here, made by whoever has a device to spare, and kept here as they finish.

A task is plain data: functions, what they are given, and where the models lie. It is made in a folder of its own, which may be on
another machine, and what comes back are the files that the store would have. So nothing but the checkpoints must be seen by all.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch

from scdd.core.errors import UserError
from scdd.data.files import write_atomically
from scdd.evals.measure.model import EvalModel, ModelSource
from scdd.evals.measure.reference_lm import ReferenceLM, open_reference_lm
from scdd.evals.measure.store import FOLDER, MeasureContext, Measurement, Store, parsed, plain
from scdd.training.parallel import World

A = TypeVar("A")
B = TypeVar("B")


class Executor(Protocol):
    """Whoever carries out tasks: a pool, a cluster."""

    def map(self, function: Callable[[A], B], items: Iterable[A]) -> Iterator[B]:
        """function(item) for each item, as they finish; nothing for one whose process died."""
        ...


@dataclass(frozen=True)
class JudgeSource:
    """Which reference LM."""

    name: str
    batch_size: int

    def open(self, device: str | torch.device) -> ReferenceLM:
        """The reference LM again."""
        return open_reference_lm(self.name, device, self.batch_size)


@dataclass(frozen=True)
class Call:
    """One measurement: `number` says which of those that were asked for. Models among its arguments are sources."""

    number: int
    function: Callable[..., Measurement]
    arguments: tuple[Any, ...]


@dataclass(frozen=True)
class Task:
    """Measurements that need the same first step, one after the other: the second finds what the first has made."""

    calls: tuple[Call, ...]
    known: dict[str, str]
    """Files of the store that they need, by name."""
    batch_size: int | None = None
    device: str | None = None
    """None: a GPU where there is one."""


@dataclass(frozen=True)
class Outcome:
    """What a task made: files of the store that are new or changed, and the measurements by their calls' numbers."""

    files: dict[str, str]
    measured: dict[int, Measurement]


class _Unmade(Exception):
    """The store has no such measurement."""


class _Looking(Store):
    """A store that makes nothing: it says what is missing first, and remembers what was found."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.found: dict[str, str] = {}

    def measurement(
        self,
        kind: str,
        model: EvalModel,
        settings: dict[str, Any],
        measure: Callable[[], dict[str, Any]],
        text: str = "",
    ) -> Measurement:
        """The stored one; raises the missing one's file name."""
        path = self.path(kind, {"model": model.identity, **plain(settings)})
        if not path.is_file():
            raise _Unmade(path.name)
        self.found[path.name] = path.read_text(encoding="utf-8")
        return parsed(self.found[path.name], path)


@dataclass
class Plan:
    """Measurements that are asked for one by one, and made together."""

    store: Store
    batch_size: int | None = None
    device: str | None = None
    judges: list[tuple[ReferenceLM, JudgeSource]] = field(default_factory=list)
    tasks: dict[str, Task] = field(default_factory=dict)
    """By the file that is missing first."""
    measured: dict[int, Measurement] = field(default_factory=dict)

    def add(self, function: Callable[..., Measurement], *arguments: Any) -> None:
        """One more; what the store has is taken from there at once."""
        number = len(self.measured) + sum(len(task.calls) for task in self.tasks.values())
        look = _Looking(self.store.folder)
        try:
            function(MeasureContext(look, self.batch_size), *arguments)
        except _Unmade as missing:
            call = Call(number, function, tuple(map(self._source, arguments)))
            task = self.tasks.get(str(missing), Task((), {}, self.batch_size, self.device))
            self.tasks[str(missing)] = replace(task, calls=(*task.calls, call), known={**task.known, **look.found})
        else:
            self.measured[number] = function(MeasureContext(self.store, self.batch_size), *arguments)

    def _source(self, argument: Any) -> Any:
        if isinstance(argument, EvalModel):
            if argument.source is None:
                raise UserError(
                    f"{argument.label} was made in Python, and no other process can open it: save it first."
                )
            return argument.source
        return next((source for judge, source in self.judges if judge is argument), argument)

    def run(self, executor: Executor) -> Generator[int, None, None]:
        """Have the tasks carried out, and keep what they make; yields how many calls are done, task by task."""
        for outcome in executor.map(carry_out, list(self.tasks.values())):
            folder = self.store.folder / FOLDER
            folder.mkdir(parents=True, exist_ok=True)
            for name, content in outcome.files.items():
                write_atomically(folder / name, content.encode())
            for number, made in outcome.measured.items():
                assert made.path is not None
                self.measured[number] = replace(made, path=folder / made.path.name)
            yield len(outcome.measured)
        self.tasks.clear()

    def results(self) -> list[Measurement]:
        """All of them, in the order in which they were asked for."""
        return [self.measured[number] for number in sorted(self.measured)]


def carry_out(task: Task) -> Outcome:
    """Make a task's measurements on this process's device."""
    device = task.device or ("cuda" if torch.cuda.is_available() else "cpu")
    with tempfile.TemporaryDirectory(prefix="scdd-eval-") as folder:
        cells = Path(folder) / FOLDER
        cells.mkdir()
        for name, content in task.known.items():
            (cells / name).write_text(content, encoding="utf-8")
        context = MeasureContext(Store(folder, World(device=torch.device(device))), task.batch_size)
        measured: dict[int, Measurement] = {}
        for call in task.calls:
            measured[call.number] = call.function(context, *(_opened(each, device) for each in call.arguments))
        files = {path.name: path.read_text(encoding="utf-8") for path in sorted(cells.iterdir())}
    return Outcome({n: text for n, text in files.items() if task.known.get(n) != text}, measured)


def _opened(argument: Any, device: str) -> Any:
    return _open(argument, device) if isinstance(argument, ModelSource | JudgeSource) else argument


@lru_cache(maxsize=2)  # a model and its judge: the next task is often about the same
def _open(source: ModelSource | JudgeSource, device: str) -> Any:
    return source.open(device)
