"""Attention: rotary positions, document masks for packed rows, and the key/value cache of the autoregressive variant."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

from scdd.core import machine
from scdd.core.errors import UserError
from scdd.ops.common import HAS_TRITON

if TYPE_CHECKING:
    from scdd.models.options import RotaryScaling

BASE = 10_000.0
FLASH_WIDTH = 256  # the widest heads that flash attention takes
GROUPED = {"cuda": "native", "cpu": "fold"}
"""By device, how few heads of keys serve many of queries: by flash attention itself (native), as more queries (fold), or
by copies of the keys (repeat), which is also what the others do where they cannot."""
FUSED = True
"""Whether training takes the kernels of `ops.attention` and `ops.gelu` where they pay; torch's own are what they are held to."""
SHORTEST = 1024  # rows of the first table: most runs never grow it, so a compiled graph never sees it change


_aten = torch.ops.aten
_kept = partial(
    create_selective_checkpoint_contexts,
    [
        _aten._scaled_dot_product_flash_attention.default,
        _aten._scaled_dot_product_efficient_attention.default,
        _aten._scaled_dot_product_cudnn_attention.default,
        _aten._scaled_dot_product_flash_attention_for_cpu.default,
    ],
)


def recomputed(block: nn.Module, *inputs: Any) -> tuple[Tensor, Tensor]:
    """A block of which only inputs and attention's outputs are kept for the backward pass; the rest is computed again there.

    Attention is not: it is dear for its size, and the compiler takes it for random, besides.
    """
    x, delta = checkpoint(block, *inputs, use_reentrant=False, context_fn=_kept)
    return x, delta


class Near(NamedTuple):
    """What blocks are told where tokens see their surroundings alone (`ops.documents`)."""

    window: int
    documents: Tensor | None


def documents_seen(documents: Tensor, causal: bool, x: Tensor, width: int, mask: Tensor | None = None) -> Tensor:
    """What blocks are told of documents [B, L]: their numbers, where a kernel takes them as they are (activations x, heads of
    this width), or else a mask for all blocks, within another that may be given."""
    from scdd.ops import documents as ops  # few rows have any

    whole = documents.dtype in (torch.int32, torch.int64)  # no mask could be taken for them
    if mask is None and whole and ops.takes_documents(x, width):
        return documents.expand(x.shape[:2])
    own = ops.reference.document_mask(documents, causal)
    return own if mask is None else own & mask


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
                "make it larger with cache(capacity=…)."
            )


def attend(
    q: Tensor, k: Tensor, v: Tensor, causal: bool, mask: Tensor | Near | None = None, cache: LayerCache | None = None
) -> Tensor:
    """Softmax attention of [B, H, L, Dh]; with a cache, the L queries follow what the cache already holds.

    Keys and values may have fewer heads, a divisor of the queries': each then serves a group of neighbouring heads. The mask is
    True where a query may look at a key, or it is what `documents_seen` says, or `Near`.
    """
    if isinstance(mask, Near):
        from scdd.ops.documents import attention

        return attention(q, k, v, mask.documents, causal, mask.window)
    if mask is not None and mask.dtype != torch.bool:
        from scdd.ops.documents import attention

        return attention(q, k, v, mask, causal)
    read = cache.length if cache is not None else 0
    if cache is not None:
        k, v = cache.extend(k, v)
    if causal and read > 0 and mask is None:
        # SDPA's own causal flag aligns the first query with the first key; here they start after `read` keys.
        new = q.shape[2]
        mask = None if new == 1 else torch.ones(new, read + new, dtype=torch.bool, device=q.device).tril(read)
        causal = False
    causal = causal and mask is None
    if q.shape[1] != k.shape[1]:
        return _grouped(q, k, v, mask, causal)
    return _softmax_attention(q, k, v, attn_mask=mask, is_causal=causal)


def fuses(x: Tensor, heads: tuple[int, int, int], causal: bool, *more: object) -> bool:
    """Whether `ops.attention` does it all, from the norm's output x on; `more` (a mask, a cache) is for torch's own.

    `heads` are how many of queries, how many of keys, and how wide each is.
    """
    if not FUSED or not x.is_cuda or causal or any(each is not None for each in more):
        return False
    from scdd.ops.attention import Heads, pays

    return pays(x, Heads(*heads))


def fused(x: Tensor, layer: nn.Linear, rotary: tuple[Tensor, Tensor], heads: tuple[int, int, int]) -> Tensor:
    """Attention of what `layer` makes of x, queries ‖ keys ‖ values: [B, L, heads · width]."""
    from scdd.ops.attention import Heads, mixed_values

    return mixed_values(x, layer.weight, layer.bias, rotary, Heads(*heads))


