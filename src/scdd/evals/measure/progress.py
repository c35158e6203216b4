"""Progress of long work: a function that is told how much has just been done, and a bar that shows it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

Watch = Callable[[int], None]
"""Told how many units of work have just been done."""


def unwatched(done: int) -> None:
    """Nobody looks."""


def somebody_watches() -> bool:
    """Whether standard error is seen: on a terminal, or in a notebook."""
    from rich.console import Console

    console = Console(stderr=True)
    return console.is_terminal or console.is_jupyter


@contextmanager
def bar(what: str, total: int | None, live: bool) -> Iterator[Watch]:
    """A progress bar on standard error while it lasts, if `live`."""
    if not live:
        yield unwatched
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(what, total=total)
        yield lambda done: progress.advance(task, done)
