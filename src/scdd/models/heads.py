"""What sits on the hidden states: the vocabulary head and PRISM's quality head."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from scdd.core.types import Head, Vocab, padded
from scdd.models.blocks import Linear


class LMHead(nn.Module):
    """Weight [Vp, D] and bias [Vp], Vp = V rounded up to 128; zero at the start, as in the paper's code.

    There is no forward: `ops` multiplies, fused with the softmax, and takes the tensors from here.
    """

    input_bias: nn.Parameter | None

    def __init__(self, width: int, vocab: Vocab, input_bias: bool = False) -> None:
        super().__init__()
        self.vocab = vocab
        self.weight = nn.Parameter(torch.empty(padded(vocab.size), width))
        self.bias = nn.Parameter(torch.empty(padded(vocab.size)))
        # One axis: FSDP shards no scalars.
        self.register_parameter("input_bias", nn.Parameter(torch.empty(1)) if input_bias else None)

    def initialise(self) -> None:
        """All zero: every ordinary token equally likely."""
        nn.init.zeros_(self.weight)
        nn.init.zeros_(self.bias)
        if self.input_bias is not None:
            nn.init.zeros_(self.input_bias)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        """GIDD's networks carry the bias as a scalar, and converted ones did."""
        name = f"{prefix}input_bias"
        if name in state_dict:
            state_dict[name] = state_dict[name].reshape(1)
        super()._load_from_state_dict(state_dict, prefix, *rest)


def dense_logits(hidden: Tensor, head: Head, z_t: Tensor) -> Tensor:
    """All logits, [..., V] float32, the mask's −inf. For tests and small work: it holds V numbers per position."""
    size = head.vocab.size
    bias = None if head.bias is None else head.bias[:size].float()
    with torch.autocast(hidden.device.type, enabled=False):
        logits = F.linear(hidden.float(), head.weight[:size].float(), bias)
    if head.input_bias is not None:
        logits = logits.scatter_add(-1, z_t[..., None], head.input_bias.float().expand_as(z_t)[..., None])
    forbidden = torch.arange(size, device=hidden.device) == head.vocab.mask_id
    return logits.masked_fill(forbidden, float("-inf"))


class QualityHead(nn.Module):
    """PRISM's g_φ: hidden states → one logit per token that the token is right; 0 (probability ½) at the start."""

    def __init__(
        self, width: int, inner: int | None = None, generator: torch.Generator | None = None
    ) -> None:
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
