"""What objectives and samplers ask of a network, and nothing more."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from torch import Tensor

from scdd.core.types import Head, Vocab


@runtime_checkable
class Denoiser(Protocol):
    """x_θ(z_t, t) in two halves: hidden states, and the head that the fused operations multiply them with."""

    vocab: Vocab

    @property
    def head(self) -> Head:
        """The vocabulary head's tensors."""
        ...

    def hidden(self, z_t: Tensor, t: Tensor | None = None, documents: Tensor | None = None) -> Tensor:
        """[B, L, D] for tokens z_t [B, L] at times t [B] float64; documents [B, L], −1 for padding."""
        ...

    def logits(self, z_t: Tensor, t: Tensor | None = None, documents: Tensor | None = None) -> Tensor:
        """[B, L, V] float32, −inf at the mask: only where somebody asks for them."""
        ...
