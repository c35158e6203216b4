"""Decoders of the Llama family (Llama, SmolLM2, Mistral, Qwen2, Qwen3), read in one direction or in both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from scdd.core import machine
from scdd.core.errors import UserError
from scdd.core.types import Head, Vocab, padded
from scdd.models.attention import (
    Cache,
    LayerCache,
    Near,
    Rotary,
    attend,
    documents_seen,
    fused,
    fuses,
    recomputed,
    rotate,
    rotated_heads,
    turned_in_place,
    turns_at_once,
)
from scdd.models.blocks import Linear
from scdd.models.network import FEW, Network
from scdd.models.options import LlamaConfig
from scdd.ops.norm import add_rms_norm
from scdd.ops.norm.reference import rms_norm
from scdd.ops.swiglu import gated_linear, gates_at_once, swiglu_linear
from scdd.ops.swiglu.reference import gated_product

DEVIATION = 0.02  # of the weights at the start
OWN = -1
"""For `lookahead`: as far as the network's own attribute says."""


def normal_(tensor: Tensor, deviation: float, generator: torch.Generator | None) -> None:
    """Fill with N(0, deviation²), drawn where the generator lives: a CPU seed gives the same weights on any device."""
    if tensor.is_meta:
        return
    with torch.no_grad():
        if generator is None or generator.device == tensor.device:
            tensor.normal_(0.0, deviation, generator=generator)
        else:
            drawn = torch.empty(tensor.shape, dtype=tensor.dtype, device=generator.device)
            tensor.copy_(drawn.normal_(0.0, deviation, generator=generator))


class Norm(nn.Module):
    """RMSNorm with a weight; adds to the stream first, as the layer norms of `blocks` do."""

    impl: ClassVar[str] = "auto"  # of ops.norm

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor, delta: Tensor | None) -> tuple[Tensor, Tensor]:
        """(x + delta, its norm) of x [B, L, D], in x's dtype."""
        return add_rms_norm(x, delta, self.weight, self.eps, self.impl)

    def alone(self, x: Tensor) -> Tensor:
        """The norm along the last axis of any tensor, nothing added: plain torch, which the compiler fuses."""
        return rms_norm(x, self.weight.float(), self.eps)


class Block(nn.Module):
    """Attention and gated MLP, each behind an RMSNorm.

    Queries, keys and values are one matrix, gate and up another. The residual stream keeps the compute dtype, and what
    a layer adds to it is added by the norm that follows, as in `blocks.Block`.
    """

    MATRICES: ClassVar[tuple[str, ...]] = ("qkv", "out", "mlp_in", "mlp_out")  # from activations to activations
    mlp_impl: ClassVar[str] = "auto"  # of ops.swiglu
    keeps_product = False  # see ops.swiglu; less traffic, half as much again of what the MLP keeps

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        width, head = config.width, config.head_width
        self.heads = (config.heads, config.kv_heads, config.kv_heads)  # of queries, keys and values
        self.shape = (config.heads, config.kv_heads, head)
        self.norm1 = Norm(width, config.eps)
        self.qkv = Linear(width, sum(self.heads) * head, bias=config.qkv_bias)
        self.q_norm = Norm(head, config.eps) if config.qk_norm else None
        self.k_norm = Norm(head, config.eps) if config.qk_norm else None
        self.out = Linear(config.heads * head, width, bias=config.out_bias)
        self.norm2 = Norm(width, config.eps)
        self.mlp_in = Linear(width, 2 * config.mlp_width, bias=config.mlp_bias)  # the gate's rows, then up's
        self.mlp_out = Linear(config.mlp_width, width, bias=config.mlp_bias)

    def initialise(self, depth: int, generator: torch.Generator | None = None) -> None:
        """Normal weights, smaller where 2 · depth of them add up on the stream; biases zero."""
        for name in self.MATRICES:
            layer = self.get_submodule(name)
            assert isinstance(layer, Linear)
            normal_(layer.weight, DEVIATION / ((2 * depth) ** 0.5 if name in ("out", "mlp_out") else 1.0), generator)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)

    def forward(
        self,
        x: Tensor,
        delta: Tensor | None,
        rotary: tuple[Tensor, Tensor],
        causal: bool,
        mask: Tensor | Near | None = None,
        cache: LayerCache | None = None,
        lean: bool = False,
    ) -> tuple[Tensor, Tensor]:
        """Stream x and what is to be added to it, both [B, L, D]; rotary tables [L, Dh/2].

        `lean` keeps less for the backward pass than fused attention does.
        """
        x, normal = self.norm1(x, delta)
        x, normal = self.norm2(x, self.out(self._attention(normal, rotary, causal, mask, cache, lean)))
        return x, self._mlp(normal)

    def _mlp(self, normal: Tensor) -> Tensor:
        first, second = self.mlp_in, self.mlp_out
        at_once = self.mlp_impl == "auto" and type(first) is Linear and gates_at_once(normal, first.weight)
        if type(second) is Linear and not at_once:
            inner = first(normal)
            return swiglu_linear(inner, second.weight, second.bias, self.keeps_product, self.mlp_impl)
        # `second` may be more than its weight (LoRA), or have products of its own
        product = gated_linear(normal, first.weight, first.bias) if at_once else gated_product(first(normal))
        made: Tensor = second(product)
        return made

    def _attention(
        self,
        normal: Tensor,
        rotary: tuple[Tensor, Tensor],
        causal: bool,
        mask: Tensor | Near | None,
        cache: LayerCache | None,
        lean: bool,
    ) -> Tensor:
        batch, length, _ = normal.shape
        plain = type(self.qkv) is Linear and self.q_norm is None and not lean
        if plain and fuses(normal, self.shape, causal, mask, cache):
            return fused(normal, self.qkv, rotary, self.shape)
        every = self.qkv(normal).view(batch, length, sum(self.heads), -1)
        q, k, v = every.split(self.heads, dim=2)
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm.alone(q), self.k_norm.alone(k)
        if self.q_norm is None and turns_at_once(every):
            turned = rotated_heads(every[:, :, : -self.heads[2]], *rotary)
            q, k = turned[:, : self.heads[0]], turned[:, self.heads[0] :]
        elif self.q_norm is None and turned_in_place(every, self.heads[0] + self.heads[1], *rotary):
            q, k = q.transpose(1, 2), k.transpose(1, 2)
        else:
            q, k = rotate(q, *rotary).transpose(1, 2), rotate(k, *rotary).transpose(1, 2)
        mixed = attend(q, k, v.transpose(1, 2), causal, mask, cache)
        return mixed.transpose(1, 2).reshape(batch, length, -1)


