"""Draws from filtered rows of logits: one program a row, and nothing at rows that stay."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from scdd.core import Head
from scdd.ops.common import Filters
from scdd.ops.head.triton import filter_arguments, threshold_and_total
from scdd.ops.triton_rows import LN2, load_scores

BLOCK = 4096
WARPS = 8


def row_draw(
    logits: Tensor, head: Head, u: Tensor, z_t: Tensor | None, filters: Filters, moves: Tensor
) -> tuple[Tensor, Tensor]:
    """(Tokens, log x_θ) where moves [n], −1 and −∞ elsewhere; the cumulative mass is summed and inverted in float64."""
    tokens = torch.full(moves.shape, -1, dtype=torch.int64, device=logits.device)
    log_p = torch.full(moves.shape, -torch.inf, dtype=torch.float32, device=logits.device)
    if logits.shape[0] == 0:
        return tokens, log_p
    if head.input_bias is not None and z_t is None:
        raise ValueError("this head adds a bias at the input token, so it needs z_t")
    _row_draw[(logits.shape[0],)](
        logits,
        logits.stride(0),
        tokens if z_t is None else z_t,
        log_p if head.input_bias is None else head.input_bias,
        u,
        moves,
        tokens,
        log_p,
        **filter_arguments(head, filters, logits),
        BLOCK=min(BLOCK, triton.next_power_of_2(logits.shape[1])),
        num_warps=WARPS,
    )
    return tokens, log_p


@triton.jit
def kept_mass(
    base, offset, z, input_bias, best, scale, threshold,
    COLUMNS: tl.constexpr, HAS_INPUT_BIAS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Float64 weights, relative to the best token's, of one block; 0 where cut."""
    score = load_scores(base, offset, z, input_bias, COLUMNS, HAS_INPUT_BIAS, BLOCK)
    kept = (score >= threshold) & (score > -float("inf"))
    return tl.where(kept, tl.exp2((score - best).to(tl.float64) * scale), 0.0)


@triton.jit
def _row_draw(
    logits, stride, z_ids, input_bias_, uniforms, moves, tokens, log_p, top_p, top_k, least, scale,
    SCALES: tl.constexpr, COLUMNS: tl.constexpr, KEY_BITS: tl.constexpr, HAS_INPUT_BIAS: tl.constexpr, TOP_P: tl.constexpr,
    TOP_K: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    if tl.load(moves + row).to(tl.int32) != 0:
        base = logits + row.to(tl.int64) * stride
        if SCALES:
            factor = tl.load(scale + row)
        else:
            factor = scale
        input_bias = 0.0
        z = 0
        if HAS_INPUT_BIAS:
            input_bias = tl.load(input_bias_).to(tl.float32)
            z = tl.load(z_ids + row).to(tl.int32)
        best, threshold, _ = threshold_and_total(
            base, z, input_bias, top_p, top_k, least, factor, COLUMNS, KEY_BITS, HAS_INPUT_BIAS, TOP_P, TOP_K, BLOCK
        )
        total = tl.zeros((BLOCK,), tl.float64)
        for offset in range(0, COLUMNS, BLOCK):
            total += kept_mass(base, offset, z, input_bias, best, factor, threshold, COLUMNS, HAS_INPUT_BIAS, BLOCK)
        weight = tl.sum(total, 0)
        target = tl.load(uniforms + row).to(tl.float64) * weight

        # the first id at which the cumulative mass passes the target, in id order; rounding at the end: the last kept
        before = weight * 0.0
        drawn = COLUMNS
        last = 0
        for offset in range(0, COLUMNS, BLOCK):
            j = offset + tl.arange(0, BLOCK)
            mass = kept_mass(base, offset, z, input_bias, best, factor, threshold, COLUMNS, HAS_INPUT_BIAS, BLOCK)
            passed = (before + tl.cumsum(mass, 0) > target) & (mass > 0.0)
            drawn = tl.minimum(drawn, tl.min(tl.where(passed, j, COLUMNS), 0))
            last = tl.maximum(last, tl.max(tl.where(mass > 0.0, j, 0), 0))
            before += tl.sum(mass, 0)
        token = tl.where(drawn < COLUMNS, drawn, last)
        score = tl.load(base + token).to(tl.float32)
        if HAS_INPUT_BIAS:
            score = tl.where(token == z, score + input_bias, score)
        tl.store(tokens + row, token.to(tl.int64))
        tl.store(log_p + row, (score - best) * factor * LN2 - tl.log(weight).to(tl.float32))
