"""What is under way in batches: windows of jobs' texts, the batches that they are in, and steps that nobody has looked at."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from scdd.lm.run import Due
from scdd.samplers.readback import Readback
from scdd.samplers.row_batch import BatchRow, RowBatch
from scdd.serve.jobs import Job
from scdd.serve.sharing import Shape
from scdd.serve.step_events import Kept, When


class Ask(NamedTuple):
    """A window of a job's text that is to be drawn."""

    job: Job
    number: int
    due: Due


@dataclass(eq=False)
class Entry:
    """The same in a batch."""

    ask: Ask
    row: BatchRow
    cost: float  # of a step
    kept: list[Kept] | None = None  # recorded steps, where they are wanted


@dataclass(eq=False)
class RunningBatch:
    """A batch, and what its rows are, in their order."""

    batch: RowBatch
    process: object
    shape: Shape
    owner: Job | None  # the one job that it is for; None: any
    entries: list[Entry] = field(default_factory=list)


class RowReading(NamedTuple):
    """An entry that somebody wants to know, as it was after a step."""

    entry: Entry
    slot: int
    moment: When
    taken: int
    ended: bool


class LaunchedStep(NamedTuple):
    """A step that was launched and not looked at."""

    running: RunningBatch
    readback: Readback
    readings: list[RowReading]

    @property
    def ended(self) -> list[Entry]:
        """Whose rows have left the batch, and whose texts wait to be settled."""
        return [each.entry for each in self.readings if each.ended]
