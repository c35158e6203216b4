"""The second half of a gated MLP: silu(gate) · up, and the matrix that follows."""

from __future__ import annotations

import torch
from torch import Tensor

from scdd.ops.common import choose
from scdd.ops.swiglu import reference


def swiglu_linear(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, keep: bool = False, impl: str = "auto"
) -> Tensor:
    """W (silu(gate) · up) + b with gate ‖ up = x [..., 2M] and W [N, M]; the result has x's dtype.

    For the backward pass on a GPU x is kept and, if `keep`, the product. Without, the kernel that differentiates the product writes it
    once more, for the weight's gradient: two thirds of the memory, and a fifth more of that kernel's traffic.
    """
    plain = torch.compiler.is_compiling() and not torch.is_grad_enabled()  # which the compiler fuses as well
    if impl == "triton" or (choose(impl, x) == "triton" and not plain):
        from scdd.ops.swiglu.triton import swiglu_linear as fused

        return fused(x, weight, bias, keep)
    return reference.swiglu_linear(x, weight, bias, keep)
