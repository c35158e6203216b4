"""Draws from the filtered x_θ, densely: inverse of the cumulative distribution in id order."""

from __future__ import annotations

import torch
from torch import Tensor

from scdd.core import Head
from scdd.ops.filters import NO_FILTERS, Filters, filtered
from scdd.ops.head.reference import logits


def redraw(
    hidden: Tensor, head: Head, u: Tensor, z_t: Tensor | None = None, filters: Filters = NO_FILTERS
) -> tuple[Tensor, Tensor]:
    """(Tokens, their log x_θ) for uniform numbers u [N]: the first id at which the cumulative mass passes u."""
    log_p = filtered(logits(hidden, head, z_t), filters)
    return invert(log_p, u)


def invert(log_p: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
    """The draw itself; should rounding leave u past the end, the last possible id is taken."""
    cumulative = log_p.exp().cumsum(-1)
    target = u.to(torch.float64)[:, None] * cumulative[:, -1:]
    passed = (cumulative > target) & torch.isfinite(log_p)
    ids = torch.arange(log_p.shape[-1], device=log_p.device)
    last = torch.where(torch.isfinite(log_p), ids, 0).amax(-1)
    tokens = torch.where(passed.any(-1), passed.to(torch.uint8).argmax(-1), last)
    return tokens, log_p.gather(-1, tokens[:, None])[:, 0]