class LMHead(nn.Module):
    """The weight [Vp, D] of a head that shares nothing with the embedding, Vp = V rounded up to 128."""

    def __init__(self, width: int, vocab: Vocab) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(padded(vocab.size), width))


class Llama(Network):
    """A decoder as a denoiser: `hidden` gives the final norm's output, which `head` multiplies.

    `lookahead` says how many tokens to its right a token sees: 0 is the causal network, None the whole row. It may be
    changed at any time; an autoregressive model becomes a denoiser by letting it grow during training.
    """

    takes_eight_bits = True
    recompute = False
    """Keep only blocks' inputs and attention's outputs for the backward pass, and compute the rest once more there."""

    def __init__(self, config: LlamaConfig, vocab: Vocab, generator: torch.Generator | None = None) -> None:
        super().__init__()
        self.config = config
        self.vocab = vocab
        self.lookahead: int | None = 0 if config.causal else None
        rows = padded(vocab.size) if config.tied else vocab.size
        self.embedding = nn.Embedding(rows, config.width, _weight=torch.empty(rows, config.width))
        self.rotary = self._rotary()
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.depth))
        self.norm = Norm(config.width, config.eps)
        self.output = None if config.tied else LMHead(config.width, vocab)
        self.initialise(generator)

    def initialise(self, generator: torch.Generator | None = None) -> None:
        """Draw the weights; rows beyond the vocabulary are zero."""
        for block in self.blocks:
            assert isinstance(block, Block)
            block.initialise(self.config.depth, generator)
        for outer in (self.embedding, self.output):
            if outer is not None:
                normal_(outer.weight, DEVIATION, generator)
                nn.init.zeros_(outer.weight[self.vocab.size :])

    def hidden(
        self,
        z_t: Tensor,
        t: Tensor | None = None,
        documents: Tensor | None = None,
        cache: Cache | None = None,
        lookahead: int | None = OWN,
    ) -> Tensor:
        """The final norm's output, [B, L, D] in the compute dtype, for tokens z_t [B, L]; times are not looked at.

        `documents` [B, L] numbers the document of each token, −1 for padding: a token attends only within its own.
        `cache` (no lookahead) continues the row that the cache holds. `lookahead` is this call's, see the class.
        """
        ahead = self.lookahead if lookahead == OWN else lookahead
        if ahead is not None and ahead < 0:
            raise UserError(f"lookahead is {ahead}: count tokens from 0, or give None for the whole row.", "lookahead")
        length = z_t.shape[1]
        if cache is not None:
            if ahead != 0 or documents is not None:
                raise UserError("A cache needs a causal network and unpacked rows: set lookahead=0, documents=None.")
            if self.attention_window is not None:
                raise UserError(
                    "A cache remembers the whole row, and this network has an attention_window: set no cache."
                )
            cache.room_for(length)
        mask = None
        if ahead and ahead < length - 1:  # a tensor: a number that grows would make the compiler start again
            mask = torch.ones(length, length, dtype=torch.bool, device=z_t.device).tril(ahead)[None, None]
        if not torch.compiler.is_compiling():
            self.rotary.grow(length + (cache.length if cache is not None else 0))
        cast = torch.autocast(z_t.device.type, self.compute_dtype) if self.compute_dtype else nullcontext()
        few = self.eight_bit_head is not None and z_t.numel() <= FEW
        with machine.alone() if few else nullcontext(), cast:
            states: Tensor = self(z_t, documents, ahead == 0, mask, cache)
        return states

    def forward(
        self,
        z_t: Tensor,
        documents: Tensor | None = None,
        causal: bool = False,
        mask: Tensor | None = None,
        cache: Cache | None = None,
    ) -> Tensor:
        """The part that is compiled; see `hidden`."""
        start = cache.length if cache is not None else 0
        rotary = self.rotary(start, start + z_t.shape[1])
        x = F.embedding(z_t, self.embedding.weight).to(self.compute_dtype or self.embedding.weight.dtype)
        seen = self._seen(documents, causal, mask, x)
        delta = None
        again = self.recompute and torch.is_grad_enabled() and cache is None
        for i, block in enumerate(self.blocks):
            if again:
                x, delta = recomputed(block, x, delta, rotary, causal, seen, None, True)
            else:
                x, delta = block(x, delta, rotary, causal, seen, None if cache is None else cache.layers[i])
        states: Tensor = self.norm(x, delta)[1]
        return states

    def _seen(self, documents: Tensor | None, causal: bool, mask: Tensor | None, x: Tensor) -> Tensor | Near | None:
        """What blocks are told: documents, a mask that narrows the view, and the window in rows that are longer than it."""
        window, length = self.attention_window, x.shape[1]
        if window is not None and length > window + 1:
            if mask is None:
                return Near(window, documents)
            from scdd.ops.documents.reference import window_mask  # for networks whose attention still grows

            places = torch.arange(length, device=x.device)
            mask = mask & window_mask(places, places, causal, window)
        return mask if documents is None else documents_seen(documents, causal, x, self.config.head_width, mask)

    def cache(self, capacity: int) -> Cache:
        """An empty key/value cache for `capacity` tokens a row."""
        return Cache(self.config.depth, capacity)

    @property
    def head(self) -> Head:
        """The vocabulary head's tensors: the embedding's own, if they are tied."""
        if self.eight_bit_head is not None:
            return self.eight_bit_head
        return Head(weight=(self.output or self.embedding).weight, vocab=self.vocab)

    @property
    def causal(self) -> bool:
        """As its shape says."""
        return self.config.causal

    @property
    def looks_at_tokens_alone(self) -> bool:
        """It is never told a time."""
        return True

    @property
    def attention_window(self) -> int | None:
        """As its shape says."""
        return self.config.attention_window

    @property
    def context(self) -> int | None:
        """As its shape says."""
        return self.config.context

    def description(self) -> dict[str, Any]:
        """Its kind and shape."""
        return {"kind": "llama", **asdict(self.config)}

    def load_weights(self, weights: Mapping[str, Tensor]) -> None:
        """See `Network`; the rotary tables, which are made and not stored, are made anew."""
        self.load_state_dict(weights, assign=True)
        self.rotary = self._rotary()

    def layers(self) -> Sequence[nn.Module]:
        """The blocks."""
        return list(self.blocks)

    def hidden_matrices(self) -> list[str]:
        """The four matrices of each block."""
        return [f"blocks.{i}.{name}.weight" for i in range(self.config.depth) for name in Block.MATRICES]

    def _rotary(self) -> Rotary:
        config = self.config
        return Rotary(config.head_width // 2, config.rotary_base, config.rotary_scaling)
