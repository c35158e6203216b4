"""Rows that share network evaluations, each at its own step of its own walk.

Rows join at any step, each with its own times, temperature, seed and length, and leave at any step: what a row becomes does
not depend on its company, since its random numbers are its own (`core.rng`) and evaluations are grouped so that they round
alike (`samplers.prediction`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor

from scdd.core.rng import CounterRNG
from scdd.samplers.base import Model, Sampler, State
from scdd.samplers.plan import SamplingPlan, Walk, batch_rules, by_row
from scdd.samplers.prediction import Group, Room, row_groups
from scdd.samplers.step import Present, StepResult, TokenRows, advance, begin, phases_of, result_of

if TYPE_CHECKING:
    from scdd.samplers.graphs import StepGraphs

T = TypeVar("T")
WALKS = 256  # that a batch remembers, at most, beside those of its rows


@dataclass(eq=False)
class BatchRow:
    """One row under way, known by this handle."""

    walk: Walk
    temperature: float
    length: int
    taken: int = 0
    """Steps behind it."""
    steps: int = 0
    """Of its walk."""
    ended: bool = False
    """Nothing is left to do: at its walk's end, or before (threshold, gidd-correct, a tolerance)."""
    slot: int = 0
    """Where it is in the tensors of a shape, while its batch is there (`slots`)."""

    @property
    def moment(self) -> tuple[int, int, float, float]:
        """(Number, of how many, t, s) of the last step taken."""
        return (self.taken, self.steps, *self.walk.span(self.taken - 1)) if self.taken else (0, 0, 0.0, 0.0)


