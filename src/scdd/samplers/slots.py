"""Rows in slots: tensors of a fixed number of rows, which a captured step reads and writes, and who is where in them.

A row that joins is written into a free slot, and one that leaves frees it; both are kept in mind until the next step, and then are one copy to
the device and one launch, however many rows come and go. The tables of steps stay where they are: a row whose walk is known brings none.
"""

from __future__ import annotations

import heapq
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from scdd.samplers.base import Model, State
from scdd.samplers.plan import NUMBERS, REALS, SamplingPlan, Walk
from scdd.samplers.prediction import Group
from scdd.samplers.readback import Array, Flat, Readback
from scdd.samplers.records import Layout, send, state_fields
from scdd.samplers.row_batch import BatchRow, RowBatch
from scdd.samplers.step import Present, StepResult, advance

if TYPE_CHECKING:
    from scdd.samplers.graphs import Replay


class Walks:
    """Where the steps of each walk are in the tables: they stay while some row uses them, and then until their room is wanted."""

    def __init__(self, tables: tuple[Tensor, Tensor]) -> None:
        self._tables = tables
        self._at: dict[object, tuple[int, int]] = {}  # by a walk's key: its first row, its length
        self._users: dict[object, int] = {}

    def use(self, walk: Walk) -> int | None:
        """The first row of its steps, for one row more; None where there is no room."""
        if walk.key not in self._at:
            start = self._room(len(walk))
            if start is None:
                self._at = {key: where for key, where in self._at.items() if self._users.get(key)}
                start = self._room(len(walk))
            if start is None:
                return None
            for table, steps in zip(self._tables, walk.table(), strict=True):
                send(steps, table[start : start + len(walk)])
            self._at[walk.key] = start, len(walk)
        self._users[walk.key] = self._users.get(walk.key, 0) + 1
        return self._at[walk.key][0]

    def drop(self, walk: Walk) -> None:
        """One row less."""
        self._users[walk.key] -= 1
        if not self._users[walk.key]:
            del self._users[walk.key]

    def nobody(self) -> None:
        """All rows have gone."""
        self._users.clear()

    def forget(self) -> None:
        """Nobody is here, and no steps are: the next walks lie side by side, so that all of them fit if their sum does."""
        self._users.clear()
        self._at.clear()

    def _room(self, length: int) -> int | None:
        """The first gap that is long enough."""
        end = 0
        for start, taken in sorted(self._at.values()):
            if start - end >= length:
                return end
            end = start + taken
        return end if len(self._tables[0]) - end >= length else None


