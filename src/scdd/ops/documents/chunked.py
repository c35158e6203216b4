"""The same with a window, some queries at a time, each with the keys that any of them may look at: what CPUs run and training
compiles. Queries of heads that share keys go together, so that no key is copied for them."""

from __future__ import annotations

from functools import lru_cache

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
    known = documents is None and q.device.type == "cpu" and not torch.compiler.is_compiling()
    parts = []
    for start in range(0, length, QUERIES):
        stop = min(start + QUERIES, length)
        low, high = max(0, start - window), stop if causal else min(length, stop + window)
        keys, values = k[:, :, low:high], v[:, :, low:high]
        if low > 0:  # the row's first token, which all see
            keys, values = torch.cat((k[:, :, :1], keys), 2), torch.cat((v[:, :, :1], values), 2)
        # places from the first key on, which is the row's first token or stands for it
        low = max(0, low - 1)
        if known:
            mask = added(start - low, stop - low, keys.shape[2], causal, window, groups, q.dtype)
        else:
            mask = _near(start - low, stop - low, keys.shape[2], causal, window, q.device)[None]
            if documents is not None:
                there = documents[:, low : low + keys.shape[2]]
                there = torch.cat((documents[:, :1], there[:, 1:]), 1)
                mask = mask & (documents[:, start:stop, None] == there[:, None])
            mask = mask[:, None].repeat(1, 1, groups, 1)  # [1 or B, 1, G · n, m]
        queries = grouped[:, :, :, start:stop].flatten(2, 3)
        mixed = F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask)
        parts.append(mixed.view(batch, -1, groups, stop - start, width))
    return torch.cat(parts, 3).flatten(1, 2)


def _near(start: int, stop: int, keys: int, causal: bool, window: int, device: torch.device | None = None) -> Tensor:
    """[stop − start, keys]: who sees whom, of keys of which the first is the row's first token."""
    return window_mask(torch.arange(start, stop, device=device), torch.arange(keys, device=device), causal, window)


@lru_cache(maxsize=32)
def added(start: int, stop: int, keys: int, causal: bool, window: int, groups: int, dtype: torch.dtype) -> Tensor:
    """The same, [1, 1, G · n, keys], as what is added to the products: 0 or −∞. It is what torch makes of the other one, and is
    the same in each layer, for most queries of a row, and in the next row: on a CPU a tenth of the attention's time."""
    with torch.inference_mode(False):
        hidden = ~_near(start, stop, keys, causal, window).repeat(groups, 1)
        return torch.zeros(hidden.shape, dtype=dtype).masked_fill(hidden, -torch.inf)[None, None]
