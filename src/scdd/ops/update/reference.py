"""AdamW with decoupled weight decay (Loshchilov and Hutter) and the moving average, formula by formula."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from scdd.ops.update import Rates, Slots


def update(slots: Slots, scale: Tensor, rates: Rates) -> None:
    """See `ops.update.update`."""
    weights, gradients = list(slots.weights), list(slots.gradients)
    first, second, shadow = list(slots.first), list(slots.second), list(slots.shadow)
    beta1, beta2 = rates.betas
    whole1, whole2 = rates.corrections
    finite = torch.isfinite(scale)

    def unless(number: float, left_out: float) -> Tensor:
        return torch.where(finite, weights[0].new_full((), number), left_out)

    torch._foreach_mul_(gradients, scale)
    for gradient, moment in zip(gradients, first, strict=True):
        torch.where(finite, gradient, moment, out=gradient)  # a moment that moves towards itself stays
    torch._foreach_mul_(weights, unless(1 - rates.learning_rate * rates.weight_decay, 1.0))
    torch._foreach_lerp_(first, gradients, 1 - beta1)
    torch._foreach_mul_(gradients, unless(1.0, 0.0))
    torch._foreach_mul_(second, unless(beta2, 1.0))
    torch._foreach_addcmul_(second, gradients, gradients, 1 - beta2)
    spread = torch._foreach_sqrt(second)
    torch._foreach_div_(spread, math.sqrt(whole2))
    torch._foreach_add_(spread, rates.epsilon)
    torch._foreach_div_(spread, unless(1.0, 0.0))  # infinite: no step
    torch._foreach_addcdiv_(weights, first, spread, -rates.learning_rate / whole1)
    if shadow:
        aims = [torch.where(finite, w.to(s.dtype), s) for w, s in zip(weights, shadow, strict=True)]
        torch._foreach_lerp_(shadow, aims, rates.pull)
