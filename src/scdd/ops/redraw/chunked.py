"""Draws in torch, a chunk of rows at a time."""

from __future__ import annotations

import torch
from torch import Tensor

from scdd.core import Head
from scdd.ops.filters import Filters
from scdd.ops.head.chunked import cut, scaled_logits
from scdd.ops.logits import chunks, compute_weights
from scdd.ops.redraw.reference import invert


def redraw(
    hidden: Tensor, head: Head, u: Tensor, z_t: Tensor | None, filters: Filters
) -> tuple[Tensor, Tensor]:
    """(Tokens, log x_θ) at every row of `hidden`; only the draw itself is in float64."""
    weight, bias = compute_weights(hidden, head)
    tokens = torch.empty(hidden.shape[0], dtype=torch.int64, device=hidden.device)
    log_p = torch.empty(hidden.shape[0], dtype=torch.float64, device=hidden.device)
    for part in chunks(hidden.shape[0], weight.shape[0], hidden):
        picked = None if z_t is None else z_t[part]
        scores = scaled_logits(hidden[part], weight, bias, head, picked, filters)
        threshold, log_total = cut(scores, filters)
        kept = scores.masked_fill_(scores < threshold[:, None], -torch.inf).sub_(log_total[:, None])
        tokens[part], log_p[part] = invert(kept.to(torch.float64), u[part])
    return tokens, log_p
