"""A gated MLP: silu(gate) · up with the matrix that follows, or, where nobody wants gradients, with the one before."""

from __future__ import annotations

import torch
from torch import Tensor

from scdd.ops.common import HAS_TRITON, choose
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


def gated_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, impl: str = "auto") -> Tensor:
    """silu(gate) · up with gate ‖ up = W x + b, W [2M, D]: [..., M] for x [..., D], in x's dtype. Not differentiated on a GPU."""
    if choose(impl, x) == "triton":
        if torch.is_grad_enabled() and any(each is not None and each.requires_grad for each in (x, weight, bias)):
            raise RuntimeError("this kernel has no gradient: ask under torch.no_grad(), or for the reference")
        from scdd.ops.swiglu.triton_gate import gated_linear as fused

        return fused(x, weight, bias)
    return reference.gated_linear(x, weight, bias)


def gates_at_once(x: Tensor, weight: Tensor) -> bool:
    """Whether `gated_linear` has a kernel for it: on a GPU, in 16 bits, for matrices in whole blocks and of no more channels than it was
    found to pay for, with nobody who wants gradients, or compiles."""
    free = not torch.is_grad_enabled() and not torch.compiler.is_compiling()
    half = x.dtype in (torch.bfloat16, torch.float16) and weight.dtype == x.dtype
    if not (free and half and x.is_cuda and HAS_TRITON):
        return False
    from scdd.ops.swiglu.triton_gate import pays

    return pays(x.shape[-1], weight.shape[0] // 2)
