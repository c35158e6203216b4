"""The barred bias in plain PyTorch: what the kernel is held to."""

from __future__ import annotations

import torch
from torch import Tensor

from scdd.core import Head


def barred(head: Head, dtype: torch.dtype) -> Tensor:
    """See `ops.barred.barred`."""
    rows, device = head.weight.shape[0], head.weight.device
    given = torch.zeros(rows, dtype=dtype, device=device) if head.bias is None else head.bias.detach().to(dtype)
    column = torch.arange(rows, device=device)
    forbidden = (column == head.vocab.mask_id) | (column >= head.vocab.size)
    return given.masked_fill(forbidden, -torch.inf)
