"""Residual sum and adaptive layer norm in plain PyTorch: what CPUs run, and what the kernels are held to."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F


def add_norm(x: Tensor, delta: Tensor | None, scale: Tensor, shift: Tensor) -> tuple[Tensor, Tensor]:
    """See `ops.norm.add_norm`; statistics and affine part in float32 or better."""
    total = x if delta is None else x + delta
    wide = total.to(scale.dtype)
    return total, (F.layer_norm(wide, wide.shape[-1:]) * scale + shift).to(x.dtype)
