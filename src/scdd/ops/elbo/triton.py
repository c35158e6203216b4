"""Losses and gradients of one chunk of logits: one program a row, at most three passes over it."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from scdd.core import ElboCoefficients, Head
from scdd.ops.triton_rows import (
    LN2,
    LOG2E,
    STAGES,
    load_scores,
    log1p_,
    log_mixture_,
    log_sum_exp2,
    sigmoid_,
    softplus_,
)

BLOCK = 1024
WARPS = 4


def row_loss(logits: Tensor, head: Head, x: Tensor, z_t: Tensor, rows: ElboCoefficients, with_grad: bool) -> Tensor:
    """Losses [n] from logits [n, Vp]; with_grad leaves d(sum of losses)/d(logits) in `logits`."""
    count, columns = logits.shape
    losses = torch.empty(count, dtype=torch.float32, device=logits.device)
    if count == 0:
        return losses
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
        BLOCK=min(BLOCK, triton.next_power_of_2(columns)),
        num_warps=WARPS,
    )
    return losses


@triton.jit
def _row_loss(
    logits, stride, x_ids, z_ids, log_r_, log_r_t_, w_x_, w_z_, w_o_, w_t_, w_e_, input_bias_, losses, mask_id,
    COLUMNS: tl.constexpr, HAS_INPUT_BIAS: tl.constexpr, WITH_GRAD: tl.constexpr, BLOCK: tl.constexpr,
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
    _, lse2 = log_sum_exp2(base, z, input_bias, LOG2E, COLUMNS, HAS_INPUT_BIAS, BLOCK)
    seen = tl.where(z == mask_id, x, z)
    score_x = tl.load(base + x).to(tl.float32)
    score_z = tl.load(base + seen).to(tl.float32)
    if HAS_INPUT_BIAS:
        score_x = tl.where(x == z, score_x + input_bias, score_x)
        score_z = tl.where(seen == z, score_z + input_bias, score_z)
    log_p_x = score_x - lse2 * LN2
    log_p_z = score_z - lse2 * LN2

    # pass 2: S and Σ share/(1 + share), share = r·p, where there is a floor; tokens go in pairs, which halves the
    # logarithms and divisions that bound this pass
    S = 0.0
    pull = 0.0
    r = tl.exp(tl.minimum(log_r, 80.0))
    if w_o != 0.0:
        sum_log = tl.zeros((BLOCK,), tl.float32)
        sum_pull = tl.zeros((BLOCK,), tl.float32)
        for offset in tl.range(0, COLUMNS, 2 * BLOCK, num_stages=STAGES):
            first = load_scores(base, offset, z, input_bias, COLUMNS, HAS_INPUT_BIAS, BLOCK)
            second = load_scores(base, offset + BLOCK, z, input_bias, COLUMNS, HAS_INPUT_BIAS, BLOCK)
            a = tl.exp2(first * LOG2E - lse2) * r
            b = tl.exp2(second * LOG2E - lse2) * r
            both = a * b
            more = a + b + both  # (1 + a)·(1 + b) − 1
            sum_log += log1p_(more)
            sum_pull += (more + both) / (1.0 + more)
        S = tl.sum(sum_log, 0)
        pull = tl.sum(sum_pull, 0)

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
        for offset in tl.range(0, COLUMNS, BLOCK, num_stages=STAGES):
            j = offset + tl.arange(0, BLOCK)
            score = load_scores(base, offset, z, input_bias, COLUMNS, HAS_INPUT_BIAS, BLOCK)
            p = tl.exp2(score * LOG2E - lse2)
            grad = on_p * p
            if w_o != 0.0:
                share = p * r
                grad -= w_o * (share / (1.0 + share))
            tl.store(base + j, grad.to(logits.dtype.element_ty), mask=j < COLUMNS)
        tl.debug_barrier()  # the two tokens with a term of their own are written over what the loop wrote
        at_x = _smooth(log_p_x, on_p, w_o, r) + g_x + tl.where(x == seen, g_z, 0.0)
        at_z = _smooth(log_p_z, on_p, w_o, r) + g_z + tl.where(x == seen, g_x, 0.0)
        tl.store(base + x, at_x.to(logits.dtype.element_ty))
        tl.store(base + seen, at_z.to(logits.dtype.element_ty))


@triton.jit
def _smooth(log_p, on_p, w_o, r):
    """The gradient's part that every token has."""
    p = tl.exp(log_p)
    share = p * r
    return on_p * p - tl.where(w_o != 0.0, w_o * (share / (1.0 + share)), 0.0)
