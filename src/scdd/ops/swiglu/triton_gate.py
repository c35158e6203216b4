"""The first half of a gated MLP without gradients: product and gate in one kernel, so that gate ‖ up never goes to memory.

A program multiplies a tile of positions by the rows of the gate and by those of up that belong to them, and writes what the gate lets
through. Both are rounded to x's dtype before, as the product's own result would be: it is the same number with or without this kernel,
as far as sums agree. Sums go along the channels in blocks of `DEPTH`, whatever the tile, so that a position's result does not depend on how
many others there are (a test says so on Hopper; a server tries it on every GPU).
"""

from __future__ import annotations

from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor


class Shape(NamedTuple):
    """Of a program: positions, columns, warps, and loads in flight."""

    rows: int
    columns: int
    warps: int
    stages: int


MANY = Shape(128, 128, 8, 3)
FEW = Shape(64, 64, 4, 4)  # so that few positions keep more processors busy
ENOUGH = 1024  # positions for `MANY`
DEPTH = 64  # channels at a time
WIDEST = 1024  # channels: the product takes longer than the library's, and where it is long, more than the pass over memory that is spared
BESIDE = 8  # tiles of positions that are worked at side by side, and share what they read of the weight


def pays(channels: int, width: int) -> bool:
    """Whether there are whole blocks of channels and columns, and few enough channels."""
    return channels <= WIDEST and channels % DEPTH == 0 and width % MANY.columns == 0


def gated_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """See `ops.swiglu.gated_linear`."""
    rows, width = x.reshape(-1, x.shape[-1]).contiguous(), weight.shape[0] // 2
    product = x.new_empty(*x.shape[:-1], width)
    shape = MANY if len(rows) >= ENOUGH else FEW
    if len(rows):
        _gated_linear[(triton.cdiv(len(rows), shape.rows) * (width // shape.columns),)](
            rows, weight.contiguous(), weight if bias is None else bias, product, len(rows),
            WIDTH=width, CHANNELS=rows.shape[1], BIAS=bias is not None,
            ROWS=shape.rows, COLUMNS=shape.columns, DEPTH=DEPTH, BESIDE=BESIDE,
            num_warps=shape.warps, num_stages=shape.stages,
        )  # fmt: skip
    return product


@triton.jit(do_not_specialize=["count"])
def _gated_linear(
    x_, weight_, bias_, product_, count,
    WIDTH: tl.constexpr, CHANNELS: tl.constexpr, BIAS: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr, BESIDE: tl.constexpr,
):  # fmt: skip
    ACROSS: tl.constexpr = WIDTH // COLUMNS
    tile = tl.program_id(0)
    first = tile // (BESIDE * ACROSS) * BESIDE
    beside = tl.minimum(tl.cdiv(count, ROWS) - first, BESIDE)
    n = (first + tile % (BESIDE * ACROSS) % beside) * ROWS + tl.arange(0, ROWS)
    j = tile % (BESIDE * ACROSS) // beside * COLUMNS + tl.arange(0, COLUMNS)
    k = tl.arange(0, DEPTH)
    # positions beyond the last one are read as the last one, and not written
    x_ += tl.minimum(n, count - 1).to(tl.int64)[:, None] * CHANNELS + k[None, :]
    gate_ = weight_ + j[None, :] * CHANNELS + k[:, None]
    up_ = gate_ + WIDTH * CHANNELS
    gate = tl.zeros((ROWS, COLUMNS), tl.float32)
    up = tl.zeros((ROWS, COLUMNS), tl.float32)
    for _ in range(0, CHANNELS, DEPTH):
        x = tl.load(x_)
        gate = tl.dot(x, tl.load(gate_), gate, input_precision="ieee")
        up = tl.dot(x, tl.load(up_), up, input_precision="ieee")
        x_ += DEPTH
        gate_ += DEPTH
        up_ += DEPTH
    if BIAS:
        gate += tl.load(bias_ + j).to(tl.float32)[None, :]
        up += tl.load(bias_ + WIDTH + j).to(tl.float32)[None, :]
    kind = product_.dtype.element_ty
    gate, up = gate.to(kind).to(tl.float32), up.to(kind).to(tl.float32)
    product = gate / (1.0 + tl.exp(-gate)) * up
    at = n.to(tl.int64)[:, None] * WIDTH + j[None, :]
    tl.store(product_ + at, product.to(kind), mask=(n < count)[:, None])