def _softmax_attention(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    """Torch's own, by all threads even where the network around it keeps to one (`network.FEW`)."""
    if torch.compiler.is_compiling() or not machine.own.many:
        return F.scaled_dot_product_attention(q, k, v, **options)
    with machine.together():
        return F.scaled_dot_product_attention(q, k, v, **options)


def _grouped(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool) -> Tensor:
    """Attention with fewer heads of keys and values, by whatever spares the most copies of them here."""
    batch, heads, length, width = q.shape
    groups = heads // k.shape[1]
    way = GROUPED.get(q.device.type, "repeat")
    if way == "fold" and not causal:
        # A group's heads are so many more queries of one head: nothing of the keys and values is copied.
        if mask is not None:
            mask = mask.expand(*mask.shape[:-2], length, k.shape[2]).repeat(*(1,) * (mask.dim() - 2), groups, 1)
        mixed = _softmax_attention(q.reshape(batch, -1, groups * length, width), k, v, attn_mask=mask)
        return mixed.reshape(batch, heads, length, width)
    half = q.dtype in (torch.bfloat16, torch.float16)
    if way == "native" and half and mask is None and width <= FLASH_WIDTH:
        return _softmax_attention(q, k, v, is_causal=causal, enable_gqa=True)
    # SDPA's other kernels want as many heads everywhere; asked to group them, it would take its slowest.
    k, v = k.repeat_interleave(groups, dim=1), v.repeat_interleave(groups, dim=1)
    return _softmax_attention(q, k, v, attn_mask=mask, is_causal=causal)


# -- rotary position embedding, over half-split channels of queries and keys -------------------------------------------


def tables(
    start: int, stop: int, pairs: int, device: torch.device, base: float = BASE, scaling: RotaryScaling | None = None
) -> tuple[Tensor, Tensor]:
    """cos and sin of position · frequency_i for positions start … stop − 1, each [stop − start, pairs], float32.

    The frequencies are base^(−i/pairs), stretched as `scaling` says.
    """
    exponents = torch.arange(pairs, dtype=torch.float32, device=device) / pairs
    positions = torch.arange(start, stop, dtype=torch.float32, device=device)
    frequencies = base ** (-exponents)
    if scaling is not None:
        frequencies = stretched(frequencies, scaling)
    angles = positions[:, None] * frequencies
    return angles.cos(), angles.sin()


def stretched(frequencies: Tensor, scaling: RotaryScaling) -> Tensor:
    """Frequencies divided by the factor: all (linear), or the share of each that its wave's length asks for (llama3)."""
    if scaling.kind == "linear":
        return frequencies / scaling.factor
    turns = scaling.original_length * frequencies / (2 * math.pi)  # of the pair, over a text of the original length
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    kept = ((turns - low) / (high - low)).clamp(0.0, 1.0)
    return frequencies * (kept + (1 - kept) / scaling.factor)


class Rotary(nn.Module):
    """Keeps the tables, so that a step only slices them.

    The buffers start empty and are not saved: a network built on the meta device needs no repair after `to_empty`.
    `grow` runs in eager code; a compiled graph that meets a longer row than the table computes its own angles, which
    is slower but breaks no graph.
    """

    cos: Tensor
    sin: Tensor

    def __init__(self, pairs: int, base: float = BASE, scaling: RotaryScaling | None = None) -> None:
        super().__init__()
        self.pairs, self.base, self.scaling = pairs, base, scaling
        self.register_buffer("cos", torch.empty(0, pairs, dtype=torch.float32), persistent=False)
        self.register_buffer("sin", torch.empty(0, pairs, dtype=torch.float32), persistent=False)

    def grow(self, length: int) -> None:
        """Make the tables at least `length` long; also restores float32 after the module was cast to bfloat16."""
        if length <= self.cos.shape[0] and self.cos.dtype == torch.float32:
            return
        rows = max(SHORTEST, 1 << (length - 1).bit_length())
        self.cos, self.sin = tables(0, rows, self.pairs, self.cos.device, self.base, self.scaling)

    def forward(self, start: int, stop: int) -> tuple[Tensor, Tensor]:
        """The tables' rows for positions start … stop − 1."""
        if stop <= self.cos.shape[0]:
            return self.cos[start:stop], self.sin[start:stop]
        return tables(start, stop, self.pairs, self.cos.device, self.base, self.scaling)


def turned_in_place(heads: Tensor, turned: int, cos: Tensor, sin: Tensor) -> bool:
    """Turn the first heads of [B, L, H, 2 · pairs], queries and keys, where they stand, if a kernel can (`rotate` otherwise)."""
    if not heads.is_cuda or not HAS_TRITON or torch.compiler.is_compiling():
        return False
    from scdd.ops.rotary.triton import rotate_, turns_in_place

    if not turns_in_place(heads):
        return False
    rotate_(heads, turned, cos, sin)
    return True


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn the channel pairs (i, i + pairs) of x, [..., L, heads, 2 · pairs], by the position's angles, [L, pairs].

    The arithmetic is float32 whatever x is: bfloat16 angles would blur neighbouring positions, and the compiler fuses
    the casts away. Halves are taken by `unbind` and joined by `stack`: their gradients are each other, so the compiler
    writes the backward pass as one kernel, where slices would cost a pass over memory to add zeros.
    """
    cos, sin = cos[:, None, :], sin[:, None, :]
    a, b = x.float().view(*x.shape[:-1], 2, -1).unbind(-2)
    return torch.stack((a * cos - b * sin, b * cos + a * sin), dim=-2).flatten(-2).to(x.dtype)


def turns_at_once(x: Tensor) -> bool:
    """Whether `rotated_heads` is for it: on a CPU, where nothing fuses what `rotate` does."""
    plain = x.device.type == "cpu" and x.dtype == torch.float32
    return plain and not torch.is_grad_enabled() and not torch.compiler.is_compiling()


def rotated_heads(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """`rotate`, and then heads before positions, [B, heads, L, 2 · pairs]: written where it stays, without gradients.

    The same products and sums as there, so the same bits, in six passes over halves and no copy.
    """
    length, pairs = cos.shape
    halves = x.transpose(1, 2).view(x.shape[0], x.shape[2], length, 2, pairs)
    out = x.new_empty(x.shape[0], x.shape[2], length, 2, pairs)
    (a, b), (first, second) = halves.unbind(-2), out.unbind(-2)
    torch.mul(a, cos, out=first).sub_(b * sin)
    torch.mul(b, cos, out=second).add_(a * sin)
    return out.flatten(-2)
