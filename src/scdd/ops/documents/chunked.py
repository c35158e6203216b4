"""The same with a window, some queries at a time, each with the keys that any of them may look at: what CPUs run and training
compiles. Queries of heads that share keys go together, so that no key is copied for them."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from scdd.ops.documents.reference import window_mask

QUERIES = 128  # at a time; with a window of 255, 639 keys


def attention(q: Tensor, k: Tensor, v: Tensor, documents: Tensor | None, causal: bool, window: int) -> Tensor:
    """See `ops.documents.attention`."""
    batch, heads, length, width = q.shape
    groups = heads // k.shape[1]
    grouped = q.reshape(batch, -1, groups, length, width)
    parts = []
    for start in range(0, length, QUERIES):
        stop = min(start + QUERIES, length)
        low, high = max(0, start - window), stop if causal else min(length, stop + window)
        keys, values, places = k[:, :, low:high], v[:, :, low:high], torch.arange(low, high, device=q.device)
        if low > 0:  # the row's first token, which all see
            keys, values = torch.cat((k[:, :, :1], keys), 2), torch.cat((v[:, :, :1], values), 2)
            places = torch.cat((places.new_zeros(1), places))
        mask = window_mask(torch.arange(start, stop, device=q.device), places, causal, window)[None]
        if documents is not None:
            mask = mask & (documents[:, start:stop, None] == documents[:, None, places])
        mask = mask[:, None].repeat(1, 1, groups, 1)  # [1 or B, 1, G · n, m]
        queries = grouped[:, :, :, start:stop].flatten(2, 3)
        mixed = F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask)
        parts.append(mixed.view(batch, -1, groups, stop - start, width))
    return torch.cat(parts, 3).flatten(1, 2)