@dataclass(eq=False)
class SlotTensors:
    """Tensors of one shape, and the graphs over them: one for each set of phases that rows were in."""

    model: Model
    plan: SamplingPlan
    now: Present
    moved: Tensor
    documents: Tensor | None
    output: Flat  # what `StepResult` has: one copy keeps a frame
    owner: weakref.ref[RowBatch] | None = None
    uses: dict[tuple[int, ...], int] = field(default_factory=dict)
    graphs: dict[tuple[int, ...], Replay] = field(default_factory=dict)
    held: list[object] = field(default_factory=list)  # what graphs read and others may let go of
    broken: bool = False

    def __post_init__(self) -> None:
        self.capacity, self.columns = self.moved.shape
        self.walks = Walks(self.now.tables)
        self._free = list(range(self.capacity))  # a heap: the first ones first
        self._left = set(self._free)  # free, and somebody's remains are still there
        self._joining: dict[int, Array] = {}  # by slot: the row as bytes
        self._views: dict[int, list[Tensor]] = {}  # by slot: all that a row has there, as bytes

    def run(self, phases: Sequence[int]) -> None:
        """One step, in place."""
        new, moved = advance(self.model, self.plan, self.now, phases, into=self.moved)
        pairs = zip([*stepped(self.now), self.moved], [*stepped(new), moved], strict=True)
        changed = [pair for pair in pairs if pair[0] is not pair[1]]
        for dtype in {mine.dtype for mine, _ in changed}:  # one launch each; none where a kernel has written over all
            mine, others = zip(*(pair for pair in changed if pair[0].dtype == dtype), strict=True)
            torch._foreach_copy_(mine, others)

    # -- coming and going ---------------------------------------------------------------------------------------------

    def join(self, row: BatchRow, values: Mapping[str, Any]) -> bool:
        """A row that begins with the next step. False where its walk finds no room."""
        start = self.walks.use(row.walk)
        if start is None:
            return False
        row.slot = heapq.heappop(self._free)
        made = self._layout.nobody.reshape(1).copy()
        for name, value in values.items():
            made[name] = value
        made["at"], made["pace"], made["done"], made["heat"] = start + row.taken, 1, False, row.temperature
        if self.documents is not None:
            made["documents"][0, row.length :] = -1
        self._joining[row.slot] = made.view(np.uint8)
        self._left.discard(row.slot)
        return True

    def leave(self, rows: Sequence[BatchRow]) -> None:
        """Their slots are free."""
        for row in rows:
            self._joining.pop(row.slot, None)
            self._left.add(row.slot)
            heapq.heappush(self._free, row.slot)
            self.walks.drop(row.walk)

    def settle(self) -> None:
        """Write down who has come and who has gone: one copy, one launch."""
        if not self._joining and not self._left:
            return
        layout, mine, others = self._layout, list[Tensor](), list[Tensor]()
        if self._joining:
            layout.fill([*self._joining.values()])
        for number, slot in enumerate(self._joining):
            mine += self._parts(slot)
            others += layout.parts(number)
        for slot in self._left:
            mine += self._parts(slot)
            others += layout.parts(self.capacity)
        torch._foreach_copy_(mine, others)
        self._joining.clear()
        self._left.clear()

    @property
    def _layout(self) -> Layout:
        if self._made is None:
            with torch.inference_mode(False):  # else only callers in that mode could write to it
                self._made = Layout(self._fields(), self.capacity)
        return self._made

    _made: Layout | None = field(default=None, init=False)

    def _fields(self) -> dict[str, Tensor]:
        """All that a row has, by name."""
        now, heat = self.now, self.now.filters.temperature
        assert isinstance(heat, Tensor)
        found = {**state_fields(now.state), "calls": now.calls, "keys": now.keys}
        found |= {"at": now.at, "pace": now.pace, "heat": heat}
        return found if self.documents is None else {**found, "documents": self.documents}

    def _parts(self, slot: int) -> list[Tensor]:
        if slot not in self._views:
            whole = self._fields().values()
            self._views[slot] = [each[slot : slot + 1].reshape(-1).view(torch.uint8) for each in whole]
        return self._views[slot]

    # -- moving in and out --------------------------------------------------------------------------------------------

    def take(self, batch: RowBatch) -> None:
        """A batch's rows move in, into the first slots; nobody is in the rest, where nothing moves."""
        self.give_back()
        self.walks.forget()
        now, fixed, rows = batch.present, self.now, len(batch.rows)
        self._free = list(range(rows, self.capacity))
        self._left.difference_update(range(rows))
        starts = []
        for slot, row in enumerate(batch.rows):
            start = self.walks.use(row.walk)
            assert start is not None, "`graphs` finds a shape whose tables hold all walks"
            row.slot = slot
            starts.append(start + row.taken)
        heat = fixed.filters.temperature
        assert isinstance(heat, Tensor)
        for mine, other in zip(
            [*stepped(fixed), fixed.keys, fixed.pace], [*stepped(now), now.keys, now.pace], strict=True
        ):
            mine[:rows].copy_(other)
        send(torch.tensor(starts), fixed.at[:rows])
        send(torch.tensor([[row.temperature] for row in batch.rows], dtype=torch.float64), heat[:rows])
        if self.documents is not None:
            columns = torch.arange(self.columns, device=self.documents.device)
            self.documents[:rows].copy_(torch.where(columns < fixed.state.lengths[:rows, None], 0, -1))
        self.owner = weakref.ref(batch)
        batch.move_into(self)

    def lend(self, batch: RowBatch) -> None:
        """An empty batch's rows will be here."""
        self.give_back()
        self.owner = weakref.ref(batch)
        batch.move_into(self)

    def give_back(self) -> None:
        """Whoever is in the tensors gets copies of its own."""
        owner = self.owner() if self.owner is not None else None
        if owner is not None and owner.slots is self:
            owner.move_out(self.rows_of([row.slot for row in owner.rows]) if owner.rows else None)
        self._left.update(set(range(self.capacity)).difference(self._free))
        self._free, self.owner = list(range(self.capacity)), None
        self._joining.clear()
        self.walks.nobody()

    def rows_of(self, slots: Sequence[int]) -> tuple[State, Tensor, Tensor]:
        """(The rows in these slots, their keys, their calls), as copies."""
        self.settle()
        at = torch.tensor(slots, dtype=torch.int64, device=self.moved.device)
        return self.now.state.changed(lambda each: each[at]), self.now.keys[at], self.now.calls[at]

    # -- reading ------------------------------------------------------------------------------------------------------

    def result(self, slots: Sequence[int]) -> StepResult:
        """The rows in these slots after a step: a copy, since the next one writes over it."""
        views, count = self.output.views(self.output.bytes.clone()), len(slots)
        if list(slots) == list(range(count)):
            return StepResult(*(view[:count] for view in views))
        at = torch.tensor(slots, device=self.moved.device)
        return StepResult(*(view[at] for view in views))

    def readback(self, slots: Sequence[int]) -> Readback:
        """The same, of which nothing is copied yet."""
        return Readback(slots, self.output)


