"""The one executor: carries out a `Transition`, and turns one into the final step that was asked for."""

from __future__ import annotations

import torch
from torch import Tensor

from scdd.core import Transition
from scdd.core.errors import UserError
from scdd.core.rng import uniforms
from scdd.ops import Top
from scdd.samplers.base import Context, Tokens, certain

FINALS = ("ancestral", "masks-only", "greedy", "none")
"""What the last of N steps, t_{N−1} → 0, does. The first three evaluate the network N times and leave no mask.

ancestral   the sampler's own step, to the levels of clean data (γ = ρ = 1): a draw of p_θ(z_0 | z_t).
masks-only  masks are drawn from x_θ, and every visible token stays.
greedy      the mode of p_θ(z_0 | z_t): a mask becomes the argmax of x_θ; a visible token gives way to the argmax only
            where that beats the evidence of the token standing there. It is not the argmax of x_θ everywhere, which
            changes many right tokens.
none        the last step is left out: N − 1 evaluations, and the text is z_t as it stands, masks and noise included.

A row that stops early (`tolerance`) takes its final step there and then, in the same way.
"""


def check_final(final: str) -> None:
    """Refuse an unknown final step."""
    if final not in FINALS:
        raise UserError(f"The final step is {final!r}: choose one of {', '.join(FINALS)}.")


def carry_out(z_t: Tensor, move: Transition, ctx: Context) -> Tokens:
    """z_s drawn by `move` at the free positions, from three numbers a position, whatever happens there.

    The uniform number is cut in the order mask, noise, model, keep, so that rounding in the sum falls on keep; where
    keep is impossible it falls on the model. An outcome of probability 0 therefore never happens.
    """
    numbers = uniforms(
        (*z_t.shape, 3), ctx.source
    )  # one call: hashing is a third of the small kernels of a step
    which, which_token = numbers[..., 0], numbers[..., 1]
    which_noise = (numbers[..., 2] * ctx.vocab.K).to(torch.int64).clamp_(max=ctx.vocab.K - 1)
    masked = ctx.free & (which < move.mask)
    noised = ctx.free & ~masked & (which < move.mask + move.uniform)
    stays = masked | noised | ~ctx.free
    drawn = ~stays & ((which < move.mask + move.uniform + move.model) | (move.keep <= 0))
    tokens, log_p = ctx.seen.draw(drawn, which_token, ctx.draws)
    noise = ctx.vocab.token(which_noise)
    z_s = torch.where(drawn, tokens, torch.where(masked, ctx.vocab.mask_id, torch.where(noised, noise, z_t)))
    return Tokens(z_s, torch.where(drawn, log_p, torch.where(masked, -torch.inf, torch.nan)))


def expected_moves(z_t: Tensor, move: Transition, ctx: Context) -> Tensor:
    """How many positions of each row [B] are expected to hold another token after `move`."""
    same = (
        move.keep + move.model * ctx.seen.log_p_z.exp()
    )  # uniform noise that hits the same token is left out
    return torch.where(ctx.free, 1.0 - same, 0.0).sum(1)


def finalised(
    final: str, z_t: Tensor, decided: Transition | Tokens, ctx: Context, rows: Tensor | None
) -> Transition | Tokens:
    """`decided` as the final step of `rows` [B] (None: all) wants it."""
    if final == "ancestral":
        return decided
    masked = z_t == ctx.vocab.mask_id
    here = torch.ones_like(ctx.free) if rows is None else rows[:, None].expand_as(ctx.free)
    if isinstance(decided, Tokens):
        return _finalised_tokens(final, z_t, decided, ctx, here)
    if final == "masks-only":
        move = Transition(
            certain(~masked), certain(masked), torch.zeros_like(decided.keep), torch.zeros_like(decided.keep)
        )
        return Transition(*(torch.where(here, a, b) for a, b in zip(move, decided, strict=True)))
    best, gives_way = _mode(masked, decided, ctx)
    if rows is None:
        tokens = torch.where(ctx.free & gives_way, best.tokens[..., 0], z_t)
        return Tokens(tokens, torch.where(gives_way, best.log_p[..., 0], torch.nan))
    walked = carry_out(z_t, decided, ctx)
    tokens = torch.where(here, torch.where(ctx.free & gives_way, best.tokens[..., 0], z_t), walked.tokens)
    return Tokens(tokens, torch.where(here & gives_way, best.log_p[..., 0], walked.log_p))


def _finalised_tokens(final: str, z_t: Tensor, decided: Tokens, ctx: Context, here: Tensor) -> Tokens:
    """For samplers that hand over tokens: visible ones stay, and greedy puts the argmax where the masks were."""
    masked = z_t == ctx.vocab.mask_id
    tokens, log_p = decided
    if final == "greedy":
        best = ctx.seen.top()
        tokens, log_p = best.tokens[..., 0], best.log_p[..., 0]
    filled = Tokens(torch.where(masked, tokens, z_t), torch.where(masked, log_p, torch.nan))
    return Tokens(*(torch.where(here, a, b) for a, b in zip(filled, decided, strict=True)))


def _mode(masked: Tensor, move: Transition, ctx: Context) -> tuple[Top, Tensor]:
    """(The likeliest tokens, whether each position takes them): model·x_θ(best) > keep + model·x_θ(z_t).

    Both x_θ are filtered ones: x_θ(best) is x_θ(z_t) times the unfiltered odds at the filters' temperature, and a z_t
    that the filters cut gives way if anything can come in its place.
    """
    best = ctx.seen.top()
    p_z = ctx.seen.log_p_z.to(torch.float64).exp()
    odds = ((best.log_p[..., 0] - best.log_p_z).to(torch.float64) / ctx.filters.temperature).exp()
    p_best = torch.where(p_z > 0, p_z * odds, 1.0)
    beaten = move.model * p_best > move.keep + move.model * p_z
    return best, masked | beaten
