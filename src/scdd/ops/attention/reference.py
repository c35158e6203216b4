"""The same in plain PyTorch: what the kernels are held to."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional as F

from scdd.ops.rotary.reference import rotate

if TYPE_CHECKING:
    from scdd.ops.attention import Heads


def mixed_values(x: Tensor, weight: Tensor, bias: Tensor | None, rotary: tuple[Tensor, Tensor], heads: Heads) -> Tensor:
    """See `ops.attention.mixed_values`."""
    batch, length, _ = x.shape
    every = F.linear(x, weight, bias).view(batch, length, -1, heads.width)
    q, k, v = torch.split(every, [heads.queries, heads.keys, heads.keys], dim=2)
    q, k = rotate(q, *rotary).transpose(1, 2), rotate(k, *rotary).transpose(1, 2)
    k, v = (each.repeat_interleave(heads.queries // heads.keys, dim=1) for each in (k, v.transpose(1, 2)))
    weights = torch.softmax(q @ k.transpose(-1, -2) * heads.width**-0.5, dim=-1)
    return (weights @ v).transpose(1, 2).reshape(batch, length, -1)