def stepped(now: Present) -> list[Tensor]:
    """What a step changes."""
    return [*now.state.tensors(), now.calls, now.at]


@dataclass(frozen=True)
class Size:
    """What tensors are made for."""

    capacity: int  # rows
    columns: int
    steps: int  # rows of the tables
    masked: tuple[bool, ...]  # of each group: whether the network is told of padding
    device: torch.device


def made(batch: RowBatch, like: State, size: Size, model: Model) -> SlotTensors:
    """Tensors for batches like this one, whose rows have what those of `like` have; nobody is in them yet."""
    device, each = size.device, size.capacity // len(size.masked)

    def zeros(*shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
        return torch.zeros(shape, dtype=dtype, device=device)

    state = like.changed(lambda part: zeros(size.capacity, *part.shape[1:], dtype=part.dtype))
    moved = zeros(size.capacity, size.columns, dtype=torch.int8)
    output = Flat([state.tokens, moved, state.log_p, state.counts, state.nfe])
    tokens, moved, log_p, counts, nfe = output.views()
    documents = zeros(size.capacity, size.columns) if any(size.masked) else None
    groups = []
    for number, told in enumerate(size.masked):
        rows = slice(number * each, (number + 1) * each)
        groups.append(Group(rows, size.columns, 0, documents[rows] if documents is not None and told else None))
    heat = torch.ones((size.capacity, 1), dtype=torch.float64, device=device)
    now = Present(
        state=replace(state, tokens=tokens, log_p=log_p, counts=counts, nfe=nfe),
        keys=zeros(size.capacity),
        calls=zeros(size.capacity),
        at=zeros(size.capacity),
        pace=zeros(size.capacity),
        tables=(zeros(size.steps, REALS, dtype=torch.float64), zeros(size.steps, NUMBERS)),
        filters=replace(batch.plan.filters, temperature=heat),
        groups=tuple(groups),
    )
    return SlotTensors(model, batch.plan, now, moved, documents, output)
