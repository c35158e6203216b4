"""The only loop: evaluate, decide, move, record. The terminal, the trace, the metrics and the server all read its frames.

`sample_loop` walks rows that begin together. `RowBatch`, which does the work, also takes rows that join at any step, each with
its own times, temperature, seed and length, and lets them go at any step: what a row becomes does not depend on its
company, since its random numbers are its own (`core.rng`) and evaluations are grouped so that they round alike
(`samplers.prediction`). What the last step does is in `samplers.final`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from scdd.core import Transition
from scdd.core.rng import CounterRNG
from scdd.ops.common import Filters
from scdd.samplers.base import (
    LAST,
    PASS,
    REFINE,
    WALK,
    Context,
    Model,
    PassRule,
    Sampler,
    State,
    Step,
    Tokens,
    apply_transition,
)
from scdd.samplers.final import finalised, stopping_rows, towards_the_end
from scdd.samplers.plan import SamplingPlan, Walk, by_row, columns, company
from scdd.samplers.prediction import Group, Prediction, Room, row_groups

if TYPE_CHECKING:
    from scdd.samplers.graphs import StepGraphs

T = TypeVar("T")
WALKS = 256  # that a batch remembers, at most, beside those of its rows


KEPT, UNMASKED, CORRECTED, REMASKED = 0, 1, 2, 3
KINDS = ("kept", "unmasked", "corrected", "remasked")
"""What happened to a position, by number: a mask became a token, a token became another token, a token became a mask."""


@dataclass(frozen=True)
class TokenRows:
    """Rows to be walked: tokens [B, L] at the plan's first time, and what of them must stay as it is."""

    tokens: Tensor
    frozen: Tensor | None = None  # [B, L]
    lengths: Sequence[int] | None = None  # real columns of each row; those beyond are padding


class Frame(NamedTuple):
    """The texts after a step, and what moved. Tensors stay where the network lives: reading one may wait for it."""

    step: int  # 1 … steps
    steps: int
    t: float
    s: float
    tokens: Tensor  # [B, L] int64
    moved: Tensor  # [B, L] int8, see KINDS
    log_p: Tensor  # [B, L] float32: log x_θ of the token as of this step; NaN where noise was drawn, −∞ at masks
    counts: Tensor  # [B, 3] int64: positions unmasked, corrected and remasked so far
    nfe: Tensor  # [B] int64: network evaluations so far


@torch.no_grad()
def sample_loop(model: Model, plan: SamplingPlan, rows: TokenRows, rng: CounterRNG) -> Iterator[Frame]:
    """Walk `rows` back to clean text as planned; a frame a step, or the last one only where nobody looks."""
    batch = RowBatch(model, plan)
    batch.add(rows, rng)
    frame = Frame(0, 0, 0.0, 0.0, *batch.seen)
    while not all(row.ended for row in batch.rows):
        seen = batch.step()
        frame = Frame(*batch.rows[0].moment, *seen)
        if plan.record:
            yield frame
    if not plan.record or frame.step == 0:  # without steps (final "none" of a single one) nothing has moved
        yield frame


class Seen(NamedTuple):
    """What a frame shows of a batch's rows, in their order; new tensors each step."""

    tokens: Tensor
    moved: Tensor
    log_p: Tensor
    counts: Tensor
    nfe: Tensor


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
    place: int = 0
    """Where it is in the tensors of a shape, while its batch is there (`places`)."""

    @property
    def moment(self) -> tuple[int, int, float, float]:
        """(Number, of how many, t, s) of the last step taken."""
        return (self.taken, self.steps, *self.walk.span(self.taken - 1)) if self.taken else (0, 0, 0.0, 0.0)


