"""Carrying out what a sampler decided: a `Transition` becomes tokens, the last step the final one that was asked for.

Final steps: what the last of N steps, t_{N−1} → 0, does. The first three evaluate the network N times and leave no mask.

ancestral   the sampler's own step, to the levels of clean data (γ = ρ = 1): a draw of p_θ(z_0 | z_t).
masks-only  masks are drawn from x_θ, and every visible token stays.
greedy      the mode of p_θ(z_0 | z_t): a mask becomes the argmax of x_θ; a visible token gives way to the argmax only
            where that beats the evidence of the token standing there. It is not the argmax of x_θ everywhere, which
            changes many right tokens.
none        the last step is left out: N − 1 evaluations, and the text is z_t as it stands, masks and noise included.

A row that stops early (`SamplingPlan.tolerance`) takes its final step there and then, in the same way. A sampler that
reads the network itself has no other last step than its own.
"""

from __future__ import annotations

import torch
from torch import Tensor

from scdd.core import Transition
from scdd.core.rng import uniforms
from scdd.ops import Top
from scdd.samplers.base import Context, Tokens, certain


def apply_transition(move: Transition, ctx: Context) -> Tokens:
    """z_s drawn by `move` at the updatable positions, from three numbers a position, whatever happens there.

    The uniform number is cut in the order mask, noise, model, keep, so that rounding in the sum falls on keep; where
    keep is impossible it falls on the model. An outcome of probability 0 therefore never happens.
    """
    z_t, vocab = ctx.state.tokens, ctx.vocab
    # one call for all three: hashing is a good part of the small kernels of a step
    which, which_token, which_noise = uniforms((*z_t.shape, 3), ctx.rng).unbind(-1)
    noise = vocab.token((which_noise * vocab.K).to(torch.int64).clamp_(max=vocab.K - 1))
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
