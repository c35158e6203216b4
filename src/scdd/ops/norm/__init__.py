"""The seam between two layers of the network: add a layer's output to the stream, normalise, scale (and shift)."""

from __future__ import annotations

import torch
from torch import Tensor

from scdd.ops.common import choose
from scdd.ops.norm import reference


def add_norm(
    x: Tensor, delta: Tensor | None, scale: Tensor, shift: Tensor, impl: str = "auto"
) -> tuple[Tensor, Tensor]:
    """(x + delta, scale · LayerNorm(x + delta) + shift), both in x's dtype.

    x and delta [B, L, D]; scale and shift [R, 1, D] float32 with R = 1 or B; no delta adds nothing. On a GPU, while
    gradients are wanted, one kernel does the backward pass: the compiler's own reads everything twice, once along rows
    for the input's gradient and once along columns for scale's and shift's. Without gradients the kernel runs as well, unless a
    compiler is there to fuse what the reference does in six.
    """
    if delta is not None and (_alone(impl, x) or _pays(impl, x)):
        from scdd.ops.norm.triton import add_norm as fused

        return fused(x, delta, scale, shift)
    if delta is None and not torch.is_grad_enabled() and _alone(impl, x):
        from scdd.ops.norm.triton import norm

        return x, norm(x, scale, shift)
    return reference.add_norm(x, delta, scale, shift)


def add_rms_norm(
    x: Tensor, delta: Tensor | None, scale: Tensor, eps: float, impl: str = "auto"
) -> tuple[Tensor, Tensor]:
    """(x + delta, scale · RMSNorm(x + delta)), both in x's dtype: `add_norm` without centring and shift.

    x and delta [B, L, D]; scale [D], which is used in float32: the kernels read it as it is, a copy would be one more launch a
    norm. eps is added to the mean square. On a GPU the kernels also run without gradients, unless a compiler is there to fuse
    what the reference does in eight.
    """
    if delta is not None and (_alone(impl, x) or _pays(impl, x)):
        from scdd.ops.norm.triton import add_rms_norm as fused

        return fused(x, delta, scale, eps)
    if delta is None and not torch.is_grad_enabled() and _alone(impl, x):
        from scdd.ops.norm.triton import norm

        return x, norm(x, scale, None, eps)
    wide = scale.float() if scale.dtype in (torch.bfloat16, torch.float16) else scale
    return reference.add_rms_norm(x, delta, wide, eps)


def _alone(impl: str, x: Tensor) -> bool:
    """Whether no compiler is there to fuse anything."""
    return choose(impl, x) == "triton" and not torch.compiler.is_compiling()


def _pays(impl: str, x: Tensor) -> bool:
    """Whether the kernels run: asked for, or on a GPU for the sake of their backward pass."""
    return impl == "triton" or (choose(impl, x) == "triton" and torch.is_grad_enabled())
