"""The same in plain PyTorch: what the kernels are held to."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional as F

if TYPE_CHECKING:
    from scdd.ops.attention import Heads


def mixed_values(x: Tensor, weight: Tensor, bias: Tensor | None, rotary: tuple[Tensor, Tensor], heads: Heads) -> Tensor:
    """See `ops.attention.mixed_values`."""
    batch, length, _ = x.shape
    every = F.linear(x, weight, bias).view(batch, length, -1, heads.width)
    q, k, v = torch.split(every, [heads.queries, heads.keys, heads.keys], dim=2)
    q, k = _turned(q, *rotary).transpose(1, 2), _turned(k, *rotary).transpose(1, 2)
    k, v = (each.repeat_interleave(heads.queries // heads.keys, dim=1) for each in (k, v.transpose(1, 2)))
    weights = torch.softmax(q @ k.transpose(-1, -2) * heads.width**-0.5, dim=-1)
    return (weights @ v).transpose(1, 2).reshape(batch, length, -1)


def _turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Channels (i, i + pairs) of x [..., L, heads, 2 · pairs] are complex numbers, times e^(i·angle) of the position."""
    wide = x.to(torch.promote_types(x.dtype, cos.dtype))
    numbers = torch.complex(*wide.chunk(2, dim=-1)) * torch.complex(cos, sin)[:, None].to(
        torch.promote_types(wide.dtype, torch.complex64)
    )
    return torch.cat((numbers.real, numbers.imag), dim=-1).to(x.dtype)
