"""Draws from filtered rows of logits: one program a row, and nothing at rows that stay."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from scdd.core import Head
from scdd.ops.common import Filters
from scdd.ops.head.triton import factor_of, filter_arguments, threshold_and_total
from scdd.ops.triton_rows import LN2, load_scores

BLOCK, WARPS = 4096, 8
NARROW = 16_384  # columns up to which half of that is quicker: few rows are drawn, and each waits for its own sums


def row_draw(
    logits: Tensor, head: Head, u: Tensor, z_t: Tensor | None, filters: Filters, moves: Tensor,
    otherwise: tuple[Tensor, Tensor] | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """(Tokens, log x_θ) where moves [n], elsewhere `otherwise`, or −1 and −∞; the cumulative mass is summed and inverted in float64."""
    tokens = torch.empty(moves.shape, dtype=torch.int64, device=logits.device)
    log_p = torch.empty(moves.shape, dtype=torch.float32, device=logits.device)
    if logits.shape[0] == 0:
        return tokens, log_p
    if head.input_bias is not None and z_t is None:
        raise ValueError("this head adds a bias at the input token, so it needs z_t")
    halves = 2 if logits.shape[1] <= NARROW else 1
    block = min(BLOCK // halves, triton.next_power_of_2(logits.shape[1]))
    _row_draw[(logits.shape[0],)](
        logits,
        logits.stride(0),
        tokens if z_t is None else z_t.contiguous(),
        log_p if head.input_bias is None else head.input_bias,
        u.contiguous(),  # one of three numbers of each position is not
        moves.contiguous(),
        *((tokens, log_p) if otherwise is None else (each.contiguous() for each in otherwise)),
        tokens,
        log_p,
        **filter_arguments(head, filters, logits),
        OTHERWISE=otherwise is not None,
        BLOCKS=triton.next_power_of_2(triton.cdiv(logits.shape[1], block)),
        BLOCK=block,
        num_warps=WARPS // halves,
    )
    return tokens, log_p


@triton.jit
def kept_mass(score, best, scale, threshold):
    """Float64 weights of a block of scores, relative to the best token's; 0 where cut."""
    kept = (score >= threshold) & (score > -float("inf"))
    return tl.where(kept, tl.exp2((score - best).to(tl.float64) * scale), 0.0)


@triton.jit
def _row_draw(
    logits, stride, z_ids, input_bias_, uniforms, moves, other_, other_log_p_, tokens, log_p, top_p, top_k, least, scale,
    OTHERWISE: tl.constexpr, SCALES: tl.constexpr, COLUMNS: tl.constexpr, KEY_BITS: tl.constexpr,
    HAS_INPUT_BIAS: tl.constexpr, TOP_P: tl.constexpr, TOP_K: tl.constexpr, GUESS: tl.constexpr, BLOCKS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    move = tl.load(moves + row).to(tl.int32)
    other, other_log_p = -1, -float("inf")
    if OTHERWISE:  # beside `moves`, not behind it: most programs do nothing but wait for these
        other, other_log_p = tl.load(other_ + row), tl.load(other_log_p_ + row)
    if move == 0:
        tl.store(tokens + row, other)
        tl.store(log_p + row, other_log_p)
    else:
        base = logits + row.to(tl.int64) * stride
        factor = factor_of(scale, row, SCALES)
        input_bias = 0.0
        z = 0
        if HAS_INPUT_BIAS:
            input_bias = tl.load(input_bias_).to(tl.float32)
            z = tl.load(z_ids + row).to(tl.int32)
        best, threshold, _ = threshold_and_total(
            base,
            z,
            input_bias,
            top_p,
            top_k,
            least,
            factor,
            COLUMNS,
            KEY_BITS,
            HAS_INPUT_BIAS,
            TOP_P,
            TOP_K,
            GUESS,
            BLOCK,
        )
        # the mass of each block, and of all
        block = tl.arange(0, BLOCKS)
        masses = tl.zeros((BLOCKS,), tl.float64)
        for number in range(0, (COLUMNS + BLOCK - 1) // BLOCK):
            score = load_scores(base, number * BLOCK, z, input_bias, COLUMNS, HAS_INPUT_BIAS, BLOCK)
            if tl.max(score, 0) >= threshold:  # float64 powers are dear, and the blocks of a sure row have none
                masses = tl.where(block == number, tl.sum(kept_mass(score, best, factor, threshold), 0), masses)
        weight = tl.sum(masses, 0)
        target = tl.load(uniforms + row).to(tl.float64) * weight

        # the first block at whose end the cumulative mass has passed the target; rounding at the end: the last with any
        passed = (tl.cumsum(masses, 0) > target) & (masses > 0.0)
        number = tl.min(tl.where(passed, block, BLOCKS), 0)
        number = tl.where(number < BLOCKS, number, tl.max(tl.where(masses > 0.0, block, 0), 0))
        before = tl.sum(tl.where(block < number, masses, 0.0), 0)

        # and in it, in id order, the first such id
        j = number * BLOCK + tl.arange(0, BLOCK)
        score = load_scores(base, number * BLOCK, z, input_bias, COLUMNS, HAS_INPUT_BIAS, BLOCK)
        mass = kept_mass(score, best, factor, threshold)
        passed = (before + tl.cumsum(mass, 0) > target) & (mass > 0.0)
        drawn = tl.min(tl.where(passed, j, COLUMNS), 0)
        last = tl.max(tl.where(mass > 0.0, j, 0), 0)
        token = tl.where(drawn < COLUMNS, drawn, last)
        score = tl.load(base + token).to(tl.float32)
        if HAS_INPUT_BIAS:
            score = tl.where(token == z, score + input_bias, score)
        tl.store(tokens + row, token.to(tl.int64))
        tl.store(log_p + row, (score - best) * factor * LN2 - tl.log(weight).to(tl.float32))
