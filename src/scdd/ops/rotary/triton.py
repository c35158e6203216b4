"""Queries and keys turned in place, in one launch where plain PyTorch takes eighteen. Without gradients."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from scdd.ops.common import HAS_TRITON

WARPS = 4


def turns_in_place(x: Tensor) -> bool:
    """Whether the kernel may run: on a GPU, with nobody who wants gradients, or compiles."""
    free = not torch.is_grad_enabled() and not torch.compiler.is_compiling()
    return free and x.is_cuda and HAS_TRITON and x.is_contiguous()


def rotate_(qkv: Tensor, cos: Tensor, sin: Tensor) -> None:
    """Turn the queries and keys of qkv [B, L, 3, H, 2·pairs] by the angles cos, sin [L, pairs], as `attention.rotate` does."""
    batch, length, _, heads, width = qkv.shape
    pairs = width // 2
    if batch * length:
        _rotate[(batch * length,)](
            qkv, cos, sin, cos.stride(0), length,
            HEADS=heads, PAIRS=pairs, BLOCK=triton.next_power_of_2(2 * heads * pairs), num_warps=WARPS,
        )  # fmt: skip


@triton.jit
def _rotate(x_, cos_, sin_, stride, length, HEADS: tl.constexpr, PAIRS: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    j = tl.arange(0, BLOCK)
    inside = j < 2 * HEADS * PAIRS
    i = j % PAIRS
    at = row.to(tl.int64) * (6 * HEADS * PAIRS) + (j // PAIRS) * (2 * PAIRS) + i
    angle = (row % length) * stride + i
    cos = tl.load(cos_ + angle, mask=inside, other=0.0)
    sin = tl.load(sin_ + angle, mask=inside, other=0.0)
    a = tl.load(x_ + at, mask=inside, other=0.0).to(tl.float32)
    b = tl.load(x_ + at + PAIRS, mask=inside, other=0.0).to(tl.float32)
    tl.store(x_ + at, (a * cos - b * sin).to(x_.dtype.element_ty), mask=inside)
    tl.store(x_ + at + PAIRS, (b * cos + a * sin).to(x_.dtype.element_ty), mask=inside)
