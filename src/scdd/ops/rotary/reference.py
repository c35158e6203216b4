"""Rotary positions in plain PyTorch, differentiable."""

from __future__ import annotations

import torch
from torch import Tensor


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn the channel pairs (i, i + pairs) of x, [..., L, heads, 2 · pairs], by the position's angles, [L, pairs].

    The arithmetic is float32 whatever x is: bfloat16 angles would blur neighbouring positions, and the compiler fuses
    the casts away. Halves are taken by `unbind` and joined by `stack`: their gradients are each other, so the compiler
    writes the backward pass as one kernel, where slices would cost a pass over memory to add zeros.
    """
    cos, sin = cos[:, None, :], sin[:, None, :]
    wide = x.to(torch.promote_types(x.dtype, cos.dtype))
    a, b = wide.view(*x.shape[:-1], 2, -1).unbind(-2)
    return torch.stack((a * cos - b * sin, b * cos + a * sin), dim=-2).flatten(-2).to(x.dtype)