@dataclass(frozen=True)
class Present:
    """All that a step reads of a batch's rows; tensors, on the device."""

    state: State
    keys: Tensor  # [B], of the random numbers
    calls: Tensor  # [B]: random numbers drawn so far
    at: Tensor  # [B]: the row's next step, as a row of the tables
    pace: Tensor  # [B]: 1, or 0 where nobody is
    tables: tuple[Tensor, Tensor]  # steps of all walks (`plan.Walk.table`)
    filters: Filters
    groups: tuple[Group, ...]
    last: Prediction | None = None
    """The evaluation of the step before, on a CPU: rows that did not change are not evaluated again."""


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
        self.place: Any = None  # whose tensors the rows are in (`places.Shape`); None: in their own
        self.weights: list[Tensor] | None = None  # the network's, once `graphs` has asked
        self._own: Present | None = None
        self._captured = False
        self._by_row, self._company = by_row(plan), company(plan)
        self.may_end = plan.sampler.finishes or plan.tolerance is not None  # rows may, before their walk does
        self._walks: dict[object, Walk] = {}

    def takes(self, plan: SamplingPlan, rules: tuple[object, ...] | None = None) -> bool:
        """Whether rows of this plan, whose `company` is known or not, may join now. Samplers that see one step for all rows, or read
        the network themselves with a cache that grows (ar), walk with those they began with."""
        return (company(plan) if rules is None else rules) == self._company and (self._by_row or not self.rows)

    @property
    def device(self) -> torch.device:
        """Where the rows are."""
        return self.model.denoiser.head.weight.device

    @property
    def columns(self) -> int:
        """Of every row, padding included; as far as it is known before there are any."""
        if self.place is not None:
            return int(self.place.columns)
        return self._own.state.tokens.shape[1] if self._own is not None else self.width or 0

    @property
    def present(self) -> Present:
        """All that the next step reads, in tensors of the rows' own."""
        if self.place is not None:
            self.place.give_back()
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
            now = None if self.place is not None and self.width is not None else self.present
            left, self.rows = [row for row in self.rows if id(row) in gone], [self.rows[i] for i in kept]
            self.room.leave(len(self.rows))
            if now is None:
                self.place.leave(left)
                if not self.rows:
                    self.place.give_back()
            elif self.rows:
                places = torch.tensor(kept, device=now.keys.device)
                self._arrange(now.state.changed(lambda each: each[places]), now.keys[places], now.calls[places])
            else:
                self._own = None

    def step(self) -> Seen:
        """One evaluation, one step of every row. Rows that have ended stay as they are until they are removed."""
        return self.stepped(lambda graphs, phases: graphs.step(self, phases), lambda seen: seen)

    @torch.no_grad()
    def stepped(self, captured: Callable[[StepGraphs, tuple[int, ...]], T], plain: Callable[[Seen], T]) -> T:
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
        if self.place is None:
            assert self._own is not None
            return self._own.state.done.tolist()
        done = self.place.now.state.done.tolist()
        return [done[row.place] for row in self.rows]

    @property
    def rows_per_forward(self) -> int | None:
        """Of every evaluation of the rows that are here now, filled up."""
        return self.room.size

    @property
    def seen(self) -> Seen:
        """The rows as they stand, nothing having moved."""
        with self.undisturbed():
            state = self.present.state
            return shown(state, torch.zeros_like(state.tokens, dtype=torch.int8))

    def undisturbed(self) -> AbstractContextManager[object]:
        """While it lasts, no batch of another thread takes over the tensors that the rows are in, if they are in a graph's."""
        graphs = self.model.graphs if self._captured else None
        return nullcontext() if graphs is None else graphs.lock

    def move_into(self, shape: Any) -> None:
        """The rows are in its tensors from now on."""
        self.place, self._own, self._captured = shape, None, True

    def move_out(self, rows: tuple[State, Tensor, Tensor] | None) -> None:
        """The rows, as (state, keys, calls) if there are any, are in tensors of their own from now on."""
        self.place = None
        if rows is not None:
            self._arrange(*rows)

    def _step(self, phases: Sequence[int]) -> Seen:
        now = self.present
        groups = now.groups
        if self.may_end:
            groups = tuple(each for each in groups if not all(self.rows[i].ended for i in each.places))
        own = None if self._by_row else self.rows[0].walk.step(self.rows[0].taken)
        after, moved = advance(self.model, self.plan, replace(now, groups=groups), phases, own)
        self._own = replace(after, groups=now.groups)
        return shown(after.state, moved)

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
        device, heats, lengths = keys.device, [r.temperature for r in self.rows], [r.length for r in self.rows]
        # On a GPU never as a number, which kernels round with in another way: a row's bits would tell its company.
        own_heats = len(set(heats)) > 1 or (self._by_row and keys.is_cuda)
        each = torch.tensor(heats, dtype=torch.float64, device=device)[:, None] if own_heats else heats[0]
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


def advance(
    model: Model, plan: SamplingPlan, now: Present, phases: Sequence[int], step: Step | None = None
) -> tuple[Present, Tensor]:
    """(The rows after a step, [B, L] what moved). Tensors in, tensors out: nothing in here waits for the device.

    `phases` are those that some row is in; `step` is the one of all rows, for samplers that want one.
    """
    # evaluate
    step = columns(*(table[now.at] for table in now.tables)) if step is None else step
    prediction, rng = None, CounterRNG.resumed(now.keys, now.calls)
    if not plan.sampler.reads_network:
        packing = model.packing if plan.rows_per_forward is None else None
        prediction = Prediction(model.denoiser, now.groups, now.state.tokens, step.t, now.filters, now.last, packing)
    state = replace(now.state, memory=dict(now.state.memory))
    context = Context(model, plan, state, step, rng, prediction, now.filters)
    # decide and move
    new = _moves(context, phases[0]) if len(phases) == 1 else _moves_by_phase(context, phases)
    # record
    state, moved = _record(context, new)
    assert isinstance(rng.calls, Tensor)
    on_cpu = now.keys.device.type == "cpu"  # elsewhere the host would wait to compare
    last = prediction if on_cpu and getattr(model.denoiser, "looks_at_tokens_alone", False) else None
    return replace(now, state=state, calls=rng.calls, at=now.at + now.pace, last=last), moved


def shown(state: State, moved: Tensor) -> Seen:
    """What a frame shows of it."""
    return Seen(state.tokens, moved, state.log_p, state.counts, state.nfe)


