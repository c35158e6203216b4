"""The DiT of the paper: adaptive layer norms, rotary attention, no dropout. B batch, L length, D width, V = K + 1."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from scdd.core import machine
from scdd.core.errors import UserError
from scdd.core.types import Head, Vocab, padded
from scdd.models.attention import Cache, Rotary, documents_seen, recomputed
from scdd.models.blocks import Block, Conditioned, Linear, Norm, TimeEmbedding, parts_of, uniform_
from scdd.models.network import FEW, Network
from scdd.models.options import DiTConfig
from scdd.ops.norm import add_norm

SIGMA_EPS = 1e-3  # σ(1) stays finite


class LMHead(nn.Module):
    """Weight [Vp, D] and bias [Vp], Vp = V rounded up to 128; zero at the start, as in the paper's code.

    There is no forward: `ops` multiplies, fused with the softmax, and takes the tensors from here.
    """

    input_bias: nn.Parameter | None

    def __init__(self, width: int, vocab: Vocab, input_bias: bool = False) -> None:
        super().__init__()
        self.vocab = vocab
        self.weight = nn.Parameter(torch.empty(padded(vocab.size), width))
        self.bias = nn.Parameter(torch.empty(padded(vocab.size)))
        # One axis: FSDP shards no scalars.
        self.register_parameter("input_bias", nn.Parameter(torch.empty(1)) if input_bias else None)

    def initialise(self) -> None:
        """All zero: every ordinary token equally likely."""
        nn.init.zeros_(self.weight)
        nn.init.zeros_(self.bias)
        if self.input_bias is not None:
            nn.init.zeros_(self.input_bias)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        """GIDD's networks carry the bias as a scalar, and converted ones did."""
        name = f"{prefix}input_bias"
        if name in state_dict:
            state_dict[name] = state_dict[name].reshape(1)
        super()._load_from_state_dict(state_dict, prefix, *rest)


class Known(NamedTuple):
    """Conditioning that never changes, as blocks and the last norm use it."""

    blocks: tuple[Conditioned, ...]
    scale: Tensor
    shift: Tensor


