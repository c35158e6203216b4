"""The vocabulary head as the fused operations see it: tensors, no module."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from scdd.core.vocab import Vocab

# Tensor cores want the head's rows in multiples of this; V = 50,258 itself runs at a third of the speed.
ALIGNMENT = 128


def padded(size: int) -> int:
    """`size` rounded up to the head's alignment."""
    return -(-size // ALIGNMENT) * ALIGNMENT


@dataclass(frozen=True)
class Head:
    """logits = hidden @ weightᵀ + bias, plus `input_bias` at the logit of the input token z_t (GIDD's networks).

    Rows V … Vp − 1 of `weight` are padding; they and the mask's row take part in no softmax.
    """

    weight: Tensor  # [Vp, D]
    vocab: Vocab
    bias: Tensor | None = None  # [Vp]
    input_bias: Tensor | None = None  # one number
