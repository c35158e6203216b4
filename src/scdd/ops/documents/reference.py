"""The same by PyTorch's attention and a mask: what CPUs run and training compiles, and what the kernel is held to."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def attention(
    q: Tensor, k: Tensor, v: Tensor, documents: Tensor | None = None, causal: bool = False, window: int | None = None
) -> Tensor:
    """See `ops.documents.attention`."""
    groups = q.shape[1] // k.shape[1]
    if groups > 1:
        k, v = k.repeat_interleave(groups, dim=1), v.repeat_interleave(groups, dim=1)
    mask = None if documents is None else document_mask(documents, causal)
    if window is not None:
        places = torch.arange(q.shape[2], device=q.device)
        near = window_mask(places, places, causal, window)
        mask = near if mask is None else mask & near
    if mask is None:
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


def window_mask(queries: Tensor, keys: Tensor, causal: bool, window: int) -> Tensor:
    """True where a query may look at a key, [N, M], from their places in the row: near, or the row's first."""
    ahead = keys[None, :] - queries[:, None]
    seen = (ahead.abs() <= window) | (keys == 0)[None, :]
    return seen & (ahead <= 0) if causal else seen


def document_mask(documents: Tensor, causal: bool) -> Tensor:
    """True where query i may look at key j, [B, 1, L, L], from document ids [B, L]; padding has the id −1.

    Padding is a document of its own: no token sees it, and its rows of the softmax are not empty, hence finite.
    """
    same = documents[:, :, None] == documents[:, None, :]
    if causal:
        length = documents.shape[1]
        same = same & torch.ones(length, length, dtype=torch.bool, device=documents.device).tril()
    return same[:, None]
