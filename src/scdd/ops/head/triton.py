"""Filtered statistics of a row of logits: one program a row, thresholds found by weighing, never by sorting.

A visible token mostly needs one pass: the weights above it and from it on say that it is cut, or the crossing itself. Inside
a nucleus that ends further down, a sample of the row says about where, and mostly one more pass says exactly where.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from scdd.core import Head
from scdd.ops.common import Filters
from scdd.ops.head.triton_passes import SHARE, best_and_total, weight_from, weights_above, weights_around
from scdd.ops.triton_rows import LN2, LOG2E

BLOCK = 2048
WARPS = 4
SAMPLED = 4096  # columns from which on a sample of them is worth a guess
NEAR = tl.constexpr(0.03)  # the least step around a guess, in log2 of the weight


def filter_arguments(head: Head, filters: Filters, logits: Tensor) -> dict[str, object]:
    """The filters as kernel arguments. Bfloat16 logits are told apart by 16 bits, which halves the search."""
    heat = filters.temperature
    return {
        "top_p": filters.top_p,
        "top_k": float(min(filters.top_k or 0, head.vocab.K)),
        "least": math.log2((1.0 - filters.top_p) / head.vocab.K) if filters.top_p < 1.0 else 0.0,
        "scale": heat.contiguous() if isinstance(heat, Tensor) else math.log2(math.e) / heat,
        "SCALES": isinstance(heat, Tensor),
        "COLUMNS": logits.shape[1],
        "KEY_BITS": 16 if logits.dtype == torch.bfloat16 and head.input_bias is None else 32,
        "HAS_INPUT_BIAS": head.input_bias is not None,
        "TOP_P": filters.top_p < 1.0,
        "TOP_K": filters.top_k is not None,
        "GUESS": logits.shape[1] >= SAMPLED and filters.top_k is None,
    }


def row_stats(logits: Tensor, head: Head, z_t: Tensor, filters: Filters, log_total: Tensor, log_p_z: Tensor) -> None:
    """Fill log_total [n] and log_p_z [n] at the visible rows of logits [n, Vp]; NaN and −∞ at the masked ones."""
    if logits.shape[0] == 0:
        return
    _row_stats[(logits.shape[0],)](
        logits,
        logits.stride(0),
        z_t,
        log_total if head.input_bias is None else head.input_bias,
        log_total,
        log_p_z,
        head.vocab.mask_id,
        **filter_arguments(head, filters, logits),
        BLOCK=min(BLOCK, triton.next_power_of_2(logits.shape[1])),
        num_warps=WARPS,
    )


@triton.jit
def factor_of(scale, row, SCALES: tl.constexpr):
    """log2(e) over a row's temperature: `scale` is that, or where SCALES the temperatures, float64."""
    if SCALES:
        factor = ((1.0 / tl.load(scale + row)) * LOG2E).to(tl.float32)
    else:
        factor = scale
    return factor


@triton.jit
def key_of(score, KEY_BITS: tl.constexpr):
    """An integer that orders as the scores do; for bfloat16 scores only the upper half counts."""
    bits = (score + 0.0).to(tl.int32, bitcast=True)
    key = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    if KEY_BITS == 16:
        key = key >> 16
    else:
        key = key.to(tl.int64)  # ranges of 32-bit keys are cut in eighths: gap · 7 needs the room
    return key


