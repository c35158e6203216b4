"""Two-sided attention over short rows, from the norm's output to the mixed values: product, rotation, softmax attention."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from scdd.ops.attention import reference
from scdd.ops.common import HAS_TRITON, choose

LONGEST = 512  # positions; the library's kernels catch up where rows are longer
WIDTHS = (32, 64, 128)  # of a head


class Heads(NamedTuple):
    """How many of queries, how many of keys (as many of values; each serves a group of neighbouring queries'), and how wide."""

    queries: int
    keys: int
    width: int


def mixed_values(
    x: Tensor, weight: Tensor, bias: Tensor | None, rotary: tuple[Tensor, Tensor], heads: Heads, impl: str = "auto"
) -> Tensor:
    """Softmax attention of queries ‖ keys ‖ values = W x + b, queries and keys turned by `rotary`: [B, L, heads · width].

    x [B, L, D], weight [(queries + 2 · keys) · width, D], rotary cos and sin [L, width/2] float32. Every position sees
    every other. The kernels keep the turned product, the result and the softmax's sums for the backward pass, and add
    gradients up in a fixed order.
    """
    if choose(impl, x) == "triton":
        from scdd.ops.attention.triton import mixed_values as fused

        return fused(x, weight, bias, rotary, heads)
    return reference.mixed_values(x, weight, bias, rotary, heads)


def pays(x: Tensor, heads: Heads) -> bool:
    """Whether the kernels are worth it: while gradients are wanted, in 16 bits, on a GPU, for short rows."""
    half = x.dtype in (torch.bfloat16, torch.float16)
    short = x.dim() == 3 and 16 <= x.shape[1] <= LONGEST and heads.width in WIDTHS
    return half and short and x.is_cuda and HAS_TRITON and torch.is_grad_enabled()
