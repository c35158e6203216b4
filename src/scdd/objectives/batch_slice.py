"""Which rows of which global batch: all that the randomness of a training step depends on."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from scdd.core.rng import CounterRNG, derive_seed


@dataclass(frozen=True)
class BatchSlice:
    """Rows first … first + count − 1 of the `total` rows of global batch `step`.

    Every number drawn for a row is a function of (seed, step, row), so neither ranks nor micro-batches nor a resumed
    run change what is drawn.
    """

    seed: int
    step: int
    first: int
    count: int
    total: int

    def keyed(self, use: str, device: torch.device | str) -> CounterRNG:
        """A stream of numbers for each row."""
        rows = torch.arange(self.count, device=device) + (self.step * self.total + self.first)
        return CounterRNG(derive_seed(self.seed, use), rows, device)

    def shared(self, use: str, device: torch.device | str) -> CounterRNG:
        """A stream of numbers that all rows of the global batch share."""
        return CounterRNG(
            derive_seed(self.seed, use), torch.full((1,), self.step, dtype=torch.int64, device=device), device
        )

    def cut(self, first: int, count: int) -> BatchSlice:
        """Rows first … of this part, as a part of the same global batch."""
        return BatchSlice(self.seed, self.step, self.first + first, count, self.total)
