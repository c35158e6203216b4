"""Filtered statistics of a row of logits: one program a row, thresholds found by weighing, never by sorting."""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from scdd.core import Head
from scdd.ops.common import Filters
from scdd.ops.triton_rows import LN2, STAGES, load_scores, log_sum_exp2

BLOCK = 2048
WARPS = 4


def filter_arguments(head: Head, filters: Filters, logits: Tensor) -> dict[str, object]:
    """The filters as kernel arguments. Bfloat16 logits are told apart by 16 bits, which halves the search."""
    scale = math.log2(math.e) / filters.temperature
    return {
        "top_p": filters.top_p,
        "top_k": float(min(filters.top_k or 0, head.vocab.K)),
        "least": math.log2((1.0 - filters.top_p) / head.vocab.K) if filters.top_p < 1.0 else 0.0,
        "scale": scale.to(torch.float32) if isinstance(scale, Tensor) else scale,
        "SCALES": isinstance(scale, Tensor),
        "COLUMNS": logits.shape[1],
        "KEY_BITS": 16 if logits.dtype == torch.bfloat16 and head.input_bias is None else 32,
        "HAS_INPUT_BIAS": head.input_bias is not None,
        "TOP_P": filters.top_p < 1.0,
        "TOP_K": filters.top_k is not None,
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
def search(
    base, z, input_bias, best, scale, budget, low, high, above_low,
    COUNT: tl.constexpr, COLUMNS: tl.constexpr, KEY_BITS: tl.constexpr, HAS_INPUT_BIAS: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """(Lowest key in (low, high] with less than `budget` strictly above it, what lies at or above that key).

    Seven cuts a pass divide the range by eight; the row stays in cache from pass to pass. Three passes by score get
    close (keys are dense near zero, scores are not), passes by key end it exactly.
    """
    passes = 0
    while high - low > 1:
        by_value = passes < 3
        c1, c2 = cut_at(low, high, 1, by_value, KEY_BITS), cut_at(low, high, 2, by_value, KEY_BITS)
        c3, c4 = cut_at(low, high, 3, by_value, KEY_BITS), cut_at(low, high, 4, by_value, KEY_BITS)
        c5, c6 = cut_at(low, high, 5, by_value, KEY_BITS), cut_at(low, high, 6, by_value, KEY_BITS)
        c7 = cut_at(low, high, 7, by_value, KEY_BITS)
        v1, v2, v3 = score_of(c1, KEY_BITS), score_of(c2, KEY_BITS), score_of(c3, KEY_BITS)
        v4, v5, v6 = score_of(c4, KEY_BITS), score_of(c5, KEY_BITS), score_of(c6, KEY_BITS)
        v7 = score_of(c7, KEY_BITS)
        a1 = tl.zeros((BLOCK,), tl.float32)
        a2 = tl.zeros((BLOCK,), tl.float32)
        a3 = tl.zeros((BLOCK,), tl.float32)
        a4 = tl.zeros((BLOCK,), tl.float32)
        a5 = tl.zeros((BLOCK,), tl.float32)
        a6 = tl.zeros((BLOCK,), tl.float32)
        a7 = tl.zeros((BLOCK,), tl.float32)
        for offset in tl.range(0, COLUMNS, BLOCK, num_stages=STAGES):
            score = load_scores(base, offset, z, input_bias, COLUMNS, HAS_INPUT_BIAS, BLOCK)
            if COUNT:
                weight = tl.full((BLOCK,), 1.0, tl.float32)
            else:
                weight = tl.exp2((score - best) * scale)
            a1 += tl.where(score > v1, weight, 0.0)
            a2 += tl.where(score > v2, weight, 0.0)
            a3 += tl.where(score > v3, weight, 0.0)
            a4 += tl.where(score > v4, weight, 0.0)
            a5 += tl.where(score > v5, weight, 0.0)
            a6 += tl.where(score > v6, weight, 0.0)
            a7 += tl.where(score > v7, weight, 0.0)
        # cuts rise, so what lies above them falls: the last one still at or over budget, the first one under it
        low, above_low = raise_low(tl.sum(a1, 0), c1, budget, low, above_low)
        low, above_low = raise_low(tl.sum(a2, 0), c2, budget, low, above_low)
        low, above_low = raise_low(tl.sum(a3, 0), c3, budget, low, above_low)
        low, above_low = raise_low(tl.sum(a4, 0), c4, budget, low, above_low)
        low, above_low = raise_low(tl.sum(a5, 0), c5, budget, low, above_low)
        low, above_low = raise_low(tl.sum(a6, 0), c6, budget, low, above_low)
        low, above_low = raise_low(tl.sum(a7, 0), c7, budget, low, above_low)
        high = tl.where((tl.sum(a7, 0) < budget) & (c7 > low), c7, high)
        high = tl.where((tl.sum(a6, 0) < budget) & (c6 > low), c6, high)
        high = tl.where((tl.sum(a5, 0) < budget) & (c5 > low), c5, high)
        high = tl.where((tl.sum(a4, 0) < budget) & (c4 > low), c4, high)
        high = tl.where((tl.sum(a3, 0) < budget) & (c3 > low), c3, high)
        high = tl.where((tl.sum(a2, 0) < budget) & (c2 > low), c2, high)
        high = tl.where((tl.sum(a1, 0) < budget) & (c1 > low), c1, high)
        passes += 1
    return high, above_low


@triton.jit
def raise_low(above, cut, budget, low, above_low):
    """`low` moved up to a cut that still has the budget above it."""
    up = (above >= budget) & (cut > low)
    return tl.where(up, cut, low), tl.where(up, above, above_low)


@triton.jit
def weight_from(
    base, z, input_bias, best, scale, least,
    COLUMNS: tl.constexpr, HAS_INPUT_BIAS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """(Total weight of the scores of at least `least`, the lowest possible score of the row)."""
    total = tl.zeros((BLOCK,), tl.float32)
    worst = tl.full((BLOCK,), float("inf"), tl.float32)
    for offset in tl.range(0, COLUMNS, BLOCK, num_stages=STAGES):
        score = load_scores(base, offset, z, input_bias, COLUMNS, HAS_INPUT_BIAS, BLOCK)
        total += tl.where(score >= least, tl.exp2((score - best) * scale), 0.0)
        worst = tl.minimum(worst, tl.where(score == -float("inf"), float("inf"), score))
    return tl.sum(total, 0), tl.min(worst, 0)


@triton.jit
def nucleus(
    base, z, input_bias, best, scale, top_p, total2, least, top,
    COLUMNS: tl.constexpr, KEY_BITS: tl.constexpr, HAS_INPUT_BIAS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """(A score just below the crossing token's, weight of the nucleus); `top` is a score known to lie inside.

    Tokens of probability below (1 − top_p)/K weigh less than 1 − top_p together: the crossing lies above them.
    """
    low, high = key_of((total2 + least) / scale, KEY_BITS) - 1, key_of(top, KEY_BITS)
    budget = top_p * tl.exp2(total2 - best * scale)
    unknown = best * 0.0 - 1.0
    cut, kept = search(base, z, input_bias, best, scale, budget, low, high, unknown, False, COLUMNS, KEY_BITS, HAS_INPUT_BIAS, BLOCK)  # fmt: skip
    threshold = score_of(cut - 1, KEY_BITS)
    if kept < 0.0:  # the search never moved its lower end
        kept, _ = weight_from(base, z, input_bias, best, scale, above_(threshold), COLUMNS, HAS_INPUT_BIAS, BLOCK)
    return threshold, kept


@triton.jit
def weights_around(
    base, z, input_bias, best, scale, here,
    COLUMNS: tl.constexpr, HAS_INPUT_BIAS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """(Weight strictly above the score `here`, weight at or above it)."""
    above = tl.zeros((BLOCK,), tl.float32)
    from_here = tl.zeros((BLOCK,), tl.float32)
    for offset in tl.range(0, COLUMNS, BLOCK, num_stages=STAGES):
        score = load_scores(base, offset, z, input_bias, COLUMNS, HAS_INPUT_BIAS, BLOCK)
        weight = tl.exp2((score - best) * scale)
        above += tl.where(score > here, weight, 0.0)
        from_here += tl.where(score >= here, weight, 0.0)
    return tl.sum(above, 0), tl.sum(from_here, 0)


@triton.jit
def threshold_and_total(
    base, z, input_bias, top_p, top_k, least, scale,
    COLUMNS: tl.constexpr, KEY_BITS: tl.constexpr, HAS_INPUT_BIAS: tl.constexpr, TOP_P: tl.constexpr,
    TOP_K: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """(Best score, lowest kept score, log2 of the kept tokens' weight 2^(scale·score)): the filters, as one threshold."""
    best, total2 = log_sum_exp2(base, z, input_bias, scale, COLUMNS, HAS_INPUT_BIAS, BLOCK)
    threshold = best * 0.0 - float("inf")
    unknown = best * 0.0 - 1.0
    if TOP_K:
        _, worst = weight_from(base, z, input_bias, best, scale, 0.0, COLUMNS, HAS_INPUT_BIAS, BLOCK)
        low, high = key_of(worst, KEY_BITS) - 1, key_of(best, KEY_BITS)
        cut, _ = search(base, z, input_bias, best, scale, top_k, low, high, unknown, True, COLUMNS, KEY_BITS, HAS_INPUT_BIAS, BLOCK)  # fmt: skip
        threshold = score_of(cut - 1, KEY_BITS)
        kept, _ = weight_from(base, z, input_bias, best, scale, above_(threshold), COLUMNS, HAS_INPUT_BIAS, BLOCK)
        total2 = best * scale + tl.log2(kept)
    if TOP_P:
        cut, kept = nucleus(base, z, input_bias, best, scale, top_p, total2, least, best, COLUMNS, KEY_BITS, HAS_INPUT_BIAS, BLOCK)  # fmt: skip
        threshold = tl.maximum(threshold, cut)
        if TOP_K:  # the search knew nothing of the cut by count
            kept, _ = weight_from(base, z, input_bias, best, scale, above_(threshold), COLUMNS, HAS_INPUT_BIAS, BLOCK)
        total2 = best * scale + tl.log2(kept)
    return best, above_(threshold), total2


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
    TOP_K: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    z = tl.load(z_ids + row).to(tl.int32)
    if z == mask_id:
        tl.store(log_total + row, float("nan"))
        tl.store(log_p_z + row, -float("inf"))
    else:
        base = logits + row.to(tl.int64) * stride
        if SCALES:
            factor = tl.load(scale + row)
        else:
            factor = scale
        input_bias = 0.0
        if HAS_INPUT_BIAS:
            input_bias = tl.load(input_bias_).to(tl.float32)
        here = tl.load(base + z).to(tl.float32) + input_bias
        if TOP_P and not TOP_K:
            # most tokens need no search: a wrong one is cut by the weight above it, a sure one is the crossing itself
            best, total2 = log_sum_exp2(base, z, input_bias, factor, COLUMNS, HAS_INPUT_BIAS, BLOCK)
            above, kept = weights_around(base, z, input_bias, best, factor, here, COLUMNS, HAS_INPUT_BIAS, BLOCK)
            budget = top_p * tl.exp2(total2 - best * factor)
            inside = above < budget
            if inside & (kept < budget):
                _, kept = nucleus(base, z, input_bias, best, factor, top_p, total2, least, here, COLUMNS, KEY_BITS, HAS_INPUT_BIAS, BLOCK)  # fmt: skip
            total2 = best * factor + tl.log2(kept)
        else:
            _, threshold, total2 = threshold_and_total(
                base, z, input_bias, top_p, top_k, least, factor, COLUMNS, KEY_BITS, HAS_INPUT_BIAS, TOP_P, TOP_K, BLOCK
            )
            inside = here >= threshold
        log_p = (here * factor - total2) * LN2
        tl.store(log_total + row, tl.where(inside, total2 * LN2, float("nan")))
        tl.store(log_p_z + row, tl.where(inside, log_p, -float("inf")))
