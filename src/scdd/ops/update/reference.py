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
    torch._foreach_mul_(gradients, scale)
    torch._foreach_mul_(weights, 1 - rates.learning_rate * rates.weight_decay)
    torch._foreach_lerp_(first, gradients, 1 - beta1)
    torch._foreach_mul_(second, beta2)
    torch._foreach_addcmul_(second, gradients, gradients, 1 - beta2)
    spread = torch._foreach_sqrt(second)
    torch._foreach_div_(spread, math.sqrt(whole2))
    torch._foreach_add_(spread, rates.epsilon)
    torch._foreach_addcdiv_(weights, first, spread, -rates.learning_rate / whole1)
    if shadow:
        torch._foreach_lerp_(shadow, [w.to(s.dtype) for w, s in zip(weights, shadow, strict=True)], rates.pull)
