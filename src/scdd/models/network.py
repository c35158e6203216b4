"""What every network here is: a denoiser that says which of its parts training treats apart."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from scdd.core.errors import UserError
from scdd.core.types import Head, Vocab
from scdd.models.options import make_network

FEW = 256
"""Tokens of an evaluation in 8 bits up to which only products (`ops.int8`) and attention are worth several threads."""


def dense_logits(hidden: Tensor, head: Head, z_t: Tensor) -> Tensor:
    """All logits, [..., V] float32, the mask's −inf. For tests and small work: it holds V numbers per position."""
    size = head.vocab.size
    bias = None if head.bias is None else head.bias[:size].float()
    with torch.autocast(hidden.device.type, enabled=False):
        logits = F.linear(hidden.float(), head.wide_weight(), bias)
    if head.input_bias is not None:
        logits = logits.scatter_add(-1, z_t[..., None], head.input_bias.float().expand_as(z_t)[..., None])
    forbidden = torch.arange(size, device=hidden.device) == head.vocab.mask_id
    return logits.masked_fill(forbidden, float("-inf"))


class Network(nn.Module, ABC):
    """x_θ(z_t, t) up to its last layer (`core.denoiser.Denoiser`), and what training asks of it besides."""

    vocab: Vocab
    whole_graph = True
    """Whether the compiler sees all of it as one graph; if not, it may break where it must."""
    compute_dtype: torch.dtype | None = None
    """Type of the activations, by autocast inside `hidden`; None is the weights' own."""
    takes_eight_bits = False
    """Whether `head` looks at the following."""
    eight_bit_head: Head | None = None
    """The head of a network in 8 bits (`models.eight_bit`); None in any other."""

    @abstractmethod
    def hidden(self, z_t: Tensor, t: Tensor | None = None, documents: Tensor | None = None) -> Tensor:
        """What the head multiplies, [B, L, D], for tokens z_t [B, L] at times t [B]."""

    @property
    @abstractmethod
    def head(self) -> Head:
        """The vocabulary head's tensors."""

    @property
    def width(self) -> int:
        """D, the width of what `hidden` gives."""
        return self.head.weight.shape[1]

    @property
    def causal(self) -> bool:
        """Whether a token sees only what is before it: what the autoregressive baseline needs."""
        return False

    @property
    def attention_window(self) -> int | None:
        """How many tokens to either side a token sees besides the row's first; None: the whole row."""
        return None

    @property
    def context(self) -> int | None:
        """Tokens of the longest row that it is used with; None: of the rows it was trained on."""
        return None

    @property
    def time_conditioning(self) -> bool:
        """Whether `hidden` must be told t."""
        return False

    @property
    def looks_at_tokens_alone(self) -> bool:
        """Whether `hidden` gives the same bits for the same tokens and documents, whatever the time: samplers need not ask again."""
        return False

    @abstractmethod
    def description(self) -> dict[str, Any]:
        """Plain data that `models.options.make_network` rebuilds it from, weights apart."""

    @abstractmethod
    def layers(self) -> Sequence[nn.Module]:
        """The blocks, which are sharded one by one where weights are sharded."""

    @abstractmethod
    def hidden_matrices(self) -> list[str]:
        """Names of the parameters that map activations to activations: Muon's domain."""

    # A network that wraps another (`foreign.Foreign`) publishes its weights under the other's own names.
    weights_prefix = ""

    def load_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Take over a checkpoint's weights, as they are and where they are; RuntimeError where they do not fit."""
        self.load_state_dict({f"{self.weights_prefix}{k}": v for k, v in weights.items()}, assign=True)

    def logits(self, z_t: Tensor, t: Tensor | None = None, documents: Tensor | None = None) -> Tensor:
        """[B, L, V] float32 with −inf at the mask. For tests and small work: hot paths use `hidden`, `head` and ops."""
        return dense_logits(self.hidden(z_t, t, documents), self.head, z_t)


def unfilled(description: Mapping[str, Any], vocab: Vocab, weights: int) -> Network:
    """The network that plain data describes, to be given as many weights: nothing is drawn only to be written over."""
    depth = description.get("depth")
    if isinstance(depth, int) and depth > weights:
        raise UserError(f"it says {depth} blocks and has {weights} weights")
    with torch.device("meta"):
        return make_network(description, vocab)
