"""The head's bias with −∞ at the mask and on the padding, so that its product leaves them no probability."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import Parameter

from scdd.core import Head
from scdd.ops.barred import reference


def barred(head: Head, dtype: torch.dtype) -> Tensor:
    """[Vp] in this dtype, without a gradient; made anew each time, since a bias may be trained between two calls."""
    from scdd.ops.common import HAS_TRITON  # which itself asks here

    plain = type(head.weight) in (Tensor, Parameter) and (head.bias is None or type(head.bias) in (Tensor, Parameter))
    if HAS_TRITON and plain and head.weight.is_cuda and not torch.compiler.is_compiling():
        from scdd.ops.barred.triton import barred as fused

        return fused(head, dtype)
    return reference.barred(head, dtype)
