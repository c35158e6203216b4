"""Bias and GELU, forward and backward, each in one pass over memory.

Backward, a program walks down some rows of its columns, adds up its share of the bias's gradient on the way, and the
shares are summed afterwards, always in the same order.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor, library

from scdd.ops.triton_rows import LOG2E, inverse_, traceable

BLOCK = 512  # columns of a program
ROWS = 4  # at a time
WARPS = 8  # eight columns a thread: 16 bytes of bfloat16, one load
PROGRAMS = 1056  # of the backward pass, eight for each multiprocessor of an H200


def bias_gelu(x: Tensor, bias: Tensor) -> Tensor:
    """See `ops.gelu.bias_gelu`."""
    y: Tensor = torch.ops.scdd.bias_gelu(x, bias)
    return y


@library.triton_op("scdd::bias_gelu", mutates_args=())
def _forward(x: Tensor, bias: Tensor) -> Tensor:
    x, bias = x.contiguous(), bias.contiguous()
    width = x.shape[-1]
    rows = x.numel() // width
    y = torch.empty_like(x)
    if rows:
        traceable(_gelu)[(triton.cdiv(rows, ROWS), triton.cdiv(width, BLOCK))](
            x, bias, y, rows, WIDTH=width, ROWS=ROWS, BLOCK=BLOCK, num_warps=WARPS
        )  # fmt: skip
    return y


@library.triton_op("scdd::bias_gelu_backward", mutates_args=())
def _backward(x: Tensor, bias: Tensor, d: Tensor) -> tuple[Tensor, Tensor]:
    x, bias, d = x.contiguous(), bias.contiguous(), d.contiguous()
    width = x.shape[-1]
    rows = x.numel() // width
    blocks = triton.cdiv(width, BLOCK)
    shares = max(1, PROGRAMS // blocks)
    d_x = torch.empty_like(x)
    d_bias = torch.empty(shares, width, dtype=torch.float32, device=x.device)
    traceable(_gelu_backward)[(shares, blocks)](
        x, bias, d, d_x, d_bias, rows, EACH=-(-rows // (shares * ROWS)) * ROWS,
        WIDTH=width, ROWS=ROWS, BLOCK=BLOCK, num_warps=WARPS,
    )  # fmt: skip
    return d_x, d_bias.sum(0)


def _remember(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _differentiate(ctx: Any, d: Tensor) -> tuple[Tensor, Tensor]:
    x, bias = ctx.saved_tensors
    d_x, d_bias = torch.ops.scdd.bias_gelu_backward(x, bias, d)
    return d_x, d_bias.to(bias.dtype)


_forward.register_autograd(_differentiate, setup_context=_remember)


@triton.jit
def _share(x):
    """σ of GELU(x) = x·σ(2u), u = √(2/π)·(x + 0.044715·x³), and 2·du/dx."""
    SLOPE: tl.constexpr = 1.5957691216057308  # 2·√(2/π)
    square = x * x
    twice = SLOPE * x * (1.0 + 0.044715 * square)
    return inverse_(1.0 + tl.exp2(-twice * LOG2E)), SLOPE * (1.0 + 0.134145 * square)


@triton.jit
def _gelu(x_, bias_, y_, rows, WIDTH: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    n = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    j = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = (n < rows)[:, None] & (j < WIDTH)[None, :]
    at = n.to(tl.int64)[:, None] * WIDTH + j[None, :]
    bias = tl.load(bias_ + j, mask=j < WIDTH, other=0.0).to(tl.float32)
    x = tl.load(x_ + at, mask=inside, other=0.0).to(tl.float32) + bias[None, :]
    share, _ = _share(x)
    tl.store(y_ + at, (x * share).to(y_.dtype.element_ty), mask=inside)


@triton.jit
def _gelu_backward(
    x_, bias_, d_, d_x_, d_bias_, rows,
    EACH: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    share_number = tl.program_id(0)
    j = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    bias = tl.load(bias_ + j, mask=j < WIDTH, other=0.0).to(tl.float32)
    total = tl.zeros((ROWS, BLOCK), tl.float32)
    for k in tl.range(0, EACH, ROWS):
        n = share_number * EACH + k + tl.arange(0, ROWS)
        inside = (n < rows)[:, None] & (j < WIDTH)[None, :]
        at = n.to(tl.int64)[:, None] * WIDTH + j[None, :]
        x = tl.load(x_ + at, mask=inside, other=0.0).to(tl.float32) + bias[None, :]
        d = tl.load(d_ + at, mask=inside, other=0.0).to(tl.float32)
        share, slope = _share(x)
        d_x = d * share * (1.0 + x * (1.0 - share) * slope)
        tl.store(d_x_ + at, d_x.to(d_x_.dtype.element_ty), mask=inside)
        total += d_x
    tl.store(d_bias_ + share_number.to(tl.int64) * WIDTH + j, tl.sum(total, 0), mask=j < WIDTH)
