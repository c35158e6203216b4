"""Networks that are as good as any other, for losses to be compared on."""

from __future__ import annotations

from typing import TypeVar

import torch
from torch import nn

Net = TypeVar("Net", bound=nn.Module)


def stirred(net: Net, generator: torch.Generator) -> Net:
    """Every weight moved, those too that begin at 0."""
    with torch.no_grad():
        for p in net.parameters():
            p.add_(0.3 * torch.randn(p.shape, generator=generator))
    return net
