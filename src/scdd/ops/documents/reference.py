"""The same by PyTorch's attention and a mask: what CPUs run and training compiles, and what the kernel is held to."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def attention(q: Tensor, k: Tensor, v: Tensor, documents: Tensor | None = None, causal: bool = False) -> Tensor:
    """See `ops.documents.attention`."""
    groups = q.shape[1] // k.shape[1]
    if groups > 1:
        k, v = k.repeat_interleave(groups, dim=1), v.repeat_interleave(groups, dim=1)
    if documents is None:
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=document_mask(documents, causal))


def document_mask(documents: Tensor, causal: bool) -> Tensor:
    """True where query i may look at key j, [B, 1, L, L], from document ids [B, L]; padding has the id −1.

    Padding is a document of its own: no token sees it, and its rows of the softmax are not empty, hence finite.
    """
    same = documents[:, :, None] == documents[:, None, :]
    if causal:
        length = documents.shape[1]
        same = same & torch.ones(length, length, dtype=torch.bool, device=documents.device).tril()
    return same[:, None]
