"""The vocabulary: K ordinary tokens and one mask, V = K + 1 ids."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from scdd.core.errors import UserError


@dataclass(frozen=True)
class Vocab:
    """`size` ids in all, one of which, `mask_id`, is the mask m. It never is padding and never is sampled."""

    size: int
    mask_id: int

    def __post_init__(self) -> None:
        if self.size < 3:
            raise UserError(f"Vocab.size is {self.size}: give at least two ordinary tokens and the mask (3).")
        if not 0 <= self.mask_id < self.size:
            raise UserError(
                f"Vocab.mask_id is {self.mask_id}: choose an id from 0 to size - 1 = {self.size - 1}."
            )

    @property
    def K(self) -> int:
        """Number of ordinary tokens."""
        return self.size - 1

    def token(self, ordinal: Tensor) -> Tensor:
        """The id of the `ordinal`-th ordinary token, 0 ≤ ordinal < K: ids step over the mask's."""
        return ordinal + (ordinal >= self.mask_id).to(ordinal.dtype)

    def ordinary(self, device: torch.device | str | None = None) -> Tensor:
        """True at each id but the mask's, [V]."""
        allowed = torch.ones(self.size, dtype=torch.bool, device=device)
        allowed[self.mask_id] = False
        return allowed
