"""PRISM's quality head, which sits on the hidden states beside the vocabulary head."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from scdd.models.blocks import Linear


class QualityHead(nn.Module):
    """PRISM's g_φ: hidden states → one logit per token that the token is right; 0 (probability ½) at the start."""

    def __init__(self, width: int, inner: int | None = None, generator: torch.Generator | None = None) -> None:
        super().__init__()
        self.first = Linear(width, inner or width)
        self.last = Linear(inner or width, 1)
        self.initialise(generator)

    def initialise(self, generator: torch.Generator | None = None) -> None:
        """PyTorch's default, with a zero last layer."""
        self.first.initialise(generator)
        self.last.initialise(zero=True)

    def forward(self, hidden: Tensor) -> Tensor:
        """[..., D] in any dtype → [...], float32."""
        inner = F.gelu(self.first(hidden.to(self.first.weight.dtype)), approximate="tanh")
        return self.last.exact(inner).squeeze(-1)
