"""One step of the only loop: evaluate, decide, move, record. Tensors in, tensors out.

`advance` takes rows that may each be at a step of their own; whoever walks them (`samplers.loop`, `samplers.row_batch`, a captured
graph of `samplers.graphs`) calls nothing else. What the last step does is in `samplers.final`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from scdd.core import Transition
from scdd.core.rng import CounterRNG
from scdd.ops.bookkeeping import Decided, Rows, lookup, record
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
from scdd.samplers.plan import SamplingPlan, columns
from scdd.samplers.prediction import Group, Prediction

KINDS = ("kept", "unmasked", "corrected", "remasked")
"""What happened to a position, by number: a mask became a token, a token became another token, a token became a mask."""


@dataclass(frozen=True)
class TokenRows:
    """Rows to be walked: tokens [B, L] at the plan's first time, and what of them must stay as it is."""

    tokens: Tensor
    frozen: Tensor | None = None  # [B, L]
    lengths: Sequence[int] | None = None  # real columns of each row; those beyond are padding


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


class StepResult(NamedTuple):
    """What a frame shows of a batch's rows, in their order; new tensors each step."""

    tokens: Tensor
    moved: Tensor
    log_p: Tensor
    counts: Tensor
    nfe: Tensor


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


def advance(
    model: Model,
    plan: SamplingPlan,
    now: Present,
    phases: Sequence[int],
    step: Step | None = None,
    into: Tensor | None = None,
) -> tuple[Present, Tensor]:
    """(The rows after a step, [B, L] what moved). Tensors in, tensors out: nothing in here waits for the device.

    `phases` are those that some row is in; `step` is the one of all rows, for samplers that want one. With `into`, for what moved, the
    rows' own tensors may be written over: those that come back are the new ones, whichever they are.
    """
    # evaluate
    filters = now.filters
    if step is None:
        heat = filters.temperature if isinstance(filters.temperature, Tensor) else None
        reals, numbers, heats = lookup(now.tables, now.at, heat, now.state.tokens.shape[1])
        step, filters = columns(reals, numbers), filters if heats is None else replace(filters, temperature=heats)
    prediction, rng = None, CounterRNG.resumed(now.keys, now.calls)
    if not plan.sampler.reads_network:
        packing = model.packing if plan.rows_per_forward is None else None
        prediction = Prediction(model.denoiser, now.groups, now.state.tokens, step.t, filters, now.last, packing)
    state = replace(now.state, memory=dict(now.state.memory))
    context = Context(model, plan, state, step, rng, prediction, now.filters)
    # decide and move
    new = _moves(context, phases[0]) if len(phases) == 1 else _moves_by_phase(context, phases)
    # record
    after, moved = _record(context, new, now, into)
    on_cpu = now.keys.device.type == "cpu"  # elsewhere the host would wait to compare
    last = prediction if on_cpu and getattr(model.denoiser, "looks_at_tokens_alone", False) else None
    return replace(after, last=last), moved


def result_of(state: State, moved: Tensor) -> StepResult:
    """What a frame shows of it."""
    return StepResult(state.tokens, moved, state.log_p, state.counts, state.nfe)


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


_STATE = Rows._fields[:-2]  # what a step changes of `State`


def _record(context: Context, new: Tokens, now: Present, into: Tensor | None) -> tuple[Present, Tensor]:
    """(The rows with their new tokens, what moved). Tokens that stay are looked at anew if it is asked for, or free."""
    state, seen, calls = context.state, context.evaluated, context.rng.calls
    assert isinstance(calls, Tensor)
    standing = None if seen is None else seen.log_p_z if context.plan.record else seen.known_log_p_z
    rows = Rows._make([*(getattr(state, name) for name in _STATE), now.calls, now.at])
    decided = Decided(new.tokens, new.log_p, standing, new.finished, calls, now.pace)
    if state.memory:
        into = None  # what a sampler keeps may be a part of the state, and must not change before it is copied
    rows, moved = record(rows, decided, context.vocab.mask_id, into)
    state = replace(state, **{name: getattr(rows, name) for name in _STATE})
    return replace(now, state=state, calls=rows.calls, at=rows.at), moved
