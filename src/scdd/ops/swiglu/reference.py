"""The gated product and its matrix in plain PyTorch: what CPUs run, and what the kernels are held to."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from scdd.core import machine


def swiglu_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, keep: bool = False) -> Tensor:
    """See `ops.swiglu.swiglu_linear`; what is kept is torch's choice."""
    return F.linear(gated_product(x), weight, bias)


def gated_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """See `ops.swiglu.gated_linear`."""
    return gated_product(F.linear(x, weight, bias))


def gated_product(x: Tensor) -> Tensor:
    """silu(gate) · up with gate ‖ up = x [..., 2M]: the same bits with 1, 2, 4 or 8 threads."""
    gate, up = x.chunk(2, dim=-1)
    if x.device.type != "cpu" or torch.compiler.is_compiling() or gate.numel() <= machine.GRAIN:
        return F.silu(gate) * up
    with machine.evenly(gate.numel()):
        return F.silu(gate) * up
