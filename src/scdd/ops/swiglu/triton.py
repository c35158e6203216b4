"""The gated product, forward and backward, each in one pass over memory; its matrix stays the library's."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor, library
from torch.nn import functional as F

from scdd.ops.triton_rows import traceable

BLOCK = 512  # columns of a program
WARPS = 2  # eight columns a thread: 16 bytes of bfloat16, one load


def swiglu_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, keep: bool = False) -> Tensor:
    """See `ops.swiglu.swiglu_linear`."""
    made: Tensor
    if keep:
        product = torch.ops.scdd.swiglu(x)
        made = F.linear(product, weight.to(x.dtype), None if bias is None else bias.to(x.dtype))
    else:
        made = torch.ops.scdd.swiglu_linear(x, weight, bias)
    return made


def _gated(x: Tensor) -> Tensor:
    x = x.contiguous()
    width = x.shape[-1] // 2
    rows = x.numel() // (2 * width)
    product = x.new_empty(*x.shape[:-1], width)
    if rows:
        traceable(_product)[(rows, triton.cdiv(width, BLOCK))](
            x, product, WIDTH=width, BLOCK=BLOCK, num_warps=WARPS
        )  # fmt: skip
    return product


@library.triton_op("scdd::swiglu", mutates_args=())
def _forward(x: Tensor) -> Tensor:
    return _gated(x)


@library.triton_op("scdd::swiglu_backward", mutates_args=())
def _backward(x: Tensor, d_product: Tensor, again: bool) -> tuple[Tensor, Tensor]:
    """(Gradient of x, the product itself if it is wanted `again`)."""
    x, d_product = x.contiguous(), d_product.contiguous()
    width = d_product.shape[-1]
    rows = d_product.numel() // width
    d_x, product = torch.empty_like(x), torch.empty_like(d_product) if again else d_product.new_empty(0)
    if rows:
        traceable(_product_backward)[(rows, triton.cdiv(width, BLOCK))](
            x, d_product, d_x, product, AGAIN=again, WIDTH=width, BLOCK=BLOCK, num_warps=WARPS
        )  # fmt: skip
    return d_x, product


def _remember_input(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(inputs[0])


def _differentiate_product(ctx: Any, d_product: Tensor) -> Tensor:
    d_x: Tensor = torch.ops.scdd.swiglu_backward(*ctx.saved_tensors, d_product, False)[0]
    return d_x


_forward.register_autograd(_differentiate_product, setup_context=_remember_input)


# -- with its matrix: the product is not kept, but made once more for the matrix's gradient -----------------------------


@library.triton_op("scdd::swiglu_linear", mutates_args=())
def _linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return F.linear(_gated(x), weight.to(x.dtype), None if bias is None else bias.to(x.dtype))


def _remember(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, weight, bias = inputs
    ctx.save_for_backward(x, weight)
    ctx.bias_dtype = None if bias is None else bias.dtype


def _differentiate(ctx: Any, d: Tensor) -> tuple[Tensor | None, ...]:
    x, weight = ctx.saved_tensors
    rows = d.reshape(-1, d.shape[-1])
    d_product = (rows @ weight.to(x.dtype)).view(*d.shape[:-1], weight.shape[1])
    d_x, product = torch.ops.scdd.swiglu_backward(x, d_product, True)
    d_weight = (rows.T @ product.view(-1, weight.shape[1])).to(weight.dtype)
    d_bias = None if ctx.bias_dtype is None else rows.sum(0, dtype=torch.float32).to(ctx.bias_dtype)
    return d_x, d_weight, d_bias


_linear.register_autograd(_differentiate, setup_context=_remember)


@triton.jit
def _gates(x_, row, j, WIDTH: tl.constexpr):
    """Gate and up at columns j of a row, float32."""
    at = row.to(tl.int64) * (2 * WIDTH) + j
    gate = tl.load(x_ + at, mask=j < WIDTH, other=0.0).to(tl.float32)
    return gate, tl.load(x_ + at + WIDTH, mask=j < WIDTH, other=0.0).to(tl.float32)


@triton.jit
def _product(x_, product_, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    j = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    gate, up = _gates(x_, row, j, WIDTH)
    product = gate / (1.0 + tl.exp(-gate)) * up
    tl.store(product_ + row.to(tl.int64) * WIDTH + j, product.to(product_.dtype.element_ty), mask=j < WIDTH)


@triton.jit
def _product_backward(x_, d_product_, d_x_, product_, AGAIN: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    j = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = j < WIDTH
    gate, up = _gates(x_, row, j, WIDTH)
    at = row.to(tl.int64) * WIDTH + j
    d = tl.load(d_product_ + at, mask=inside, other=0.0).to(tl.float32)
    share = 1.0 / (1.0 + tl.exp(-gate))
    silu = gate * share
    if AGAIN:
        tl.store(product_ + at, (silu * up).to(product_.dtype.element_ty), mask=inside)
    there = row.to(tl.int64) * (2 * WIDTH) + j
    d_gate = d * up * (share + silu * (1.0 - share))
    tl.store(d_x_ + there, d_gate.to(d_x_.dtype.element_ty), mask=inside)
    tl.store(d_x_ + there + WIDTH, (d * silu).to(d_x_.dtype.element_ty), mask=inside)
