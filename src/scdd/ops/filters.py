"""Sampling filters: temperature, top-k, top-p, and what they mean."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from scdd.core import UserError


@dataclass(frozen=True)
class Filters:
    """x_θ is replaced by its filtered self everywhere: in draws and in x_θ(z_t), hence in the posterior.

    In this order: logits are divided by `temperature`; token v stays if fewer than `top_k` tokens are strictly more
    likely; of what is left, renormalised, v stays if the mass strictly more likely than v is below `top_p` (Holtzman's
    nucleus: the token that crosses the threshold is kept). Tied tokens stay or go together, so no order matters, and
    every filter is one threshold on the logit.
    """

    top_p: float = 1.0
    top_k: int | None = None
    temperature: float = 1.0

    def __post_init__(self) -> None:
        if not 0.0 < self.top_p <= 1.0:
            raise UserError(f"top_p is {self.top_p}: choose a mass in (0, 1]; 1 switches it off.")
        if self.top_k is not None and self.top_k < 1:
            raise UserError(f"top_k is {self.top_k}: keep at least one token, or leave it out.")
        if not self.temperature > 0.0:
            raise UserError(
                f"temperature is {self.temperature}: it must be positive; use top_k=1 for greedy draws."
            )

    @property
    def cuts(self) -> bool:
        """Whether any token may be cut off."""
        return self.top_p < 1.0 or self.top_k is not None


NO_FILTERS = Filters()


def filtered(logits: Tensor, filters: Filters) -> Tensor:
    """The reference that every fast path agrees with: log x_θ after `filters`, [..., V] float64, −∞ where cut; logits already −∞ where forbidden."""
    scaled = logits.to(torch.float64) / filters.temperature
    if filters.top_k is not None:
        kth = torch.topk(scaled, min(filters.top_k, scaled.shape[-1]), dim=-1).values[..., -1:]
        scaled = scaled.masked_fill(scaled < kth, -torch.inf)
    if filters.top_p < 1.0:
        ordered = torch.sort(scaled, dim=-1, descending=True).values
        mass = torch.softmax(ordered, dim=-1)
        above = mass.cumsum(-1) - mass
        last = ((above < filters.top_p).sum(-1, keepdim=True) - 1).clamp(min=0)
        scaled = scaled.masked_fill(scaled < ordered.gather(-1, last), -torch.inf)
    return torch.log_softmax(scaled, dim=-1)
