"""The second half of a gated MLP: silu(gate) · up, and the matrix that follows."""

from __future__ import annotations

import torch
from torch import Tensor

from scdd.ops.common import choose
from scdd.ops.swiglu import reference


def swiglu_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, impl: str = "auto") -> Tensor:
    """W (silu(gate) · up) + b with gate ‖ up = x [..., 2M] and W [N, M]; the result has x's dtype.

    On a GPU, while gradients are wanted, only x is kept for the backward pass: the kernel that differentiates the
    product writes it once more, for the weight's gradient. The compiler alone keeps both, half as much again.
    """
    plain = torch.compiler.is_compiling() and not torch.is_grad_enabled()  # which the compiler fuses as well
    if impl == "triton" or (choose(impl, x) == "triton" and not plain):
        from scdd.ops.swiglu.triton import swiglu_linear as fused

        return fused(x, weight, bias)
    return reference.swiglu_linear(x, weight, bias)
