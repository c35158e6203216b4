"""The only loop: evaluate, decide, move, record. The terminal, the trace, the metrics and the server all read its frames.

Final steps: what the last of N steps, t_{N−1} → 0, does. The first three evaluate the network N times and leave no mask.

ancestral   the sampler's own step, to the levels of clean data (γ = ρ = 1): a draw of p_θ(z_0 | z_t).
masks-only  masks are drawn from x_θ, and every visible token stays.
greedy      the mode of p_θ(z_0 | z_t): a mask becomes the argmax of x_θ; a visible token gives way to the argmax only
            where that beats the evidence of the token standing there. It is not the argmax of x_θ everywhere, which
            changes many right tokens.
none        the last step is left out: N − 1 evaluations, and the text is z_t as it stands, masks and noise included.

A row that stops early (`SamplingPlan.tolerance`) takes its final step there and then, in the same way. A sampler that
reads the network itself has no other last step than its own. A last pass (`SamplingPlan.last_pass`) comes after all steps
and is one evaluation more. Where a convention ends time above 0 for it, the last step goes to the levels there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from scdd.core import CLEAN, Levels, Transition
from scdd.core.rng import CounterRNG, uniforms
from scdd.ops.head import Top
from scdd.processes.autoregressive import Autoregressive
from scdd.samplers.base import Context, Grid, Model, PassRule, State, Step, Tokens, certain, checked
from scdd.samplers.plan import SamplingPlan
from scdd.samplers.prediction import Group, Prediction, row_groups

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
    plan.sampler.check(model)
    state = _begin(rows)
    steps = _steps(model, plan, state)
    groups = row_groups(rows.tokens, rows.lengths, plan.rows_per_forward)
    rows_may_end = plan.sampler.finishes or plan.tolerance is not None
    frame = Frame(0, 0, 0.0, 0.0, state.tokens, _nothing(state), state.log_p, state.counts, state.nfe)
    for step in steps:
        # evaluate
        prediction = None
        if not plan.sampler.reads_network:
            active = _active(groups, state) if rows_may_end else groups
            prediction = Prediction(model.denoiser, active, state.tokens, step.t, plan.filters)
        # decide
        context = Context(model, plan, state, step, rng, prediction)
        stopping = _stopping(context)
        if stopping is not None:
            context = _towards_the_end(context, stopping)
        move = _rule(plan, step)(state.tokens, context)
        if step.last or stopping is not None:
            move = finalised(move, context, None if step.last else stopping)
        # move
        new = apply_transition(move, context) if isinstance(move, Transition) else move
        # record
        state, moved = _record(context, new, stopping)
        frame = Frame(
            step.number, step.total, step.t, step.s, state.tokens, moved, state.log_p, state.counts, state.nfe
        )
        if plan.record:
            yield frame
        if rows_may_end and bool(state.done.all()):
            break
    if not plan.record or not steps:  # without steps (final "none" of a single one) nothing has moved
        yield frame


def _begin(rows: TokenRows) -> State:
    z, (batch, length) = rows.tokens, rows.tokens.shape
    lengths = torch.tensor([length] * batch if rows.lengths is None else list(rows.lengths), device=z.device)
    updatable = torch.arange(length, device=z.device) < lengths[:, None]
    unknown = torch.full(z.shape, torch.nan, device=z.device)
    return State(
        tokens=z,
        lengths=lengths,
        updatable=updatable if rows.frozen is None else updatable & ~rows.frozen,
        log_p=unknown,
        log_p_when_drawn=unknown,
        counts=torch.zeros((batch, 3), dtype=torch.int64, device=z.device),
        nfe=torch.zeros(batch, dtype=torch.int64, device=z.device),
        done=torch.zeros(batch, dtype=torch.bool, device=z.device),
    )


def _rule(plan: SamplingPlan, step: Step) -> PassRule:
    """Who decides what moves in a step."""
    return plan.last_pass if step.passing and plan.last_pass is not None else plan.sampler.step


def _steps(model: Model, plan: SamplingPlan, state: State) -> list[Step]:
    """The steps of the sampler's times, the last one as `final` wants it, the sampler's extra ones and the last pass."""
    times = plan.sampler.times(checked(plan.times), model, state.updatable)
    if plan.end > 0.0:
        times = tuple(plan.end + (1.0 - plan.end) * t for t in times)
    levels = _levels(model, times, plan.scale, state.tokens.device)
    extra = 0 if plan.final == "none" else plan.sampler.extra_steps
    walk = len(times) - 1 if plan.final != "none" else len(times) - 2
    total = walk + extra + (plan.last_pass is not None)
    steps = [
        Step(i + 1, total, t, s, levels[i], levels[i + 1], last=i == len(times) - 2)
        for i, (t, s) in enumerate(pairwise(times))
    ][:walk]
    after = Step(total, total, times[-1], times[-1], levels[-1], levels[-1])
    steps += [after._replace(number=walk + i + 1, refining=True) for i in range(extra)]
    return steps if plan.last_pass is None else [*steps, after._replace(passing=True)]


def _levels(model: Model, times: Grid, scale: float, device: torch.device) -> list[Levels]:
    """The levels at all times, computed once; the last are those of clean data where time ends at 0, whatever the schedule."""
    if isinstance(model.process, Autoregressive):
        return [_clean(device)] * len(times)
    at = model.process.levels(scale * torch.tensor(times, dtype=torch.float64))
    at = Levels(*(field.to(device) for field in at))
    each = [Levels(*(field[i] for field in at)) for i in range(len(times))]
    return each if times[-1] > 0.0 else [*each[:-1], _clean(device)]


@cache
def _clean(device: torch.device) -> Levels:
    return Levels(*(field.to(device) for field in CLEAN))


def _active(groups: Sequence[Group], state: State) -> tuple[Group, ...]:
    """The groups in which some row still moves; asked only where rows can end, since looking waits for the device."""
    done = state.done.tolist()
    return tuple(group for group in groups if not all(done[group.rows]))


def _stopping(context: Context) -> Tensor | None:
    """Rows [B] of which fewer positions than `tolerance` are expected to change any more; None where nobody asked."""
    if context.plan.tolerance is None or context.step.last or context.step.refining:
        return None
    end = _clean(context.state.tokens.device)
    jump = context.plan.sampler.step(context.state.tokens, replace(context, step=context.step._replace(at_s=end)))
    assert isinstance(jump, Transition)
    return (expected_moves(jump, context) < context.plan.tolerance) & ~context.state.done


def _towards_the_end(context: Context, stopping: Tensor) -> Context:
    """The step of rows that stop goes all the way; with final "none" they end as they stand."""
    pairs = zip(_clean(stopping.device), context.step.at_s, strict=True)
    at_s = Levels(*(torch.where(stopping, a, b) for a, b in pairs))
    state = context.state
    if context.plan.final == "none":
        state = replace(state, updatable=state.updatable & ~stopping[:, None])
    return replace(context, step=context.step._replace(at_s=at_s), state=state)


def _record(context: Context, new: Tokens, stopping: Tensor | None) -> tuple[State, Tensor]:
    """(The texts with their new tokens, what moved). Tokens that stay are looked at anew if it is asked for, or free."""
    state, mask_id = context.state, context.vocab.mask_id
    tokens = torch.where(state.updatable, new.tokens, state.tokens)
    was, now, changed = state.tokens != mask_id, tokens != mask_id, tokens != state.tokens
    moved = torch.where(now, torch.where(was, CORRECTED, UNMASKED), REMASKED) * changed
    seen = context.evaluated
    standing = None if seen is None else seen.log_p_z if context.plan.record else seen.known_log_p_z
    done = state.done
    for rows in (new.finished, stopping):
        done = done if rows is None else done | rows
    after = State(
        tokens=tokens,
        lengths=state.lengths,
        updatable=state.updatable if done is state.done else state.updatable & ~done[:, None],
        log_p=torch.where(changed, new.log_p, state.log_p if standing is None else standing).to(torch.float32),
        log_p_when_drawn=torch.where(changed, new.log_p, state.log_p_when_drawn).to(torch.float32),
        counts=state.counts + torch.stack([(moved == kind).sum(1) for kind in (1, 2, 3)], dim=1),
        nfe=state.nfe + (~state.done).to(torch.int64),
        done=done,
        memory=state.memory,
    )
    return after, moved.to(torch.int8)


def _nothing(state: State) -> Tensor:
    return torch.zeros(state.tokens.shape, dtype=torch.int8, device=state.tokens.device)


def apply_transition(move: Transition, ctx: Context) -> Tokens:
    """z_s drawn by `move` at the updatable positions, from three numbers a position, whatever happens there.

    The uniform number is cut in the order mask, noise, model, keep, so that rounding in the sum falls on keep; where
    keep is impossible it falls on the model. An outcome of probability 0 therefore never happens.
    """
    z_t, vocab = ctx.state.tokens, ctx.vocab
    # one call for all three: hashing is a good part of the small kernels of a step
    which, which_token, which_noise = uniforms((*z_t.shape, 3), ctx.rng).unbind(-1)
    noise = ctx.process.noise_token(which_noise)
    masked = ctx.updatable & (which < move.mask)
    noised = ctx.updatable & ~masked & (which < move.mask + move.uniform)
    stays = masked | noised | ~ctx.updatable
    drawn = ~stays & ((which < move.mask + move.uniform + move.model) | (move.keep <= 0))
    tokens, log_p = ctx.prediction.draw(drawn, which_token, ctx.plan.draw_filters)
    z_s = torch.where(drawn, tokens, torch.where(masked, vocab.mask_id, torch.where(noised, noise, z_t)))
    return Tokens(z_s, torch.where(drawn, log_p, torch.where(masked, -torch.inf, torch.nan)))


def expected_moves(move: Transition, ctx: Context) -> Tensor:
    """How many positions of each row [B] are expected to hold another token after `move`."""
    # uniform noise that hits the same token is left out
    same = move.keep + move.model * ctx.prediction.log_p_z.exp()
    return torch.where(ctx.updatable, 1.0 - same, 0.0).sum(1)


def finalised(move: Transition | Tokens, ctx: Context, rows: Tensor | None) -> Transition | Tokens:
    """`move` as the final step of `rows` [B] (None: all) wants it."""
    if ctx.plan.final == "ancestral" or ctx.plan.sampler.reads_network:
        return move
    masked = ctx.state.tokens == ctx.vocab.mask_id
    here = torch.ones_like(ctx.updatable) if rows is None else rows[:, None].expand_as(ctx.updatable)
    if isinstance(move, Tokens):
        return _finalised_tokens(move, ctx, masked, here)
    if ctx.plan.final == "masks-only":
        zero = torch.zeros_like(move.keep)
        fill = Transition(certain(~masked), certain(masked), zero, zero)
        return Transition(*(torch.where(here, a, b) for a, b in zip(fill, move, strict=True)))
    best, gives_way = _mode(masked, move, ctx)
    mode = torch.where(ctx.updatable & gives_way, best.tokens[..., 0], ctx.state.tokens)
    if rows is None:
        return Tokens(mode, torch.where(gives_way, best.log_p[..., 0], torch.nan))
    walked = apply_transition(move, ctx)
    log_p = torch.where(here & gives_way, best.log_p[..., 0], walked.log_p)
    return Tokens(torch.where(here, mode, walked.tokens), log_p)


def _finalised_tokens(move: Tokens, ctx: Context, masked: Tensor, here: Tensor) -> Tokens:
    """For samplers that hand over tokens: visible ones stay, and greedy puts the argmax where the masks were."""
    tokens, log_p = move.tokens, move.log_p
    if ctx.plan.final == "greedy":
        best = ctx.prediction.top()
        tokens, log_p = best.tokens[..., 0], best.log_p[..., 0]
    return Tokens(
        torch.where(here, torch.where(masked, tokens, ctx.state.tokens), move.tokens),
        torch.where(here, torch.where(masked, log_p, torch.nan), move.log_p),
        move.finished,
    )


def _mode(masked: Tensor, move: Transition, ctx: Context) -> tuple[Top, Tensor]:
    """(The likeliest tokens, whether each position takes them): model·x_θ(best) > keep + model·x_θ(z_t).

    Both x_θ are filtered ones: x_θ(best) is x_θ(z_t) times the unfiltered odds at the filters' temperature, and a z_t
    that the filters cut gives way if anything can come in its place.
    """
    best = ctx.prediction.top()
    p_z = ctx.prediction.log_p_z.to(torch.float64).exp()
    odds = ((best.log_p[..., 0] - best.log_p_z).to(torch.float64) / ctx.plan.filters.temperature).exp()
    p_best = torch.where(p_z > 0, p_z * odds, 1.0)
    beaten = move.model * p_best > move.keep + move.model * p_z
    return best, masked | beaten