@triton.jit
def score_of(key, KEY_BITS: tl.constexpr):
    """The highest float32 score with that key."""
    if KEY_BITS == 16:
        bits = (key << 16) | tl.where(key < 0, 0xFFFF, 0)
    else:
        bits = key.to(tl.int32)
    return (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def cut_at(low, high, eighths: tl.constexpr, by_value, KEY_BITS: tl.constexpr):
    """A key in [low, high] that many eighths of the way, measured in scores at first and in keys to the end."""
    bottom, top = score_of(low, KEY_BITS), score_of(high, KEY_BITS)
    between = key_of(bottom + (top - bottom) * (eighths / 8), KEY_BITS)
    return tl.where(by_value, tl.minimum(tl.maximum(between, low), high), low + (high - low) * eighths // 8)


@triton.jit
def cut_near(low, high, guess, steps: tl.constexpr, scale, KEY_BITS: tl.constexpr):
    """A key in [low, high] so many steps from the guess, a step being a key at least."""
    key = key_of(score_of(guess, KEY_BITS) + steps * NEAR / scale, KEY_BITS)
    if steps < 0:
        key = tl.minimum(key, guess + steps)
    else:
        key = tl.maximum(key, guess + steps)
    return tl.minimum(tl.maximum(key, low), high)


@triton.jit
def next_cut(
    low, high, guess, eighths: tl.constexpr, steps: tl.constexpr, passes, scale,
    GUESS: tl.constexpr, KEY_BITS: tl.constexpr,
):  # fmt: skip
    """A cut of the next pass: so many steps from the guess at first, then so many eighths, three times by score, then by key."""
    if GUESS:
        wide = cut_at(low, high, eighths, passes < 4, KEY_BITS)
        cut = tl.where(passes == 0, cut_near(low, high, guess, steps, scale, KEY_BITS), wide)
    else:
        cut = cut_at(low, high, eighths, passes < 3, KEY_BITS)
    return cut


@triton.jit
def search(
    base, z, input_bias, origin, scale, total, budget, low, high, guess,
    COUNT: tl.constexpr, SAMPLE: tl.constexpr, GUESS: tl.constexpr, COLUMNS: tl.constexpr, KEY_BITS: tl.constexpr,
    HAS_INPUT_BIAS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """(Lowest key in (low, high] with less than `budget` strictly above it, what lies at or above that key; −1: not known).

    Seven cuts a pass divide the range by eight. Three passes by score get close (keys are dense near zero, scores are not),
    passes by key end it exactly. A sample's three passes only say about where: it has too few of the few heavy tokens, so what lies
    above a cut is the total without what the sample has below it, times what it is a share of.
    """
    above_low = total * 0.0 - 1.0
    most: tl.constexpr = 3 if SAMPLE else 1000
    passes = 0
    while (high - low > 1) & (passes < most):
        c1 = next_cut(low, high, guess, 1, -9, passes, scale, GUESS, KEY_BITS)
        c2 = next_cut(low, high, guess, 2, -3, passes, scale, GUESS, KEY_BITS)
        c3 = next_cut(low, high, guess, 3, -1, passes, scale, GUESS, KEY_BITS)
        c4 = next_cut(low, high, guess, 4, 0, passes, scale, GUESS, KEY_BITS)
        c5 = next_cut(low, high, guess, 5, 1, passes, scale, GUESS, KEY_BITS)
        c6 = next_cut(low, high, guess, 6, 3, passes, scale, GUESS, KEY_BITS)
        c7 = next_cut(low, high, guess, 7, 9, passes, scale, GUESS, KEY_BITS)
        a0, a1, a2, a3, a4, a5, a6, a7 = weights_above(
            base, z, input_bias, origin, scale,
            score_of(c1, KEY_BITS), score_of(c2, KEY_BITS), score_of(c3, KEY_BITS), score_of(c4, KEY_BITS),
            score_of(c5, KEY_BITS), score_of(c6, KEY_BITS), score_of(c7, KEY_BITS),
            COUNT, SAMPLE, COLUMNS, HAS_INPUT_BIAS, BLOCK,
        )  # fmt: skip
        if SAMPLE:
            a1, a2, a3 = total - SHARE * (a0 - a1), total - SHARE * (a0 - a2), total - SHARE * (a0 - a3)
            a4, a5, a6 = total - SHARE * (a0 - a4), total - SHARE * (a0 - a5), total - SHARE * (a0 - a6)
            a7 = total - SHARE * (a0 - a7)
        # cuts rise, so what lies above them falls: the last one still at or over budget, the first one under it
        low, above_low = raise_low(a1, c1, budget, low, above_low)
        low, above_low = raise_low(a2, c2, budget, low, above_low)
        low, above_low = raise_low(a3, c3, budget, low, above_low)
        low, above_low = raise_low(a4, c4, budget, low, above_low)
        low, above_low = raise_low(a5, c5, budget, low, above_low)
        low, above_low = raise_low(a6, c6, budget, low, above_low)
        low, above_low = raise_low(a7, c7, budget, low, above_low)
        high = tl.where((a7 < budget) & (c7 > low), c7, high)
        high = tl.where((a6 < budget) & (c6 > low), c6, high)
        high = tl.where((a5 < budget) & (c5 > low), c5, high)
        high = tl.where((a4 < budget) & (c4 > low), c4, high)
        high = tl.where((a3 < budget) & (c3 > low), c3, high)
        high = tl.where((a2 < budget) & (c2 > low), c2, high)
        high = tl.where((a1 < budget) & (c1 > low), c1, high)
        passes += 1
    return high, above_low


@triton.jit
def raise_low(above, cut, budget, low, above_low):
    """`low` moved up to a cut that still has the budget above it."""
    up = (above >= budget) & (cut > low)
    return tl.where(up, cut, low), tl.where(up, above, above_low)


@triton.jit
def nucleus(
    base, z, input_bias, origin, scale, top_p, total, least, top,
    GUESS: tl.constexpr, COLUMNS: tl.constexpr, KEY_BITS: tl.constexpr, HAS_INPUT_BIAS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """(A score just below the crossing token's, weight of the nucleus); `top` is a score known to lie inside.

    Weights are relative to a token's with the score `origin`. Tokens of probability below (1 − top_p)/K weigh less than
    1 − top_p together: the crossing lies above them.
    """
    low, high = key_of(origin + (tl.log2(total) + least) / scale, KEY_BITS) - 1, key_of(top, KEY_BITS)
    budget = top_p * total
    guess = high
    if GUESS:
        guess, _ = search(base, z, input_bias, origin, scale, total, budget, low, high, high, False, True, False, COLUMNS, KEY_BITS, HAS_INPUT_BIAS, BLOCK)  # fmt: skip
    cut, kept = search(base, z, input_bias, origin, scale, total, budget, low, high, guess, False, False, GUESS, COLUMNS, KEY_BITS, HAS_INPUT_BIAS, BLOCK)  # fmt: skip
    threshold = score_of(cut - 1, KEY_BITS)
    if kept < 0.0:  # the search never moved its lower end
        kept, _ = weight_from(base, z, input_bias, origin, scale, above_(threshold), COLUMNS, HAS_INPUT_BIAS, BLOCK)
    return threshold, kept


@triton.jit
def threshold_and_total(
    base, z, input_bias, top_p, top_k, least, scale,
    COLUMNS: tl.constexpr, KEY_BITS: tl.constexpr, HAS_INPUT_BIAS: tl.constexpr, TOP_P: tl.constexpr,
    TOP_K: tl.constexpr, GUESS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """(Best score, lowest kept score, the kept tokens' weight relative to the best one's): the filters, as one threshold."""
    best, total = best_and_total(base, z, input_bias, scale, COLUMNS, HAS_INPUT_BIAS, BLOCK)
    threshold = best * 0.0 - float("inf")
    if TOP_K:
        _, worst = weight_from(base, z, input_bias, best, scale, 0.0, COLUMNS, HAS_INPUT_BIAS, BLOCK)
        low, high = key_of(worst, KEY_BITS) - 1, key_of(best, KEY_BITS)
        cut, _ = search(base, z, input_bias, best, scale, total, top_k, low, high, high, True, False, False, COLUMNS, KEY_BITS, HAS_INPUT_BIAS, BLOCK)  # fmt: skip
        threshold = score_of(cut - 1, KEY_BITS)
        total, _ = weight_from(base, z, input_bias, best, scale, above_(threshold), COLUMNS, HAS_INPUT_BIAS, BLOCK)
    if TOP_P:
        cut, kept = nucleus(base, z, input_bias, best, scale, top_p, total, least, best, GUESS, COLUMNS, KEY_BITS, HAS_INPUT_BIAS, BLOCK)  # fmt: skip
        threshold = tl.maximum(threshold, cut)
        if TOP_K:  # the search knew nothing of the cut by count
            kept, _ = weight_from(base, z, input_bias, best, scale, above_(threshold), COLUMNS, HAS_INPUT_BIAS, BLOCK)
        total = kept
    return best, above_(threshold), total


@triton.jit
def above_(score):
    """The next float32 above a finite score; −∞ stays."""
    bits = (score + 0.0).to(tl.int32, bitcast=True)
    key = (bits ^ ((bits >> 31) & 0x7FFFFFFF)) + 1
    up = (key ^ ((key >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)
    return tl.where(score == -float("inf"), score, up)


@triton.jit
def _row_stats(
    logits, stride, z_ids, input_bias_, log_total, log_p_z, mask_id, top_p, top_k, least, scale,
    SCALES: tl.constexpr, COLUMNS: tl.constexpr, KEY_BITS: tl.constexpr, HAS_INPUT_BIAS: tl.constexpr, TOP_P: tl.constexpr,
    TOP_K: tl.constexpr, GUESS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    z = tl.load(z_ids + row).to(tl.int32)
    if z == mask_id:
        tl.store(log_total + row, float("nan"))
        tl.store(log_p_z + row, -float("inf"))
    else:
        base = logits + row.to(tl.int64) * stride
        factor = factor_of(scale, row, SCALES)
        input_bias = 0.0
        if HAS_INPUT_BIAS:
            input_bias = tl.load(input_bias_).to(tl.float32)
        here = tl.load(base + z).to(tl.float32) + input_bias
        if TOP_P and not TOP_K:
            # most tokens need no search: a wrong one is cut by the weight above it, a sure one is the crossing itself
            total, above, kept = weights_around(base, z, input_bias, here, factor, COLUMNS, HAS_INPUT_BIAS, BLOCK)
            budget = top_p * total
            inside = above < budget
            if inside & (kept < budget):
                _, kept = nucleus(base, z, input_bias, here, factor, top_p, total, least, here, GUESS, COLUMNS, KEY_BITS, HAS_INPUT_BIAS, BLOCK)  # fmt: skip
            log_p = -tl.log2(kept) * LN2
        else:
            best, threshold, kept = threshold_and_total(
                base, z, input_bias, top_p, top_k, least, factor,
                COLUMNS, KEY_BITS, HAS_INPUT_BIAS, TOP_P, TOP_K, GUESS, BLOCK,
            )  # fmt: skip
            inside = here >= threshold
            log_p = ((here - best) * factor - tl.log2(kept)) * LN2
        tl.store(log_total + row, tl.where(inside, here * factor * LN2 - log_p, float("nan")))
        tl.store(log_p_z + row, tl.where(inside, log_p, -float("inf")))