class RowBatch:
    """Rows that share network evaluations, each at its own step of its own walk."""

    def __init__(
        self, model: Model, plan: SamplingPlan, width: int | None = None, fewer: Sequence[int] = (), patience: int = 0
    ) -> None:
        """For rows of plans that agree with `plan` (`takes`). `width`: rows are padded to so many columns and their padding is
        masked always, so that on a GPU a row's numbers do not depend on the lengths of others; None: to the longest row's.
        `fewer`: numbers of rows, ascending, that round as the plan's `rows_per_forward` do: the least that holds all rows is used,
        after `patience` steps for which it would have done."""
        self.model, self.plan, self.width = model, plan, width
        self.room = Room(tuple(fewer), plan.rows_per_forward, patience)
        self.rows: list[BatchRow] = []
        self.slots: Any = None  # whose tensors the rows are in (`slots.SlotTensors`); None: in their own
        self.weights: list[Tensor] | None = None  # the network's, once `graphs` has asked
        self._own: Present | None = None
        self._captured = False
        self._by_row, self._rules = by_row(plan), batch_rules(plan)
        self.may_end = plan.sampler.finishes or plan.tolerance is not None  # rows may, before their walk does
        self._walks: dict[object, Walk] = {}

    def takes(self, plan: SamplingPlan, rules: tuple[object, ...] | None = None) -> bool:
        """Whether rows of this plan, whose `batch_rules` are known or not, may join now. Samplers that see one step for all rows, or read
        the network themselves with a cache that grows (ar), walk with those they began with."""
        return (batch_rules(plan) if rules is None else rules) == self._rules and (self._by_row or not self.rows)

    @property
    def device(self) -> torch.device:
        """Where the rows are."""
        return self.model.denoiser.head.weight.device

    @property
    def columns(self) -> int:
        """Of every row, padding included; as far as it is known before there are any."""
        if self.slots is not None:
            return int(self.slots.columns)
        return self._own.state.tokens.shape[1] if self._own is not None else self.width or 0

    @property
    def present(self) -> Present:
        """All that the next step reads, in tensors of the rows' own."""
        if self.slots is not None:
            self.slots.give_back()
        assert self._own is not None, "nobody is here"
        return self._own

    @torch.no_grad()
    def add(self, rows: TokenRows, rng: CounterRNG, plan: SamplingPlan | None = None) -> list[BatchRow]:
        """Rows that take their first step with the next one of the batch; `rng` has their seeds and numbers. On the host both are
        best: where the rows of a GPU are in a graph's tensors, they get there without waiting."""
        plan = self.plan if plan is None else plan
        if not self.takes(plan):
            raise ValueError("rows of this plan cannot join here: ask `takes`")
        plan.sampler.check(self.model)
        walk = self._walk(plan, rows)
        lengths = [rows.tokens.shape[1]] * len(rows.tokens) if rows.lengths is None else list(rows.lengths)
        temperature = plan.filters.temperature
        assert isinstance(temperature, float | int)
        steps, heat = len(walk), float(temperature)
        new = [BatchRow(walk, heat, length, steps=steps, ended=not steps) for length in lengths]
        graphs, on_host = self.model.graphs, rows.tokens.device.type == rng.keys.device.type == "cpu"
        with nullcontext() if graphs is None else graphs.lock:
            before, self.room.held = self.room.held, max(self.room.held, len(self.rows) + len(new))
            try:
                fits = graphs is not None and self.width is not None and on_host
                if not fits or graphs is None or not graphs.join(self, new, rows, rng, plan.sampler):
                    self._join(rows, rng, plan.sampler, new)
                else:
                    self.rows += new
            except BaseException:
                self.room.held = before
                raise
        return new

    def _join(self, rows: TokenRows, rng: CounterRNG, sampler: Sampler, new: Sequence[BatchRow]) -> None:
        """Into tensors of the rows' own."""
        state, mask_id = begin(rows, sampler, self.device), self.model.denoiser.vocab.mask_id
        keys = rng.keys.to(self.device)
        calls = torch.zeros_like(keys) + rng.calls
        if self.rows:
            old, width = self.present, max(self.present.state.tokens.shape[1], state.tokens.shape[1])
            state = old.state.widened(width, mask_id).joined(state.widened(width, mask_id))
            keys, calls = torch.cat([old.keys, keys]), torch.cat([old.calls, calls])
        self.rows += new
        self._arrange(state if self.width is None else state.widened(self.width, mask_id), keys, calls)

    @torch.no_grad()
    def remove(self, rows: Sequence[BatchRow]) -> None:
        """Rows that have ended, or that nobody wants any more, leave."""
        gone = {id(row) for row in rows}
        kept = [i for i, row in enumerate(self.rows) if id(row) not in gone]
        if len(kept) == len(self.rows):
            return
        with self.undisturbed():
            now = None if self.slots is not None and self.width is not None else self.present
            left, self.rows = [row for row in self.rows if id(row) in gone], [self.rows[i] for i in kept]
            self.room.leave(len(self.rows))
            if now is None:
                self.slots.leave(left)
                if not self.rows:
                    self.slots.give_back()
            elif self.rows:
                places = torch.tensor(kept, device=now.keys.device)
                self._arrange(now.state.changed(lambda each: each[places]), now.keys[places], now.calls[places])
            else:
                self._own = None

    def step(self) -> StepResult:
        """One evaluation, one step of every row. Rows that have ended stay as they are until they are removed."""
        return self.stepped(lambda graphs, phases: graphs.step(self, phases), lambda seen: seen)

    @torch.no_grad()
    def stepped(self, captured: Callable[[StepGraphs, tuple[int, ...]], T], plain: Callable[[StepResult], T]) -> T:
        """A step, and what is made of it where it is captured and where it is not."""
        try:
            present = {row.walk.phases[row.taken] for row in self.rows}
        except IndexError:
            raise ValueError("a row is at its walk's end: remove it") from None
        phases = phases_of(self.plan, present)
        graphs = self.model.graphs if self._captured else None
        with self.undisturbed():
            if self.room.made_do(len(self.rows)) and self._own is not None:
                lengths = [row.length for row in self.rows]
                self._own = replace(self._own, groups=self._grouped(self._own.state, lengths))
            found = plain(self._step(phases)) if graphs is None else captured(graphs, phases)
            done = self._done() if self.may_end else ()
        for row in self.rows:
            row.taken += 1
            row.ended = row.taken == row.steps
        for row, early in zip(self.rows, done, strict=False):
            row.ended |= early
        return found

    def _done(self) -> list[bool]:
        """Which rows have finished early: the host waits for it."""
        if self.slots is None:
            assert self._own is not None
            return self._own.state.done.tolist()
        done = self.slots.now.state.done.tolist()
        return [done[row.slot] for row in self.rows]

    @property
    def rows_per_forward(self) -> int | None:
        """Of every evaluation of the rows that are here now, filled up."""
        return self.room.size

    @property
    def standing(self) -> StepResult:
        """The rows as they stand, nothing having moved."""
        with self.undisturbed():
            state = self.present.state
            return result_of(state, torch.zeros_like(state.tokens, dtype=torch.int8))

    def undisturbed(self) -> AbstractContextManager[object]:
        """While it lasts, no batch of another thread takes over the tensors that the rows are in, if they are in a graph's."""
        graphs = self.model.graphs if self._captured else None
        return nullcontext() if graphs is None else graphs.lock

    def move_into(self, shape: Any) -> None:
        """The rows are in its tensors from now on."""
        self.slots, self._own, self._captured = shape, None, True

    def move_out(self, rows: tuple[State, Tensor, Tensor] | None) -> None:
        """The rows, as (state, keys, calls) if there are any, are in tensors of their own from now on."""
        self.slots = None
        if rows is not None:
            self._arrange(*rows)

    def _step(self, phases: Sequence[int]) -> StepResult:
        now = self.present
        groups = now.groups
        if self.may_end:
            groups = tuple(each for each in groups if not all(self.rows[i].ended for i in each.places))
        own = None if self._by_row else self.rows[0].walk.step(self.rows[0].taken)
        after, moved = advance(self.model, self.plan, replace(now, groups=groups), phases, own)
        self._own = replace(after, groups=now.groups)
        return result_of(after.state, moved)

    def _walk(self, plan: SamplingPlan, rows: TokenRows) -> Walk:
        """The steps of new rows: those of rows that were here before, if they are the same."""
        key = (plan.times, plan.scale, plan.end)
        if self._by_row and key in self._walks:
            return self._walks[key]
        place = None if self._by_row else self.device  # times that depend on rows may depend on the network as well
        walk = replace(Walk.of(self.model, plan, begin(rows, plan.sampler, place).updatable), key=key)
        if not self._by_row:
            return walk.to(self.device)
        if len(self._walks) >= WALKS:
            here = {row.walk.key for row in self.rows}
            self._walks = {each: old for each, old in self._walks.items() if each in here}
        self._walks[key] = walk
        return walk

    def _arrange(self, state: State, keys: Tensor, calls: Tensor) -> None:
        """Make `present` anew, of whoever is here now."""
        device, temperatures, lengths = keys.device, [r.temperature for r in self.rows], [r.length for r in self.rows]
        # On a GPU never as a number, which kernels round with in another way: a row's bits would tell its company.
        several = len(set(temperatures)) > 1 or (self._by_row and keys.is_cuda)
        each = torch.tensor(temperatures, dtype=torch.float64, device=device)[:, None] if several else temperatures[0]
        walks = list({id(row.walk): row.walk for row in self.rows}.values())
        starts = dict(zip(map(id, walks), accumulate(map(len, walks), initial=0), strict=False))
        real, whole = zip(*(walk.table() for walk in walks), strict=True)
        self._own = Present(
            state=state,
            keys=keys,
            calls=calls,
            at=torch.tensor([starts[id(row.walk)] + row.taken for row in self.rows], device=device),
            pace=torch.ones_like(keys),
            tables=(torch.cat(real).to(device), torch.cat(whole).to(device)),
            filters=replace(self.plan.filters, temperature=each),
            groups=self._grouped(state, lengths),
        )
        self._captured = self.model.graphs is not None and self.model.graphs.why_not(self) is None

    def _grouped(self, state: State, lengths: Sequence[int]) -> tuple[Group, ...]:
        return row_groups(state.tokens, lengths, self.rows_per_forward, self.width is not None)
