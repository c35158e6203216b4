"""Losses and gradients of one chunk of logits: one program a row, at most three passes over it.

What bounds this is instructions and special functions an element, so both are counted here. Tokens go in pairs (a, b) of
shares r·p: (1 + a)·(1 + b) needs one reciprocal for both, and its logarithm is summed as a product, of which only the
exponent is taken out on the way. A program is wide and few are on a multiprocessor at a time: the rows that are worked
on stay in its first-level cache from one pass to the next.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from scdd.core import ElboCoefficients, Head
from scdd.ops.triton_rows import LN2, LOG2E, inverse_, load_scores, log_mixture_, sigmoid_, softplus_

BLOCK = 2048  # columns of one load, of which there are two at a time: four a thread
WARPS = 16  # two programs on a multiprocessor
LANES = tl.constexpr(8)  # neighbouring columns that share a running maximum and their sums: those of two threads
MOST_LOG_R = tl.constexpr(43.0)  # of a pair, the product r²·p_a·p_b ≤ r²/4 fits in float32


def row_loss(logits: Tensor, head: Head, x: Tensor, z_t: Tensor, rows: ElboCoefficients, with_grad: bool) -> Tensor:
    """Losses [n] from logits [n, Vp]; with_grad leaves d(sum of losses)/d(logits) in `logits`."""
    count, columns = logits.shape
    losses = torch.empty(count, dtype=torch.float32, device=logits.device)
    if count == 0:
        return losses
    block, full, tail = cut(columns, BLOCK)
    _row_loss[(count,)](
        logits,
        logits.stride(0),
        x,
        z_t,
        *(field.contiguous() for field in rows),
        losses if head.input_bias is None else head.input_bias,
        losses,
        head.vocab.mask_id,
        COLUMNS=columns,
        HAS_INPUT_BIAS=head.input_bias is not None,
        WITH_GRAD=with_grad,
        BLOCK=block,
        FULL=full,
        TAIL=tail,
        num_warps=WARPS,
    )
    return losses


def cut(columns: int, block: int) -> tuple[int, int, int]:
    """(Columns of a load, columns that whole pairs of loads cover without a mask, columns of a load for the rest)."""
    block = min(block, max(triton.next_power_of_2(columns) // 2, 8))
    full = columns - columns % (2 * block)
    rest = triton.next_power_of_2(columns - full) // 2 if full < columns else 0
    return block, full, max(rest, 8) if full < columns else 0


@triton.jit
def _row_loss(
    logits, stride, x_ids, z_ids, log_r_, log_r_t_, w_x_, w_z_, w_o_, w_t_, w_e_, input_bias_, losses, mask_id,
    COLUMNS: tl.constexpr, HAS_INPUT_BIAS: tl.constexpr, WITH_GRAD: tl.constexpr, BLOCK: tl.constexpr,
    FULL: tl.constexpr, TAIL: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    base = logits + row.to(tl.int64) * stride
    x = tl.load(x_ids + row).to(tl.int32)
    z = tl.load(z_ids + row).to(tl.int32)
    log_r = tl.load(log_r_ + row)
    log_r_t = tl.load(log_r_t_ + row)
    w_x = tl.load(w_x_ + row)
    w_z = tl.load(w_z_ + row)
    w_o = tl.load(w_o_ + row)
    w_t = tl.load(w_t_ + row)
    w_e = tl.load(w_e_ + row)
    input_bias = 0.0
    if HAS_INPUT_BIAS:
        input_bias = tl.load(input_bias_).to(tl.float32)

    # pass 1: logsumexp
    lse2 = _log_sum_exp2(base, z, input_bias, COLUMNS, HAS_INPUT_BIAS, BLOCK, FULL, TAIL)
    seen = tl.where(z == mask_id, x, z)
    score_x = tl.load(base + x).to(tl.float32)
    score_z = tl.load(base + seen).to(tl.float32)
    if HAS_INPUT_BIAS:
        score_x = tl.where(x == z, score_x + input_bias, score_x)
        score_z = tl.where(seen == z, score_z + input_bias, score_z)
    log_p_x = score_x - lse2 * LN2
    log_p_z = score_z - lse2 * LN2

    # pass 2: S and Σ share/(1 + share), share = r·p, where there is a floor
    S = 0.0
    pull = 0.0
    log_r2 = tl.minimum(log_r, MOST_LOG_R) * LOG2E
    if w_o != 0.0:
        S, pull = _floor_sums(base, z, input_bias, lse2 - log_r2, COLUMNS, HAS_INPUT_BIAS, BLOCK, FULL, TAIL)

    # the closed form of core.ElboCoefficients
    used = (w_t != 0.0) | (w_e != 0.0)
    y = tl.where(x == z, log_mixture_(log_p_z, log_r_t), softplus_(log_p_z + log_r_t))
    y = tl.where(used, y, 0.0)
    floored = w_z * softplus_(log_p_z + log_r) + w_o * (S - softplus_(log_p_x + log_r))
    floored = tl.where(log_r == float("inf"), 0.0, floored)
    shrink = tl.exp(-y)
    loss = -w_x * log_mixture_(log_p_x, log_r) - floored + w_t * y + w_e * (shrink - 1.0)
    tl.store(losses + row, loss)

    # pass 3: the gradient, in place; forbidden tokens have p = 0 and get none
    if WITH_GRAD:
        g_x = (w_o - w_x) * sigmoid_(log_p_x + log_r)
        g_z = tl.where(used, (w_t - w_e * shrink) * sigmoid_(log_p_z + log_r_t), 0.0)
        g_z -= w_z * sigmoid_(log_p_z + log_r)
        on_p = w_o * pull - g_x - g_z
        r = tl.exp2(log_r2)
        floor = w_o * r  # on p as well, over 1 + share
        tl.debug_barrier()  # scores of x and z_t are read by all before one writes there
        if w_o != 0.0:
            for offset in tl.range(0, FULL, 2 * BLOCK):
                _floored_gradient(
                    base, offset, z, input_bias, lse2, on_p, floor, r, COLUMNS, HAS_INPUT_BIAS, BLOCK, False
                )
            if TAIL:
                _floored_gradient(base, FULL, z, input_bias, lse2, on_p, floor, r, COLUMNS, HAS_INPUT_BIAS, TAIL, True)
        else:
            for offset in tl.range(0, FULL, 2 * BLOCK):
                _plain_gradient(base, offset, z, input_bias, lse2, on_p, COLUMNS, HAS_INPUT_BIAS, BLOCK, False)
            if TAIL:
                _plain_gradient(base, FULL, z, input_bias, lse2, on_p, COLUMNS, HAS_INPUT_BIAS, TAIL, True)
        tl.debug_barrier()  # the two tokens with a term of their own are written over what the loop wrote
        at_x = _smooth(log_p_x, on_p, w_o, r) + g_x + tl.where(x == seen, g_z, 0.0)
        at_z = _smooth(log_p_z, on_p, w_o, r) + g_z + tl.where(x == seen, g_x, 0.0)
        tl.store(base + x, at_x.to(logits.dtype.element_ty))
        tl.store(base + seen, at_z.to(logits.dtype.element_ty))


@triton.jit
def _pair(
    base, offset, z, input_bias, COLUMNS: tl.constexpr, HAS_INPUT_BIAS: tl.constexpr, BLOCK: tl.constexpr,
    MASKED: tl.constexpr,
):  # fmt: skip
    """Two neighbouring blocks of scores, float32; −∞ beyond the row's end, as at the mask and the padding."""
    if MASKED:
        first = load_scores(base, offset, z, input_bias, COLUMNS, HAS_INPUT_BIAS, BLOCK)
        second = load_scores(base, offset + BLOCK, z, input_bias, COLUMNS, HAS_INPUT_BIAS, BLOCK)
    else:  # a mask would cost a selection an element
        j = offset + tl.arange(0, BLOCK)
        first = tl.load(base + j).to(tl.float32)
        second = tl.load(base + BLOCK + j).to(tl.float32)
        if HAS_INPUT_BIAS:
            first = tl.where(j == z, first + input_bias, first)
            second = tl.where(j + BLOCK == z, second + input_bias, second)
    return first, second