class DiT(Network):
    """x_θ(z_t, t) up to its last layer: `hidden` gives what `head` multiplies.

    `hidden` is a thin eager door in front of `forward`; `models.compiled.compile_network` compiles what is behind it,
    and the caller goes on using `hidden`.
    """

    kept: tuple[Any, Known | None] | None = None
    """What `_known` made last, and of which weights."""
    takes_eight_bits = True
    recompute = False
    """Keep only blocks' inputs and attention's outputs for the backward pass, and compute the rest once more there."""

    def __init__(self, config: DiTConfig, vocab: Vocab, generator: torch.Generator | None = None) -> None:
        super().__init__()
        self.config = config
        self.vocab = vocab
        self.embedding = nn.Embedding(vocab.size, config.width, _weight=torch.empty(vocab.size, config.width))
        self.time = TimeEmbedding(config.cond_width)
        self.rotary = Rotary(config.head_width // 2)
        self.blocks = nn.ModuleList(
            Block(config.width, config.heads, config.cond_width, config.causal) for _ in range(config.depth)
        )
        self.norm = Norm(config.width)
        self.modulation = Linear(config.cond_width, 2 * config.width)
        self.output = LMHead(config.width, vocab, config.input_bias)
        self.initialise(generator)

    def initialise(self, generator: torch.Generator | None = None) -> None:
        """Draw the weights; zero where the paper's code is: every modulation and the head."""
        uniform_(self.embedding.weight, self.config.width**-0.5, generator)
        self.time.initialise(generator)
        for block in self.blocks:
            assert isinstance(block, Block)
            block.initialise(generator)
        self.norm.initialise()
        self.modulation.initialise(zero=True)
        self.output.initialise()

    def hidden(
        self, z_t: Tensor, t: Tensor | None = None, documents: Tensor | None = None, cache: Cache | None = None
    ) -> Tensor:
        """The modulated final norm's output, [B, L, D] in the compute dtype, for tokens z_t [B, L] at times t [B].

        `documents` [B, L] numbers the document of each token, −1 for padding: a token attends only within its own.
        Rotary attention sees distances only, so a document reads the same wherever in the row it lies, and a padded
        batch equals its members alone. `cache` (causal networks) continues the row that the cache holds.
        """
        if not self.config.time_conditioning:
            t = None  # one type of argument for the compiled graph, whatever the caller hands in
        elif t is None:
            raise UserError("This network is conditioned on time: pass t, or build it with time_conditioning=False.")
        if cache is not None:
            if not self.config.causal or documents is not None:
                raise UserError("A cache needs a causal network and unpacked rows: set causal=True, documents=None.")
            cache.room_for(z_t.shape[1])
        if not torch.compiler.is_compiling():
            self.rotary.grow(z_t.shape[1] + (cache.length if cache is not None else 0))
        cast = torch.autocast(z_t.device.type, self.compute_dtype) if self.compute_dtype else nullcontext()
        few = self.eight_bit_head is not None and z_t.numel() <= FEW
        with machine.alone() if few else nullcontext(), cast:
            states: Tensor = self(z_t, t, documents, cache)
        return states

    def forward(
        self, z_t: Tensor, t: Tensor | None = None, documents: Tensor | None = None, cache: Cache | None = None
    ) -> Tensor:
        """The part that is compiled; see `hidden`."""
        known = self._known(t, z_t.device)
        c = self.time(self._time(t, z_t.device)) if known is None else known.shift  # nobody reads it then
        start = cache.length if cache is not None else 0
        rotary = self.rotary(start, start + z_t.shape[1])
        x = F.embedding(z_t, self.embedding.weight).to(self.compute_dtype or self.embedding.weight.dtype)
        mask = None
        if documents is not None:
            mask = documents_seen(documents, self.config.causal, x, self.config.head_width)
        delta = None
        again = self.recompute and torch.is_grad_enabled() and cache is None
        for i, block in enumerate(self.blocks):
            if again:
                x, delta = recomputed(block, x, delta, c, rotary, mask, None, None, True)
            else:
                own = None if cache is None else cache.layers[i]
                x, delta = block(x, delta, c, rotary, mask, own, None if known is None else known.blocks[i])
        if known is not None:
            return add_norm(x, delta, known.scale, known.shift)[1]
        shift, scale = parts_of(self.modulation.exact(c), 2)
        states: Tensor = self.norm(x, delta, shift, scale)[1]
        return states

    def _known(self, t: Tensor | None, device: torch.device) -> Known | None:
        """All conditioning, where it never changes: no time, and weights that nobody trains or compiles. On a GPU alone, where
        launches cost more than products; CPUs keep what they fold by themselves (`Linear._folded`)."""
        if t is not None or device.type != "cuda" or torch.is_grad_enabled() or torch.compiler.is_compiling():
            return None
        weights = list(self.parameters())
        if any(p.requires_grad or p.is_inference() for p in weights):
            return None
        key = tuple((p.data_ptr(), p._version) for p in weights)
        if self.kept is not None and self.kept[0] == key:
            return self.kept[1]
        made = self.known(device)
        if not torch.cuda.is_current_stream_capturing():  # what a capture allocates is the graph's
            self.kept = key, made
        return made

    def known(self, device: torch.device) -> Known | None:
        """What all blocks and the last norm make of the one row of conditioning that there is without time."""
        c, dtype = self.time(self._time(None, device)), self.compute_dtype or self.embedding.weight.dtype
        blocks = [block.conditioned(c, dtype) for block in self.blocks if isinstance(block, Block)]
        shift, scale = parts_of(self.modulation.exact(c), 2)
        every = tuple(each for each in blocks if each is not None)
        if len(every) < len(self.blocks):
            return None
        return Known(every, self.norm.weight.float() * (1 + scale), shift.contiguous())

    def cache(self, capacity: int) -> Cache:
        """An empty key/value cache for `capacity` tokens a row."""
        return Cache(self.config.depth, capacity)

    @property
    def head(self) -> Head:
        """The vocabulary head's tensors."""
        if self.eight_bit_head is not None:
            return self.eight_bit_head
        output = self.output
        return Head(weight=output.weight, vocab=self.vocab, bias=output.bias, input_bias=output.input_bias)

    @property
    def causal(self) -> bool:
        """As its shape says."""
        return self.config.causal

    @property
    def looks_at_tokens_alone(self) -> bool:
        """As its shape says."""
        return not self.config.time_conditioning

    @property
    def time_conditioning(self) -> bool:
        """As its shape says."""
        return self.config.time_conditioning

    def description(self) -> dict[str, Any]:
        """Its kind and shape."""
        return {"kind": "dit", **asdict(self.config)}

    def load_weights(self, weights: Mapping[str, Tensor]) -> None:
        """See `Network`; the rotary tables, which are made and not stored, are made anew."""
        self.load_state_dict(weights, assign=True)
        self.rotary = Rotary(self.config.head_width // 2)

    def layers(self) -> Sequence[nn.Module]:
        """The blocks."""
        return list(self.blocks)

    def hidden_matrices(self) -> list[str]:
        """The four matrices of each block."""
        return [f"blocks.{i}.{name}.weight" for i in range(self.config.depth) for name in Block.MATRICES]

    def _time(self, t: Tensor | None, device: torch.device) -> Tensor:
        """What the time embedding reads, [R]: one zero for the whole batch when there is no time conditioning."""
        if t is None:
            return torch.zeros(1, device=device)
        t = t.reshape(-1)
        return -torch.log1p(-(1 - SIGMA_EPS) * t) if self.config.time_input == "sigma" else t
