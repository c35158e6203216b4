"""Final steps, and rows that stop early.

What the last of N steps, t_{N−1} → 0, does. The first three evaluate the network N times and leave no mask.

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

from dataclasses import replace

import torch
from torch import Tensor

from scdd.core import CLEAN, Levels, Transition
from scdd.ops.head import Top
from scdd.samplers.base import Context, Tokens, apply_transition, certain

_CLEAN = tuple(float(each) for each in CLEAN)


def stopping_rows(context: Context) -> Tensor:
    """Rows [B] of which fewer positions than `tolerance` are expected to change any more."""
    tolerance, end = context.plan.tolerance, _clean(context)
    assert tolerance is not None
    jump = context.plan.sampler.step(context.state.tokens, replace(context, step=context.step._replace(at_s=end)))
    assert isinstance(jump, Transition)
    return (expected_moves(jump, context) < tolerance) & ~context.state.done


def expected_moves(move: Transition, ctx: Context) -> Tensor:
    """How many positions of each row [B] are expected to hold another token after `move`."""
    # uniform noise that hits the same token is left out
    same = move.keep + move.model * ctx.prediction.log_p_z.exp()
    return torch.where(ctx.updatable, 1.0 - same, 0.0).sum(1)


def towards_the_end(context: Context, stopping: Tensor) -> Context:
    """The step of rows that stop goes all the way; with final "none" they end as they stand."""
    pairs = zip(_clean(context), context.step.at_s, strict=True)
    at_s = Levels(*(torch.where(stopping[:, None], a, b) for a, b in pairs))
    state = context.state
    if context.plan.final == "none":
        state = replace(state, updatable=state.updatable & ~stopping[:, None])
    return replace(context, step=context.step._replace(at_s=at_s), state=state)


def _clean(context: Context) -> Levels:
    """The levels of clean data, shaped like the step's; made on the device, since a capture may take nothing from the host."""
    return Levels(*(torch.full_like(b, a) for a, b in zip(_CLEAN, context.step.at_s, strict=True)))


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
    odds = ((best.log_p[..., 0] - best.log_p_z).to(torch.float64) / ctx.filters.temperature).exp()
    p_best = torch.where(p_z > 0, p_z * odds, 1.0)
    beaten = move.model * p_best > move.keep + move.model * p_z
    return best, masked | beaten
