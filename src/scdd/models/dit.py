"""The DiT of the paper: adaptive layer norms, rotary attention, no dropout. B batch, L length, D width, V = K + 1."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from scdd.core.errors import UserError
from scdd.core.types import Head, Vocab
from scdd.models.attention import Cache, document_mask
from scdd.models.blocks import Block, Linear, Norm, TimeEmbedding, parts_of, uniform_
from scdd.models.heads import LMHead, dense_logits
from scdd.models.rotary import Rotary

SIGMA_EPS = 1e-3  # σ(1) stays finite


@dataclass(frozen=True)
class DiTConfig:
    """The shape of the network.

    `time_input` is what the time embedding reads: "sigma", −log(1 − (1 − 1e-3) t), as SCDD and MDLM do, or "t", as
    GIDD does; without `time_conditioning` it reads zero for every row. `input_bias` adds one learnt number, GIDD's, to
    the input token's logit. `causal` makes the autoregressive variant.
    """

    depth: int
    width: int
    heads: int
    cond_width: int = 128
    time_conditioning: bool = False
    time_input: str = "sigma"
    causal: bool = False
    input_bias: bool = False

    def __post_init__(self) -> None:
        if min(self.depth, self.width, self.heads, self.cond_width) < 1:
            raise UserError("DiTConfig needs depth, width, heads and cond_width of at least 1.")
        if self.width % (2 * self.heads):
            raise UserError(
                f"DiTConfig.width = {self.width} does not split into {self.heads} heads of an even number of channels: "
                f"choose a multiple of {2 * self.heads}."
            )
        if self.time_input not in ("sigma", "t"):
            raise UserError(f'DiTConfig.time_input is "{self.time_input}": choose "sigma" or "t".')
        if self.causal and self.time_conditioning:
            raise UserError(
                "An autoregressive network has no time: set time_conditioning=False, or causal=False."
            )

    @property
    def head_width(self) -> int:
        """Channels per attention head, Dh."""
        return self.width // self.heads


SIZES = {
    "nano": DiTConfig(depth=4, width=128, heads=4),
    "mini": DiTConfig(depth=6, width=384, heads=6),
    "tiny": DiTConfig(depth=8, width=512, heads=8),
    "small": DiTConfig(depth=12, width=768, heads=12),
    "medium": DiTConfig(depth=24, width=1024, heads=16),
}


class DiT(nn.Module):
    """x_θ(z_t, t) up to its last layer: `hidden` gives what `head` multiplies.

    `hidden` is a thin eager door in front of `forward`; `models.compiled.compile_network` compiles what is behind it,
    and the caller goes on using `hidden`.
    """

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
        self,
        z_t: Tensor,
        t: Tensor | None = None,
        documents: Tensor | None = None,
        cache: Cache | None = None,
    ) -> Tensor:
        """The modulated final norm's output, [B, L, D] in the compute dtype, for tokens z_t [B, L] at times t [B].

        `documents` [B, L] numbers the document of each token, −1 for padding: a token attends only within its own.
        Rotary attention sees distances only, so a document reads the same wherever in the row it lies, and a padded
        batch equals its members alone. `cache` (causal networks) continues the row that the cache holds.
        """
        if not self.config.time_conditioning:
            t = None  # one type of argument for the compiled graph, whatever the caller hands in
        elif t is None:
            raise UserError(
                "This network is conditioned on time: pass t, or build it with time_conditioning=False."
            )
        if cache is not None:
            if not self.config.causal or documents is not None:
                raise UserError(
                    "A cache needs a causal network and unpacked rows: set causal=True, documents=None."
                )
            cache.room_for(z_t.shape[1])
        if not torch.compiler.is_compiling():
            self.prepare(z_t.shape[1] + (cache.length if cache is not None else 0))
        states: Tensor = self(z_t, t, documents, cache)
        return states

    def forward(
        self,
        z_t: Tensor,
        t: Tensor | None = None,
        documents: Tensor | None = None,
        cache: Cache | None = None,
    ) -> Tensor:
        """The part that is compiled; see `hidden`."""
        c = self.time(self._time(t, z_t.device))
        start = cache.length if cache is not None else 0
        rotary = self.rotary(start, start + z_t.shape[1])
        mask = None if documents is None else document_mask(documents, self.config.causal)
        x = F.embedding(z_t, self.embedding.weight).to(self._compute_dtype())
        delta = None
        for i, block in enumerate(self.blocks):
            x, delta = block(x, delta, c, rotary, mask, None if cache is None else cache.layers[i])
        shift, scale = parts_of(self.modulation.exact(c), 2)
        states: Tensor = self.norm(x, delta, shift, scale)[1]
        return states

    def prepare(self, length: int) -> None:
        """Make room in the rotary tables; `hidden` does it by itself, `forward` alone does not."""
        self.rotary.grow(length)

    def cache(self, capacity: int) -> Cache:
        """An empty key/value cache for `capacity` tokens a row."""
        return Cache(self.config.depth, capacity)

    @property
    def head(self) -> Head:
        """The vocabulary head's tensors."""
        return self.output.tensors

    def logits(self, z_t: Tensor, t: Tensor | None = None, documents: Tensor | None = None) -> Tensor:
        """[B, L, V] float32 with −inf at the mask. For tests and small work: hot paths use `hidden`, `head` and ops."""
        return dense_logits(self.hidden(z_t, t, documents), self.head, z_t)

    def num_parameters(self, embeddings: bool = True) -> int:
        """How many numbers are trained; `embeddings=False` leaves out the embedding and the head."""
        total = sum(p.numel() for p in self.parameters())
        outer = self.embedding.weight.numel() + self.output.weight.numel() + self.output.bias.numel()
        return total if embeddings else total - outer

    def _time(self, t: Tensor | None, device: torch.device) -> Tensor:
        """What the time embedding reads, [R]: one zero for the whole batch when there is no time conditioning."""
        if t is None:
            return torch.zeros(1, device=device)
        t = t.reshape(-1)
        return -torch.log1p(-(1 - SIGMA_EPS) * t) if self.config.time_input == "sigma" else t

    def _compute_dtype(self) -> torch.dtype:
        """Autocast's dtype where it is on, else the weights'."""
        weight = self.embedding.weight
        if not weight.is_meta and torch.is_autocast_enabled(weight.device.type):
            dtype: torch.dtype = torch.get_autocast_dtype(weight.device.type)
            return dtype
        return weight.dtype
