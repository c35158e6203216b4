"""The gated product and its matrix in plain PyTorch: what CPUs run, and what the kernels are held to."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F


def swiglu_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, keep: bool = False) -> Tensor:
    """See `ops.swiglu.swiglu_linear`; what is kept is torch's choice."""
    gate, up = x.chunk(2, dim=-1)
    return F.linear(F.silu(gate) * up, weight, bias)