def begin(rows: TokenRows, sampler: Sampler, device: torch.device | None = None) -> State:
    """The rows before their first step; `device`: elsewhere than they are."""
    z, (batch, length) = rows.tokens.to(device), rows.tokens.shape
    lengths = torch.tensor([length] * batch if rows.lengths is None else list(rows.lengths), device=z.device)
    updatable = torch.arange(length, device=z.device) < lengths[:, None]
    unknown = torch.full(z.shape, torch.nan, device=z.device)
    return State(
        tokens=z,
        lengths=lengths,
        updatable=updatable if rows.frozen is None else updatable & ~rows.frozen.to(device),
        log_p=unknown,
        log_p_when_drawn=unknown,
        counts=torch.zeros((batch, 3), dtype=torch.int64, device=z.device),
        nfe=torch.zeros(batch, dtype=torch.int64, device=z.device),
        done=torch.zeros(batch, dtype=torch.bool, device=z.device),
        memory=dict(sampler.memory(z)),
    )


def phases_of(plan: SamplingPlan, present: set[int]) -> tuple[int, ...]:
    """The phases that need a rule of their own: an ancestral last step is like the others."""
    return tuple(sorted({WALK if phase == LAST and _ends_alike(plan) else phase for phase in present}))


def _ends_alike(plan: SamplingPlan) -> bool:
    return plan.sampler.reads_network or (plan.final == "ancestral" and plan.tolerance is None)


def _rule(plan: SamplingPlan, phase: int) -> PassRule:
    """Who decides what moves."""
    if phase == PASS and plan.last_pass is not None:
        return plan.last_pass
    return plan.sampler.refine if phase == REFINE else plan.sampler.step


def _moves(context: Context, phase: int) -> Tokens:
    """What becomes of rows that are all in one phase."""
    stopping = None
    if context.plan.tolerance is not None and phase == WALK:
        stopping = stopping_rows(context)
        context = towards_the_end(context, stopping)
    move = _rule(context.plan, phase)(context.state.tokens, context)
    if phase == LAST or stopping is not None:
        move = finalised(move, context, stopping)
    new = apply_transition(move, context) if isinstance(move, Transition) else move
    return new if stopping is None else new._replace(finished=stopping)


def _moves_by_phase(context: Context, phases: Sequence[int]) -> Tokens:
    """The same for rows in different phases: each phase's rule is asked, and each row takes its own phase's answer.

    So are its random counters and its sampler's memory: a rule that a row does not follow costs it no numbers.
    """
    state, rng = context.state, context.rng
    assert isinstance(rng.calls, Tensor)
    merged, calls, memory = Tokens(state.tokens, state.log_p, torch.zeros_like(state.done)), rng.calls, state.memory
    for phase in phases:
        alike = phase == WALK and _ends_alike(context.plan)
        here = context.step.phase <= LAST if alike else context.step.phase == phase
        assert isinstance(here, Tensor)
        assert merged.finished is not None
        own = replace(state, updatable=state.updatable & here, memory=dict(state.memory))
        part = replace(context, state=own, rng=CounterRNG.resumed(rng.keys, rng.calls))
        new = _moves(part, phase)
        mine = here[:, 0]
        merged = Tokens(
            torch.where(here, new.tokens, merged.tokens),
            torch.where(here, new.log_p, merged.log_p),
            merged.finished if new.finished is None else torch.where(mine, new.finished, merged.finished),
        )
        calls = torch.where(mine, part.rng.calls, calls)
        memory = {name: torch.where(_beside(mine, old), own.memory[name], old) for name, old in memory.items()}
    rng.calls = calls
    state.memory.update(memory)
    return merged


def _beside(rows: Tensor, x: Tensor) -> Tensor:
    """One value a row, [B], shaped to go with x [B, …]."""
    return rows.reshape(-1, *[1] * (x.dim() - 1))


def _record(context: Context, new: Tokens) -> tuple[State, Tensor]:
    """(The texts with their new tokens, what moved). Tokens that stay are looked at anew if it is asked for, or free."""
    state, mask_id = context.state, context.vocab.mask_id
    tokens = torch.where(state.updatable, new.tokens, state.tokens)
    was, now, changed = state.tokens != mask_id, tokens != mask_id, tokens != state.tokens
    moved = torch.where(now, torch.where(was, CORRECTED, UNMASKED), REMASKED) * changed
    seen = context.evaluated
    standing = None if seen is None else seen.log_p_z if context.plan.record else seen.known_log_p_z
    done = state.done if new.finished is None else state.done | new.finished
    after = State(
        tokens=tokens,
        lengths=state.lengths,
        updatable=state.updatable if done is state.done else state.updatable & ~done[:, None],
        log_p=torch.where(changed, new.log_p, state.log_p if standing is None else standing).to(torch.float32),
        log_p_when_drawn=torch.where(changed, new.log_p, state.log_p_when_drawn).to(torch.float32),
        counts=state.counts + (moved[..., None] == torch.arange(1, 4, device=moved.device)).sum(1),
        nfe=state.nfe + (~state.done).to(torch.int64),
        done=done,
        memory=state.memory,
    )
    return after, moved.to(torch.int8)
