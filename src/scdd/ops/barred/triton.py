"""The head's barred bias in one launch, where plain PyTorch takes six."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from scdd.core import Head

BLOCK = 1024
WARPS = 4


def barred(head: Head, dtype: torch.dtype) -> Tensor:
    """`ops.common.barred_bias` of a head on a GPU."""
    rows = head.weight.shape[0]
    made = torch.empty(rows, dtype=dtype, device=head.weight.device)
    with torch.cuda.device_of(made):  # teachers and scores ask as well, whatever device is the current one
        _barred[(triton.cdiv(rows, BLOCK),)](
            made if head.bias is None else head.bias.detach().contiguous(), made, rows, head.vocab.mask_id, head.vocab.size,
            GIVEN=head.bias is not None, BLOCK=BLOCK, num_warps=WARPS,
        )  # fmt: skip
    return made


@triton.jit
def _barred(bias_, made_, rows, mask_id, size, GIVEN: tl.constexpr, BLOCK: tl.constexpr):
    j = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    # torch rounds to half precision in two steps
    wide: tl.constexpr = tl.float64 if made_.dtype.element_ty == tl.float64 else tl.float32
    bias = tl.zeros((BLOCK,), wide)
    if GIVEN:
        bias = tl.load(bias_ + j, mask=j < rows, other=0.0).to(wide)
    bias = tl.where((j == mask_id) | (j >= size), -float("inf"), bias)
    tl.store(made_ + j, bias.to(made_.dtype.element_ty), mask=j < rows)
