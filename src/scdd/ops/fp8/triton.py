"""Casts to FP8 in two passes over a matrix, its maximum and its codes; the products are the library's.

Its products want the summed axis contiguous on both sides. The gradients sum over other axes than the forward pass, so the second pass
writes the codes and their transpose at once: two bytes read, two written.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor, library

from scdd.ops.fp8 import TOP, Narrow
from scdd.ops.triton_rows import traceable

BLOCK = 4096  # numbers that a program of the first pass reads at a time
PARTS = 1024  # its programs, at most
WARPS = 8
ROWS, COLUMNS = 128, 64  # of a tile: 128 bytes of bfloat16 are read along a row, and as many written along a column
TILE_WARPS = 4


def narrowed(x: Tensor, dtype: torch.dtype, turned: bool) -> Narrow:
    """See `reference.narrowed`."""
    if turned:
        return Narrow(*torch.ops.scdd.fp8_cast_both(x, dtype))
    codes, step = torch.ops.scdd.fp8_cast(x, dtype)
    return Narrow(codes, None, step)


def product(a: Narrow, b: Narrow, bias: Tensor | None, dtype: torch.dtype, fast: bool) -> Tensor:
    """See `reference.product`."""
    return torch._scaled_mm(
        a.codes, b.codes.t(), a.step, b.step,
        bias=None if bias is None else bias.to(dtype), out_dtype=dtype, use_fast_accum=fast,
    )  # fmt: skip


@library.triton_op("scdd::fp8_cast", mutates_args=())
def _cast(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    codes, step = torch.empty(x.shape, dtype=dtype, device=x.device), _number(x)
    _launch(x.contiguous(), codes, None, step)
    return codes, step


@library.triton_op("scdd::fp8_cast_both", mutates_args=())
def _cast_both(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    codes, step = torch.empty(x.shape, dtype=dtype, device=x.device), _number(x)
    turned = torch.empty(x.shape[1], x.shape[0], dtype=dtype, device=x.device)
    _launch(x.contiguous(), codes, turned, step)
    return codes, turned, step


def _number(x: Tensor) -> Tensor:
    return torch.empty((), dtype=torch.float32, device=x.device)


def _launch(x: Tensor, codes: Tensor, turned: Tensor | None, step: Tensor) -> None:
    rows, columns = x.shape
    blocks = triton.cdiv(rows * columns, BLOCK)
    programs = min(PARTS, blocks)
    parts = torch.empty(PARTS, dtype=torch.int32, device=x.device)
    traceable(_maxima)[(programs,)](
        x, parts, rows * columns, triton.cdiv(blocks, programs), BLOCK=BLOCK, num_warps=WARPS
    )  # fmt: skip
    traceable(_codes)[(triton.cdiv(columns, COLUMNS), triton.cdiv(rows, ROWS))](
        x, parts, codes, x if turned is None else turned, step, rows, columns, programs,
        TOP=TOP[codes.dtype], TURNED=turned is not None, PARTS=PARTS, ROWS=ROWS, COLUMNS=COLUMNS, num_warps=TILE_WARPS,
    )  # fmt: skip


@triton.jit
def _maxima(x_, parts_, size, each, BLOCK: tl.constexpr):
    """The largest |x| of some blocks, as the bits of a float32: in their order NaN is above all, and so is not lost."""
    program = tl.program_id(0).to(tl.int64)
    top = tl.zeros((BLOCK,), tl.int32)
    for k in range(0, each):
        at = (program * each + k) * BLOCK + tl.arange(0, BLOCK)
        x = tl.load(x_ + at, mask=at < size, other=0.0).to(tl.float32)
        top = tl.maximum(top, x.to(tl.int32, bitcast=True) & 0x7FFFFFFF)
    tl.store(parts_ + program, tl.max(top, 0))


@triton.jit
def _codes(
    x_, parts_, codes_, turned_, step_, rows, columns, parts,
    TOP: tl.constexpr, TURNED: tl.constexpr, PARTS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """A tile's codes. Every program finds the whole matrix's maximum by itself: a third launch would cost more."""
    part = tl.arange(0, PARTS)
    bits = tl.max(tl.load(parts_ + part, mask=part < parts, other=0), 0)
    power = tl.maximum((bits + 0x1FFFFF) >> 23, TOP + 1)
    factor = ((TOP + 254 - power) << 23).to(tl.float32, bitcast=True)
    step = ((power - TOP) << 23).to(tl.float32, bitcast=True)
    first = (tl.program_id(0) == 0) & (tl.program_id(1) == 0)
    tl.store(step_, tl.where(bits < 0x7F800000, step, float("nan")), mask=first)
    n = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    j = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    inside = (n < rows)[:, None] & (j < columns)[None, :]
    at = n.to(tl.int64)[:, None] * columns + j[None, :]
    x = tl.load(x_ + at, mask=inside, other=0.0).to(tl.float32)
    codes = (x * factor).to(codes_.dtype.element_ty)
    tl.store(codes_ + at, codes, mask=inside)
    if TURNED:
        there = j.to(tl.int64)[:, None] * rows + n[None, :]
        tl.store(turned_ + there, tl.trans(codes), mask=(j < columns)[:, None] & (n < rows)[None, :])
