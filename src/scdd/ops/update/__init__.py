"""The optimiser's op: AdamW and the moving average of the weights, once over memory instead of three times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from scdd.ops.common import choose
from scdd.ops.update import reference


class Slots(NamedTuple):
    """The tensors of an update, item by item for each parameter; without an average, `shadow` is empty."""

    weights: Sequence[Tensor]
    gradients: Sequence[Tensor]
    first: Sequence[Tensor]  # moments
    second: Sequence[Tensor]
    shadow: Sequence[Tensor]


@dataclass(frozen=True)
class Rates:
    """The numbers of one update, the `updates`-th from 1 on; `pull` is 1 − d of the moving average."""

    learning_rate: float
    betas: tuple[float, float]
    epsilon: float
    weight_decay: float
    updates: int
    pull: float

    @property
    def corrections(self) -> tuple[float, float]:
        """1 − β^n of both moments: what they have seen so far of a steady gradient."""
        return 1 - self.betas[0] ** self.updates, 1 - self.betas[1] ** self.updates


@torch.no_grad()
def update(slots: Slots, scale: Tensor, rates: Rates, impl: str = "auto") -> None:
    """Everything in place; the gradients are multiplied by `scale`, one number on their device, and then worthless.

    A scale that is no number leaves everything but the gradients as it is, and nobody waits to learn so.
    """
    if not slots.weights:
        return
    plain = all(t.dtype == torch.float32 and t.is_contiguous() for group in slots for t in group)
    chosen = choose(impl, slots.weights[0])
    if chosen == "triton" and (plain or impl == "triton"):
        from scdd.ops.update.triton import update as fused

        fused(slots, scale, rates)
    else:
        reference.update(slots, scale, rates)
