"""`python -m tests.reproduce.killed OUT MOMENT`: the mini scale in processes, killed at a moment from inside one of them."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from scdd.reproduce.processes import LocalProcesses
from scdd.reproduce.records import Records
from scdd.reproduce.run import Task, run
from scdd.training.trainer import Trainer


def kill_command(task: Task) -> None:
    """SIGKILL the command itself. This process should end with it; if it does not, it leaves a trace."""
    command = multiprocessing.parent_process()
    assert command is not None
    assert command.pid is not None
    os.kill(command.pid, signal.SIGKILL)
    time.sleep(20)
    (task.place.out / "survived").touch()


def saved(task: Task) -> None:
    """Wait for the checkpoint that is being written beside the training: on a busy machine that may take longer than some steps."""
    for _ in range(200):
        if any((task.place.out / "runs").rglob("checkpoints/step-*10")):
            return
        time.sleep(0.1)


def doomed(function: Callable[[Task], Any], moment: str, task: Task) -> Any:
    """`function` of a task, with the kill set for a step of training or the record of a kind of part."""
    write, advance, steps = Records.write, Trainer.advance, 0

    def record(self: Records, part: Any, *rest: Any) -> None:
        write(self, part, *rest)
        if part.kind == moment:
            kill_command(task)

    def step(self: Trainer, *arguments: Any, **more: Any) -> Any:
        nonlocal steps
        steps += 1
        if moment == f"step {steps}":
            saved(task)
            kill_command(task)
        return advance(self, *arguments, **more)

    Records.write, Trainer.advance = record, step  # type: ignore[method-assign, assignment]
    return function(task)


class Doomed:
    """Processes of this machine, one of which kills its command."""

    def __init__(self, moment: str) -> None:
        self.moment = moment

    def map(self, function: Callable[[Any], Any], items: Iterable[Any]) -> Iterator[Any]:
        return LocalProcesses(1).map(partial(doomed, function, self.moment), items)


if __name__ == "__main__":
    from tests.reproduce.test_run import tasks_of

    run(tasks_of(Path(sys.argv[1])), Doomed(sys.argv[2]))
