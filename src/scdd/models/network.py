"""What every network here is: a denoiser that says which of its parts training treats apart."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from scdd.core.types import Head, Vocab
from scdd.models.heads import dense_logits


class Network(nn.Module, ABC):
    """x_θ(z_t, t) up to its last layer (`core.denoiser.Denoiser`), and what training asks of it besides."""

    vocab: Vocab
    compute_dtype: torch.dtype | None = None
    """Type of the activations, by autocast inside `hidden`; None is the weights' own."""

    @abstractmethod
    def hidden(self, z_t: Tensor, t: Tensor | None = None, documents: Tensor | None = None) -> Tensor:
        """What the head multiplies, [B, L, D], for tokens z_t [B, L] at times t [B]."""

    @property
    @abstractmethod
    def head(self) -> Head:
        """The vocabulary head's tensors."""

    @abstractmethod
    def layers(self) -> Sequence[nn.Module]:
        """The blocks, which are sharded one by one where weights are sharded."""

    @abstractmethod
    def hidden_matrices(self) -> list[str]:
        """Names of the parameters that map activations to activations: Muon's domain."""

    def logits(self, z_t: Tensor, t: Tensor | None = None, documents: Tensor | None = None) -> Tensor:
        """[B, L, V] float32 with −inf at the mask. For tests and small work: hot paths use `hidden`, `head` and ops."""
        return dense_logits(self.hidden(z_t, t, documents), self.head, z_t)
