"""What a trainer asks of an objective. It hands over a network and tokens, and never sees a process."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn

from scdd.objectives.batch_slice import BatchSlice
from scdd.objectives.times import Reduce

if TYPE_CHECKING:
    from scdd.models.denoiser import Denoiser


class Loss(NamedTuple):
    """The loss of B rows. Over all parts of a global batch the `total`s sum to the batch's mean loss per position."""

    total: Tensor  # scalar with gradient
    nats: Tensor  # [B] summed over each row's tokens, weights of the times included; no gradient
    tokens: Tensor  # [B] how many tokens that sum is over


class Objective(ABC):
    """A loss to train on, an honest number to report, and whatever the loss learns about itself on the way."""

    @abstractmethod
    def loss(self, network: Denoiser, tokens: Tensor, documents: Tensor | None, part: BatchSlice) -> Loss:
        """What training minimises, at tokens [B, L]; documents [B, L] number each token's document, −1 padding."""

    @abstractmethod
    def evaluate(self, network: Denoiser, tokens: Tensor, documents: Tensor | None, part: BatchSlice) -> Loss:
        """What is reported: an unbiased estimate of the bound itself, however training weights it."""

    def modules(self) -> dict[str, nn.Module]:
        """Networks of the objective's own that are trained with the denoiser."""
        return {}

    def end_step(self, reduce: Reduce) -> None:  # noqa: B027 (most objectives learn nothing)
        """After each optimiser step; `reduce` sums a tensor over ranks."""

    def state_dict(self) -> dict[str, Tensor]:
        """What a resumed run needs to know."""
        return {}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:  # noqa: B027
        """Take over what `state_dict` gave."""


def counted(tokens: Tensor, documents: Tensor | None) -> Tensor:
    """1 where a position is a real token and 0 where it is padding, float64 [B, L]."""
    if documents is None:
        return torch.ones(tokens.shape, dtype=torch.float64, device=tokens.device)
    return (documents >= 0).to(torch.float64)
