"""Passes over a row of logits, each once from end to end: what the kernels of this folder learn of it.

These loops wait for instructions, not for memory, so they are written for few of them (counted in the compiled code): a lane
holds eight neighbouring columns, one load of bfloat16; its sums are one number each, not one a column, so that registers suffice for many rows
at a time; a sum takes a token by `where(inside, sum + weight, sum)`, one predicated addition; and only the last
block of a row looks for the row's end.
"""

from __future__ import annotations

import triton
import triton.language as tl

EACH = tl.constexpr(8)  # neighbouring columns of a lane
SHARE = tl.constexpr(8)  # a sample is 32 columns of every 8 · 32


@triton.jit
def load_columns(
    base, offset, z, input_bias,
    COLUMNS: tl.constexpr, HAS_INPUT_BIAS: tl.constexpr, BLOCK: tl.constexpr, WHOLE: tl.constexpr, SAMPLE: tl.constexpr,
):  # fmt: skip
    """Eight tensors [BLOCK // 8] of float32 scores, in an order of their own; a block that is not whole ends in −∞.

    A sample's block lies between offset and offset + BLOCK of the columns that are sampled.
    """
    lane = offset // EACH + tl.arange(0, BLOCK // EACH)
    if SAMPLE:
        lane = lane // 4 * (4 * SHARE) + lane % 4
    j = lane[:, None] * EACH + tl.arange(0, EACH)[None, :]
    if WHOLE:
        score = tl.load(base + j).to(tl.float32)
    else:
        score = tl.load(base + j, mask=j < COLUMNS, other=-float("inf")).to(tl.float32)
    if HAS_INPUT_BIAS:
        score = tl.where(j == z, score + input_bias, score)
    even, odd = tl.split(tl.reshape(score, (BLOCK // EACH, 4, 2)))
    s0, s2 = tl.split(tl.reshape(even, (BLOCK // EACH, 2, 2)))
    s1, s3 = tl.split(tl.reshape(odd, (BLOCK // EACH, 2, 2)))
    s00, s01 = tl.split(s0)
    s10, s11 = tl.split(s1)
    s20, s21 = tl.split(s2)
    s30, s31 = tl.split(s3)
    return s00, s10, s20, s30, s01, s11, s21, s31


# -- the best score and the total ---------------------------------------------------------------------------------------


@triton.jit
def best_and_total(
    base, z, input_bias, scale, COLUMNS: tl.constexpr, HAS_INPUT_BIAS: tl.constexpr, BLOCK: tl.constexpr
):
    """(Best score, Σ 2^(scale · (score − best))): each lane keeps its own running best."""
    best = tl.full((BLOCK // EACH,), -1e30, tl.float32)
    total = tl.zeros((BLOCK // EACH,), tl.float32)
    whole: tl.constexpr = COLUMNS // BLOCK * BLOCK
    for offset in range(0, whole, BLOCK):
        best, total = _add_total(best, total, base, offset, z, input_bias, scale, COLUMNS, HAS_INPUT_BIAS, BLOCK, True)
    if whole < COLUMNS:
        best, total = _add_total(best, total, base, whole, z, input_bias, scale, COLUMNS, HAS_INPUT_BIAS, BLOCK, False)
    top = tl.max(best, 0)
    return top, tl.sum(total * tl.exp2((best - top) * scale), 0)


@triton.jit
def _add_total(
    best, total, base, offset, z, input_bias, scale,
    COLUMNS: tl.constexpr, HAS_INPUT_BIAS: tl.constexpr, BLOCK: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    """`best_and_total` with one more block."""
    scores = load_columns(base, offset, z, input_bias, COLUMNS, HAS_INPUT_BIAS, BLOCK, WHOLE, False)
    now = best
    for i in tl.static_range(8):
        now = tl.maximum(now, scores[i])
    total *= tl.exp2((best - now) * scale)
    for i in tl.static_range(8):
        total += tl.exp2((scores[i] - now) * scale)
    return now, total


# -- weights around one score -------------------------------------------------------------------------------------------


@triton.jit
def weights_around(
    base, z, input_bias, here, scale, COLUMNS: tl.constexpr, HAS_INPUT_BIAS: tl.constexpr, BLOCK: tl.constexpr
):
    """(Total weight, weight strictly above the score `here`, weight at or above it), relative to a token's with that score.

    No best score is needed first: where others outweigh `here` so far that sums overflow, it is in no nucleus, and ∞ < ∞ says so.
    """
    total = tl.zeros((BLOCK // EACH,), tl.float32)
    above = tl.zeros((BLOCK // EACH,), tl.float32)
    level = tl.zeros((BLOCK // EACH,), tl.float32)
    whole: tl.constexpr = COLUMNS // BLOCK * BLOCK
    for offset in range(0, whole, BLOCK):
        total, above, level = _add_around(total, above, level, base, offset, z, input_bias, here, scale, COLUMNS, HAS_INPUT_BIAS, BLOCK, True)  # fmt: skip
    if whole < COLUMNS:
        total, above, level = _add_around(total, above, level, base, whole, z, input_bias, here, scale, COLUMNS, HAS_INPUT_BIAS, BLOCK, False)  # fmt: skip
    return tl.reduce((total, above, level), 0, _add_three)


@triton.jit
def _add_around(
    total, above, level, base, offset, z, input_bias, here, scale,
    COLUMNS: tl.constexpr, HAS_INPUT_BIAS: tl.constexpr, BLOCK: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    """`weights_around` with one more block."""
    scores = load_columns(base, offset, z, input_bias, COLUMNS, HAS_INPUT_BIAS, BLOCK, WHOLE, False)
    for i in tl.static_range(8):
        weight = tl.exp2((scores[i] - here) * scale)
        total += weight
        above = tl.where(scores[i] > here, above + weight, above)
        level = tl.where(scores[i] >= here, level + weight, level)
    return total, above, level


@triton.jit
def _add_three(a, b, c, d, e, f):
    return a + d, b + e, c + f


# -- weights above seven scores -----------------------------------------------------------------------------------------


@triton.jit
def weights_above(
    base, z, input_bias, origin, scale, v1, v2, v3, v4, v5, v6, v7,
    COUNT: tl.constexpr, SAMPLE: tl.constexpr, COLUMNS: tl.constexpr, HAS_INPUT_BIAS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """(Weight in all, and strictly above each of seven scores), relative to a token's with the score `origin`, or how many tokens.

    In all: of a sample only, 0 otherwise. A sample is not scaled up.
    """
    a0 = tl.zeros((BLOCK // EACH,), tl.float32)
    a1 = tl.zeros((BLOCK // EACH,), tl.float32)
    a2 = tl.zeros((BLOCK // EACH,), tl.float32)
    a3 = tl.zeros((BLOCK // EACH,), tl.float32)
    a4 = tl.zeros((BLOCK // EACH,), tl.float32)
    a5 = tl.zeros((BLOCK // EACH,), tl.float32)
    a6 = tl.zeros((BLOCK // EACH,), tl.float32)
    a7 = tl.zeros((BLOCK // EACH,), tl.float32)
    whole: tl.constexpr = 0 if SAMPLE else COLUMNS // BLOCK * BLOCK
    stop: tl.constexpr = (COLUMNS + 32 * SHARE - 1) // (32 * SHARE) * 32 if SAMPLE else COLUMNS
    for offset in range(0, whole, BLOCK):
        a0, a1, a2, a3, a4, a5, a6, a7 = _add_above(
            a0, a1, a2, a3, a4, a5, a6, a7, base, offset, z, input_bias, origin, scale, v1, v2, v3, v4, v5, v6, v7,
            COUNT, SAMPLE, COLUMNS, HAS_INPUT_BIAS, BLOCK, True,
        )  # fmt: skip
    for offset in range(whole, stop, BLOCK):
        a0, a1, a2, a3, a4, a5, a6, a7 = _add_above(
            a0, a1, a2, a3, a4, a5, a6, a7, base, offset, z, input_bias, origin, scale, v1, v2, v3, v4, v5, v6, v7,
            COUNT, SAMPLE, COLUMNS, HAS_INPUT_BIAS, BLOCK, False,
        )  # fmt: skip
    return tl.reduce((a0, a1, a2, a3, a4, a5, a6, a7), 0, _add_eight)


@triton.jit
def _add_above(
    a0, a1, a2, a3, a4, a5, a6, a7, base, offset, z, input_bias, origin, scale, v1, v2, v3, v4, v5, v6, v7,
    COUNT: tl.constexpr, SAMPLE: tl.constexpr, COLUMNS: tl.constexpr, HAS_INPUT_BIAS: tl.constexpr, BLOCK: tl.constexpr,
    WHOLE: tl.constexpr,
):  # fmt: skip
    """`weights_above` with one more block."""
    scores = load_columns(base, offset, z, input_bias, COLUMNS, HAS_INPUT_BIAS, BLOCK, WHOLE, SAMPLE)
    for i in tl.static_range(8):
        score = scores[i]
        if COUNT:
            weight = tl.full((BLOCK // EACH,), 1.0, tl.float32)
        else:
            weight = tl.exp2((score - origin) * scale)
        if SAMPLE:
            a0 += weight
        a1 = tl.where(score > v1, a1 + weight, a1)
        a2 = tl.where(score > v2, a2 + weight, a2)
        a3 = tl.where(score > v3, a3 + weight, a3)
        a4 = tl.where(score > v4, a4 + weight, a4)
        a5 = tl.where(score > v5, a5 + weight, a5)
        a6 = tl.where(score > v6, a6 + weight, a6)
        a7 = tl.where(score > v7, a7 + weight, a7)
    return a0, a1, a2, a3, a4, a5, a6, a7


@triton.jit
def _add_eight(a0, a1, a2, a3, a4, a5, a6, a7, b0, b1, b2, b3, b4, b5, b6, b7):
    return a0 + b0, a1 + b1, a2 + b2, a3 + b3, a4 + b4, a5 + b5, a6 + b6, a7 + b7


# -- weight from one score on -------------------------------------------------------------------------------------------


@triton.jit
def weight_from(
    base, z, input_bias, origin, scale, least, COLUMNS: tl.constexpr, HAS_INPUT_BIAS: tl.constexpr, BLOCK: tl.constexpr
):
    """(Weight of the scores of at least `least`, the lowest possible score of the row)."""
    total = tl.zeros((BLOCK // EACH,), tl.float32)
    worst = tl.full((BLOCK // EACH,), float("inf"), tl.float32)
    for offset in range(0, COLUMNS, BLOCK):
        scores = load_columns(base, offset, z, input_bias, COLUMNS, HAS_INPUT_BIAS, BLOCK, False, False)
        for i in tl.static_range(8):
            score = scores[i]
            total = tl.where(score >= least, total + tl.exp2((score - origin) * scale), total)
            worst = tl.minimum(worst, tl.where(score == -float("inf"), float("inf"), score))
    return tl.sum(total, 0), tl.min(worst, 0)
