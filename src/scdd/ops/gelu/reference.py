"""Bias and GELU in plain PyTorch: what the kernels are held to."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F


def bias_gelu(x: Tensor, bias: Tensor) -> Tensor:
    """See `ops.gelu.bias_gelu`; the sum is not rounded to x's dtype on the way."""
    return F.gelu(x + bias, approximate="tanh").to(x.dtype)
