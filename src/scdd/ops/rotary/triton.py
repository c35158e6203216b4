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


def rotate_(heads: Tensor, turned: int, cos: Tensor, sin: Tensor) -> None:
    """Turn the first `turned` of heads [B, L, H, 2·pairs], queries and keys before values, by the angles cos, sin [L, pairs].

    As `attention.rotate` does.
    """
    batch, length, every, width = heads.shape
    pairs = width // 2
    if batch * length:
        _rotate[(batch * length,)](
            heads, cos, sin, cos.stride(0), length,
            EVERY=every, TURNED=turned, PAIRS=pairs, BLOCK=triton.next_power_of_2(turned * pairs), num_warps=WARPS,
        )  # fmt: skip


@triton.jit
def _rotate(
    x_, cos_, sin_, stride, length,
    EVERY: tl.constexpr, TURNED: tl.constexpr, PAIRS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    j = tl.arange(0, BLOCK)
    inside = j < TURNED * PAIRS
    i = j % PAIRS
    at = row.to(tl.int64) * (2 * EVERY * PAIRS) + (j // PAIRS) * (2 * PAIRS) + i
    angle = (row % length) * stride + i
    cos = tl.load(cos_ + angle, mask=inside, other=0.0)
    sin = tl.load(sin_ + angle, mask=inside, other=0.0)
    a = tl.load(x_ + at, mask=inside, other=0.0).to(tl.float32)
    b = tl.load(x_ + at + PAIRS, mask=inside, other=0.0).to(tl.float32)
    tl.store(x_ + at, (a * cos - b * sin).to(x_.dtype.element_ty), mask=inside)
    tl.store(x_ + at + PAIRS, (b * cos + a * sin).to(x_.dtype.element_ty), mask=inside)
