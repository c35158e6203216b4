"""Attention: rotary positions, document masks for packed rows, and the key/value cache of the autoregressive variant."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from scdd.core.errors import UserError

BASE = 10_000.0
SHORTEST = 1024  # rows of the first table: most runs never grow it, so a compiled graph never sees it change


def document_mask(documents: Tensor, causal: bool) -> Tensor:
    """True where query i may look at key j, [B, 1, L, L], from document ids [B, L]; padding has the id −1.

    Padding is a document of its own: no token sees it, and its rows of the softmax are not empty, hence finite.
    """
    same = documents[:, :, None] == documents[:, None, :]
    if causal:
        length = documents.shape[1]
        same = same & torch.ones(length, length, dtype=torch.bool, device=documents.device).tril()
    return same[:, None]


class LayerCache:
    """Keys and values of one block, [B, H, capacity, Dh]; rows beyond `length` are not yet written."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.length = 0
        self.keys: Tensor | None = None
        self.values: Tensor | None = None

    def extend(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Append [B, H, n, Dh] and return all keys and values so far. The store takes the first call's dtype."""
        if self.keys is None or self.values is None:
            shape = (*keys.shape[:2], self.capacity, keys.shape[3])
            self.keys, self.values = keys.new_empty(shape), values.new_empty(shape)
        stop = self.length + keys.shape[2]
        self.keys[:, :, self.length : stop] = keys
        self.values[:, :, self.length : stop] = values
        self.length = stop
        return self.keys[:, :, :stop], self.values[:, :, :stop]


class Cache:
    """What a causal network remembers of the tokens it has read, for decoding one token at a time."""

    def __init__(self, depth: int, capacity: int) -> None:
        self.capacity = capacity
        self.layers = [LayerCache(capacity) for _ in range(depth)]

    @property
    def length(self) -> int:
        """Tokens read so far."""
        return self.layers[0].length

    def room_for(self, tokens: int) -> None:
        """Refuse tokens that do not fit."""
        if self.length + tokens > self.capacity:
            raise UserError(
                f"The cache holds {self.capacity} tokens and {self.length + tokens} were asked for: "
                "make it larger with DiT.cache(capacity=…)."
            )


def attend(
    q: Tensor, k: Tensor, v: Tensor, causal: bool, mask: Tensor | None = None, cache: LayerCache | None = None
) -> Tensor:
    """Softmax attention of [B, H, L, Dh]; with a cache, the L queries follow what the cache already holds."""
    read = cache.length if cache is not None else 0
    if cache is not None:
        k, v = cache.extend(k, v)
    if causal and read > 0 and mask is None:
        # SDPA's own causal flag aligns the first query with the first key; here they start after `read` keys.
        new = q.shape[2]
        mask = None if new == 1 else torch.ones(new, read + new, dtype=torch.bool, device=q.device).tril(read)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal and mask is None)


# -- rotary position embedding, over half-split channels of queries and keys -------------------------------------------


def tables(start: int, stop: int, pairs: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """cos and sin of position · BASE^(−i/pairs) for positions start … stop − 1, each [stop − start, pairs], float32."""
    exponents = torch.arange(pairs, dtype=torch.float32, device=device) / pairs
    positions = torch.arange(start, stop, dtype=torch.float32, device=device)
    angles = positions[:, None] * BASE ** (-exponents)
    return angles.cos(), angles.sin()


class Rotary(nn.Module):
    """Keeps the tables, so that a step only slices them.

    The buffers start empty and are not saved: a network built on the meta device needs no repair after `to_empty`.
    `grow` runs in eager code; a compiled graph that meets a longer row than the table computes its own angles, which
    is slower but breaks no graph.
    """

    cos: Tensor
    sin: Tensor

    def __init__(self, pairs: int) -> None:
        super().__init__()
        self.pairs = pairs
        self.register_buffer("cos", torch.empty(0, pairs, dtype=torch.float32), persistent=False)
        self.register_buffer("sin", torch.empty(0, pairs, dtype=torch.float32), persistent=False)

    def grow(self, length: int) -> None:
        """Make the tables at least `length` long; also restores float32 after the module was cast to bfloat16."""
        if length <= self.cos.shape[0] and self.cos.dtype == torch.float32:
            return
        rows = max(SHORTEST, 1 << (length - 1).bit_length())
        self.cos, self.sin = tables(0, rows, self.pairs, self.cos.device)

    def forward(self, start: int, stop: int) -> tuple[Tensor, Tensor]:
        """The tables' rows for positions start … stop − 1."""
        if stop <= self.cos.shape[0]:
            return self.cos[start:stop], self.sin[start:stop]
        return tables(start, stop, self.pairs, self.cos.device)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn the channel pairs (i, i + pairs) of x, [..., L, heads, 2 · pairs], by the position's angles, [L, pairs].

    The arithmetic is float32 whatever x is: bfloat16 angles would blur neighbouring positions, and the compiler fuses
    the casts away. Halves are taken by `unbind` and joined by `stack`: their gradients are each other, so the compiler
    writes the backward pass as one kernel, where slices would cost a pass over memory to add zeros.
    """
    cos, sin = cos[:, None, :], sin[:, None, :]
    a, b = x.float().view(*x.shape[:-1], 2, -1).unbind(-2)
    return torch.stack((a * cos - b * sin, b * cos + a * sin), dim=-2).flatten(-2).to(x.dtype)
