"""Residual sum and norm in plain PyTorch: what CPUs run, and what the kernels are held to."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def add_norm(x: Tensor, delta: Tensor | None, scale: Tensor, shift: Tensor) -> tuple[Tensor, Tensor]:
    """See `ops.norm.add_norm`; statistics and affine part in float32 or better."""
    total = x if delta is None else x + delta
    wide = total.to(scale.dtype)
    return total, (F.layer_norm(wide, wide.shape[-1:]) * scale + shift).to(x.dtype)


def add_rms_norm(x: Tensor, delta: Tensor | None, scale: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """See `ops.norm.add_rms_norm`; statistics and scaling in float32 or better."""
    total = x if delta is None else x + delta
    return total, rms_norm(total, scale, eps)


def rms_norm(x: Tensor, scale: Tensor, eps: float) -> Tensor:
    """scale · x over the root of its mean square, along the last axis, in x's dtype."""
    wide = x.to(scale.dtype)
    inverse = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return (wide * inverse * scale).to(x.dtype)