@triton.jit
def _log_sum_exp2(
    base, z, input_bias, COLUMNS: tl.constexpr, HAS_INPUT_BIAS: tl.constexpr, BLOCK: tl.constexpr,
    FULL: tl.constexpr, TAIL: tl.constexpr,
):  # fmt: skip
    """log2 Σ e^score: neighbours keep a running best of their own, so nothing is reduced over the program inside the loop."""
    best = tl.full((BLOCK // LANES,), -1e30, tl.float32)
    total = tl.zeros((BLOCK // LANES,), tl.float32)
    for offset in tl.range(0, FULL, 2 * BLOCK):
        first, second = _pair(base, offset, z, input_bias, COLUMNS, HAS_INPUT_BIAS, BLOCK, False)
        best, total = _with_more(best, total, first, second, BLOCK)
    top = tl.max(best, 0)
    if TAIL:
        rest = tl.full((TAIL // LANES,), -1e30, tl.float32)
        more = tl.zeros((TAIL // LANES,), tl.float32)
        first, second = _pair(base, FULL, z, input_bias, COLUMNS, HAS_INPUT_BIAS, TAIL, True)
        rest, more = _with_more(rest, more, first, second, TAIL)
        top = tl.maximum(top, tl.max(rest, 0))
        sum_ = tl.sum(more * tl.exp2(rest - top), 0) + tl.sum(total * tl.exp2(best - top), 0)
    else:
        sum_ = tl.sum(total * tl.exp2(best - top), 0)
    return top + tl.log2(sum_)


@triton.jit
def _with_more(best, total, first, second, BLOCK: tl.constexpr):
    """(Best of scores · log2(e), Σ 2^(those − best)) with two more blocks in it."""
    a = tl.reshape(first, (BLOCK // LANES, LANES))
    b = tl.reshape(second, (BLOCK // LANES, LANES))
    higher = tl.maximum(best, tl.max(tl.maximum(a, b), 1) * LOG2E)
    more = tl.exp2(a * LOG2E - higher[:, None]) + tl.exp2(b * LOG2E - higher[:, None])
    return higher, total * tl.exp2(best - higher) + tl.sum(more, 1)


@triton.jit
def _floor_sums(
    base, z, input_bias, shift, COLUMNS: tl.constexpr, HAS_INPUT_BIAS: tl.constexpr, BLOCK: tl.constexpr,
    FULL: tl.constexpr, TAIL: tl.constexpr,
):  # fmt: skip
    """(Σ log(1 + share), Σ share/(1 + share)), share = 2^(score·log2(e) − shift)."""
    S = 0.0
    pull = 0.0
    if FULL:
        product = tl.full((BLOCK,), 1.0, tl.float32)
        exponent = tl.zeros((BLOCK // LANES,), tl.int32)
        lost = tl.zeros((BLOCK // LANES,), tl.float32)
        sums = tl.zeros((BLOCK // LANES,), tl.float32)
        for offset in tl.range(0, FULL, 2 * BLOCK):
            first, second = _pair(base, offset, z, input_bias, COLUMNS, HAS_INPUT_BIAS, BLOCK, False)
            product, exponent, lost, sums = _with_pair(product, exponent, lost, sums, first, second, shift)
        S = _summed_logs(product, exponent, lost, FULL // 2)
        pull = tl.sum(sums, 0)
    if TAIL:
        product = tl.full((TAIL,), 1.0, tl.float32)
        exponent = tl.zeros((TAIL // LANES,), tl.int32)
        zero = tl.zeros((TAIL // LANES,), tl.float32)
        first, second = _pair(base, FULL, z, input_bias, COLUMNS, HAS_INPUT_BIAS, TAIL, True)
        product, exponent, lost, sums = _with_pair(product, exponent, zero, zero, first, second, shift)
        S += _summed_logs(product, exponent, lost, TAIL)
        pull += tl.sum(sums, 0)
    return S, pull


@triton.jit
def _with_pair(product, exponent, lost, sums, first, second, shift):
    """The sums with one more pair a lane: Σ log2(1 + share) as a product in [1, 2) and what its exponents were.

    1 + more rounds digits of `more` away; their share of the logarithm, to first order, is kept in `lost`.
    """
    a = tl.exp2(first * LOG2E - shift)
    b = tl.exp2(second * LOG2E - shift)
    both = a * b
    more = a + b + both
    whole = 1.0 + more  # (1 + a)·(1 + b)
    inverse = inverse_(whole)
    lost += _threads((more - (whole - 1.0)) * inverse)
    sums += _threads((more + both) * inverse)
    bits = (product * whole).to(tl.int32, bitcast=True)
    product = ((bits & 0x7FFFFF) | 0x3F800000).to(tl.float32, bitcast=True)
    return product, exponent + _threads(bits >> 23), lost, sums


@triton.jit
def _threads(v):
    """The sum of neighbouring columns: the registers that fewer numbers spare are a program more at a time."""
    return tl.sum(tl.reshape(v, (v.shape[0] // LANES, LANES)), 1)


@triton.jit
def _summed_logs(product, exponent, lost, PAIRS: tl.constexpr):
    """Σ log(1 + share) from what `_with_pair` kept; 127 is float32's exponent of 1."""
    powers = (tl.sum(exponent, 0) - 127 * PAIRS).to(tl.float32)
    return (tl.sum(tl.log2(product), 0) + powers) * LN2 + tl.sum(lost, 0)


@triton.jit
def _floored_gradient(
    base, offset, z, input_bias, lse2, on_p, floor, r, COLUMNS: tl.constexpr, HAS_INPUT_BIAS: tl.constexpr,
    BLOCK: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """on_p·p − w_o·share/(1 + share) = p·(on_p − floor/(1 + r·p)) over two blocks; a pair shares its reciprocal."""
    first, second = _pair(base, offset, z, input_bias, COLUMNS, HAS_INPUT_BIAS, BLOCK, MASKED)
    p = tl.exp2(first * LOG2E - lse2)
    q = tl.exp2(second * LOG2E - lse2)
    a = p * r + 1.0
    b = q * r + 1.0
    inverse = inverse_(a * b) * floor
    _store(base, offset, p * (on_p - inverse * b), q * (on_p - inverse * a), COLUMNS, BLOCK, MASKED)


@triton.jit
def _plain_gradient(
    base, offset, z, input_bias, lse2, on_p, COLUMNS: tl.constexpr, HAS_INPUT_BIAS: tl.constexpr,
    BLOCK: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """on_p·p over two blocks."""
    first, second = _pair(base, offset, z, input_bias, COLUMNS, HAS_INPUT_BIAS, BLOCK, MASKED)
    p = tl.exp2(first * LOG2E - lse2) * on_p
    q = tl.exp2(second * LOG2E - lse2) * on_p
    _store(base, offset, p, q, COLUMNS, BLOCK, MASKED)


@triton.jit
def _store(base, offset, first, second, COLUMNS: tl.constexpr, BLOCK: tl.constexpr, MASKED: tl.constexpr):
    j = offset + tl.arange(0, BLOCK)
    if MASKED:
        tl.store(base + j, first.to(base.dtype.element_ty), mask=j < COLUMNS)
        tl.store(base + BLOCK + j, second.to(base.dtype.element_ty), mask=j + BLOCK < COLUMNS)
    else:
        tl.store(base + j, first.to(base.dtype.element_ty))
        tl.store(base + BLOCK + j, second.to(base.dtype.element_ty))


@triton.jit
def _smooth(log_p, on_p, w_o, r):
    """The gradient's part that every token has."""
    p = tl.exp(log_p)
    share = p * r
    return on_p * p - tl.where(w_o != 0.0, w_o * (share / (1.0 + share)), 0.0)
