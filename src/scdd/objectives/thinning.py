"""Fewer positions for the head: every noised token, and of the others a share, which counts for all of them.

A masked process has no loss at a token that kept its place, and the head's three products cost as much there as anywhere. One with noise
has a loss there: a share q of these tokens is drawn at random, and each counts 1/q, so that the mean of the loss and of its gradient over
the draw is that over all positions; their variance is larger, and a step teaches less.

Products want a number of rows that is known beforehand. It is a little more than what is usually drawn; where a batch has more nevertheless, a
random subset of them counts for all.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from scdd.core import ElboCoefficients

SPARE = 5.0  # standard deviations above the mean share: hardly a batch in a million has more
MULTIPLE = 256  # of positions


class Thinned(NamedTuple):
    """The positions that are left."""

    at: Tensor  # [room] of the flattened positions, each once
    counts: Tensor  # [room] float64, for how many positions each one's loss stands

    def of(self, rows: ElboCoefficients) -> ElboCoefficients:
        """Their rows of the loss."""
        return ElboCoefficients(*(field[self.at] for field in rows)).scaled(self.counts)


def thinned(changed: Tensor, real: Tensor, numbers: Tensor, share: float, room: int) -> Thinned:
    """`changed` and `real` [B, L] say where a token was noised and where it counts at all; `numbers` [B, L, 2] are uniform in [0, 1)."""
    whether, order = numbers.unbind(-1)
    chosen = ((changed | (whether < share)) & (real > 0)).flatten()
    at = torch.where(chosen, order.flatten(), 2.0).argsort()[:room]
    counts = torch.where(changed.flatten()[at], 1.0, 1.0 / share) * (chosen.sum() / room).clamp(min=1.0)
    return Thinned(at, torch.where(chosen[at], counts, 0.0).to(torch.float64))


def room_for(shares: Tensor, share: float, positions: int) -> int:
    """Positions to keep, out of so many, where batches had these shares [n] of noised tokens."""
    chosen = shares + share * (1.0 - shares)
    most = float(chosen.mean() + SPARE * chosen.std())
    return min(positions, -(-int(most * positions) // MULTIPLE) * MULTIPLE)
