"""Rotary position embedding over half-split channels, base 10,000, on queries and keys."""

from __future__ import annotations

import torch
from torch import Tensor, nn

BASE = 10_000.0
SHORTEST = 1024  # rows of the first table: most runs never grow it, so a compiled graph never sees it change


def tables(start: int, stop: int, pairs: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """cos and sin of position · BASE^(−i/pairs) for positions start … stop − 1, each [stop − start, pairs], float32."""
    exponents = torch.arange(pairs, dtype=torch.float32, device=device) / pairs
    positions = torch.arange(start, stop, dtype=torch.float32, device=device)
    angles = positions[:, None] * BASE ** (-exponents)
    return angles.cos(), angles.sin()


class Rotary(nn.Module):
    """Keeps the tables, so that a step only slices them.

    The buffers start empty and are not saved: a network built on the meta device needs no repair after `to_empty`.
    `grow` runs in eager code; a compiled graph that meets a longer row than the table computes its own angles, which
    is slower but breaks no graph.
    """

    cos: Tensor
    sin: Tensor

    def __init__(self, pairs: int) -> None:
        super().__init__()
        self.pairs = pairs
        self.register_buffer("cos", torch.empty(0, pairs, dtype=torch.float32), persistent=False)
        self.register_buffer("sin", torch.empty(0, pairs, dtype=torch.float32), persistent=False)

    def grow(self, length: int) -> None:
        """Make the tables at least `length` long; also restores float32 after the module was cast to bfloat16."""
        if length <= self.cos.shape[0] and self.cos.dtype == torch.float32:
            return
        rows = max(SHORTEST, 1 << (length - 1).bit_length())
        self.cos, self.sin = tables(0, rows, self.pairs, self.cos.device)

    def forward(self, start: int, stop: int) -> tuple[Tensor, Tensor]:
        """The tables' rows for positions start … stop − 1."""
        if stop <= self.cos.shape[0]:
            return self.cos[start:stop], self.sin[start:stop]
        return tables(start, stop, self.pairs, self.cos.device)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn the channel pairs (i, i + pairs) of x, [..., L, heads, 2 · pairs], by the position's angles, [L, pairs].

    The arithmetic is float32 whatever x is: bfloat16 angles would blur neighbouring positions, and the compiler fuses
    the casts away. Halves are taken by `unbind` and joined by `stack`: their gradients are each other, so the compiler
    writes the backward pass as one kernel, where slices would cost a pass over memory to add zeros.
    """
    cos, sin = cos[:, None, :], sin[:, None, :]
    a, b = x.float().view(*x.shape[:-1], 2, -1).unbind(-2)
    return torch.stack((a * cos - b * sin, b * cos + a * sin), dim=-2).flatten(-2).to(x.dtype)
