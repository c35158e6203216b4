"""The filtered x_θ, densely: the definition that every path agrees with."""

from __future__ import annotations

import torch
from torch import Tensor

from scdd.ops.filters import Filters


def filtered(logits: Tensor, filters: Filters) -> Tensor:
    """log x_θ after `filters`, [..., V] float64, −∞ where cut; logits already −∞ where forbidden."""
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
