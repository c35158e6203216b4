"""Between the two matrices of a plain MLP: the first one's bias, and GELU."""

from __future__ import annotations

import torch
from torch import Tensor

from scdd.ops.common import choose
from scdd.ops.gelu import reference


def bias_gelu(x: Tensor, bias: Tensor, impl: str = "auto") -> Tensor:
    """GELU(x + b) in tanh's form, x [..., M] and b [M]; the result has x's dtype.

    On a GPU, while gradients are wanted, one kernel does the backward pass: the compiler's own computes GELU's slope
    twice, once along rows for the input's gradient and once along columns for the bias's.
    """
    if impl == "triton" or (choose(impl, x) == "triton" and torch.is_grad_enabled()):
        from scdd.ops.gelu.triton import bias_gelu as fused

        return fused(x, bias)
    return reference.bias_gelu(x, bias)
