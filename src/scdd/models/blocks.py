"""The parts of the network: linear maps, adaptive layer norm, the time embedding, and the transformer block."""

from __future__ import annotations

import contextlib
import math
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from scdd.models import attention
from scdd.models.attention import LayerCache, attend, fused, fuses, rotate, turned_in_place
from scdd.models.options import FREQUENCIES, MLP_RATIO
from scdd.ops.common import HAS_TRITON
from scdd.ops.norm import add_norm

MAX_PERIOD = 10_000.0


def uniform_(tensor: Tensor, bound: float, generator: torch.Generator | None) -> None:
    """Fill with U(−bound, bound), drawn where the generator lives: a CPU seed gives the same weights on any device."""
    if tensor.is_meta:
        return
    with torch.no_grad():
        if generator is None or generator.device == tensor.device:
            tensor.uniform_(-bound, bound, generator=generator)
        else:
            drawn = torch.empty(tensor.shape, dtype=tensor.dtype, device=generator.device)
            tensor.copy_(drawn.uniform_(-bound, bound, generator=generator))


class Linear(nn.Linear):
    """A linear map whose weights wait for `initialise`: building a network draws nothing from global state."""

    _kept: tuple[Any, Tensor, tuple[Tensor, Tensor | None]] | None = None  # see `_folded`

    def reset_parameters(self) -> None:
        """Left to `initialise`."""

    def initialise(self, generator: torch.Generator | None = None, *, zero: bool = False) -> None:
        """PyTorch's own default, U(±1/√fan_in) for weight and bias, or zero."""
        for parameter in (self.weight, self.bias):
            if parameter is None:
                continue
            if zero:
                nn.init.zeros_(parameter)
            else:
                uniform_(parameter, 1 / math.sqrt(self.in_features), generator)

    def exact(self, x: Tensor) -> Tensor:
        """The map in float32 even under autocast: for the few conditioning rows, where it costs nothing."""
        bias = None if self.bias is None else self.bias.float()
        off = torch.autocast(x.device.type, enabled=False) if not x.is_meta else contextlib.nullcontext()
        with off:
            return F.linear(x.float(), self.weight.float(), bias)

    def gated(self, x: Tensor, gate: Tensor) -> Tensor:
        """gate · (W x + b), gate [R, 1, D] with R = 1 or B.

        One row for the whole batch (no time conditioning) is folded into the weights: (gate W) x + gate b. That spares
        an activation-sized product forward, and backward both a saved activation and a sum over all tokens.
        """
        if gate.shape[0] != 1:
            y: Tensor = self(x)
            return gate.to(y.dtype) * y
        return self.product(x, *self._folded(gate.reshape(-1), x.dtype))

    def product(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """The map with a weight and a bias that were made of its own."""
        return F.linear(x, weight, bias)

    def _folded(self, gate: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor | None]:
        """(gate W, gate b); kept on a CPU for weights that nobody trains, where folding is a good part of a short text's time."""
        weight, bias = self.weight, self.bias
        if torch.compiler.is_compiling() or weight.requires_grad or weight.device.type != "cpu":
            return self._fold(gate, dtype)
        if weight.is_inference():  # counts no versions
            return self._fold(gate, dtype)
        known = (weight.data_ptr(), weight._version, None if bias is None else bias._version, dtype)
        if self._kept is None or self._kept[0] != known or not torch.equal(self._kept[1], gate):
            self._kept = known, gate.clone(), self._fold(gate, dtype)
        return self._kept[2]

    def _fold(self, gate: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor | None]:
        bias = None if self.bias is None else (self.bias * gate).to(dtype)
        return (self.weight * gate[:, None]).to(dtype), bias


def gated(layer: nn.Module, x: Tensor, gate: Tensor) -> Tensor:
    """gate · layer(x); a linear map folds the gate in, one with something beside it (LoRA) is called as it is."""
    fold = getattr(type(layer), "gated", None)  # of the map itself, never of one inside it
    if fold is not None:
        folded: Tensor = fold(layer, x, gate)
        return folded
    y: Tensor = layer(x)
    return gate.to(y.dtype) * y


def gelu_of(layer: nn.Module, x: Tensor) -> Tensor:
    """gelu(layer(x)), the tanh one. On a GPU it is part of the matrix product, where the library has it, or one kernel with the
    bias, each way, while training."""
    if attention.FUSED and type(layer) is Linear and x.is_cuda and HAS_TRITON and torch.is_grad_enabled():
        from scdd.ops.gelu import bias_gelu

        return bias_gelu(F.linear(x, layer.weight), layer.bias)
    if not _ends_in_gelu(layer, x):
        return F.gelu(layer(x), approximate="tanh")
    assert isinstance(layer, Linear)
    rows = torch._addmm_activation(layer.bias, x.flatten(0, -2), layer.weight.T, use_gelu=True)
    return rows.view(*x.shape[:-1], -1)


def _ends_in_gelu(layer: nn.Module, x: Tensor) -> bool:
    """On a GPU, where nobody wants gradients (the operation has none) or compiles. A CPU's is the other GELU, by erf."""
    if not x.is_cuda or torch.is_grad_enabled() or torch.compiler.is_compiling():
        return False
    half = x.dtype in (torch.bfloat16, torch.float16)
    return half and type(layer) is Linear and layer.bias is not None and layer.weight.dtype == x.dtype


def parts_of(rows: Tensor, count: int) -> tuple[Tensor, ...]:
    """Rows [R, count·D] as `count` tensors [R, 1, D]."""
    return rows.view(rows.shape[0], 1, count, -1).unbind(2)


class Norm(nn.Module):
    """Add to the stream, then layer norm with a weight and no bias, then · (1 + scale) + shift, in float32 inside.

    The weight is folded into (1 + scale) first, so that one product per activation remains, and one sum over tokens
    in the backward pass serves both.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width))

    def initialise(self) -> None:
        """Weight one."""
        nn.init.ones_(self.weight)

    def forward(self, x: Tensor, delta: Tensor | None, shift: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
        """(x + delta, its norm) of x [B, L, D]; shift and scale [R, 1, D] float32; in x's dtype again."""
        return add_norm(x, delta, self.weight.float() * (1 + scale), shift)


class TimeEmbedding(nn.Module):
    """c = SiLU(MLP(cos ‖ sin features of the time)), [R] → [R, C], float32."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = Linear(FREQUENCIES, width)
        self.second = Linear(width, width)

    def initialise(self, generator: torch.Generator | None = None) -> None:
        """PyTorch's default in both layers."""
        self.first.initialise(generator)
        self.second.initialise(generator)

    def forward(self, time: Tensor) -> Tensor:
        """One row of conditioning for each time."""
        half = FREQUENCIES // 2
        exponents = torch.arange(half, dtype=torch.float32, device=time.device) / half
        angles = time.float()[:, None] * torch.exp(-math.log(MAX_PERIOD) * exponents)
        features = torch.cat((angles.cos(), angles.sin()), dim=-1)
        return F.silu(self.second.exact(F.silu(self.first.exact(features))))


class Conditioned(NamedTuple):
    """What a block makes of conditioning that never changes: its norms' affine parts, and its gates folded into weights."""

    scale1: Tensor
    shift1: Tensor
    out: tuple[Tensor, Tensor | None]
    scale2: Tensor
    shift2: Tensor
    mlp_out: tuple[Tensor, Tensor | None]


class Block(nn.Module):
    """Attention and MLP, each behind an adaptive norm and a gate; both gates start at zero.

    The residual stream x keeps the compute dtype (bfloat16 under autocast): float32 there would double what every
    norm and sum reads and writes, forward and backward, and what is saved for the backward pass. Sums and statistics
    are float32 inside each kernel. What a layer adds to the stream is added by the norm that follows (`delta`), in the
    same pass over memory.
    """

    MATRICES: ClassVar[tuple[str, ...]] = ("qkv", "out", "mlp_in", "mlp_out")  # from activations to activations

    def __init__(self, width: int, heads: int, cond_width: int, causal: bool) -> None:
        super().__init__()
        self.heads = heads
        self.causal = causal
        self.norm1 = Norm(width)
        self.qkv = Linear(width, 3 * width, bias=False)
        self.out = Linear(width, width, bias=False)
        self.norm2 = Norm(width)
        self.mlp_in = Linear(width, MLP_RATIO * width)
        self.mlp_out = Linear(MLP_RATIO * width, width)
        self.modulation = Linear(cond_width, 6 * width)

    def initialise(self, generator: torch.Generator | None = None) -> None:
        """PyTorch's default, with a zero modulation: the block starts as the identity."""
        self.norm1.initialise()
        self.norm2.initialise()
        for layer in (self.qkv, self.out, self.mlp_in, self.mlp_out):
            layer.initialise(generator)
        self.modulation.initialise(zero=True)

    def forward(
        self,
        x: Tensor,
        delta: Tensor | None,
        c: Tensor,
        rotary: tuple[Tensor, Tensor],
        mask: Tensor | None = None,
        cache: LayerCache | None = None,
        known: Conditioned | None = None,
        lean: bool = False,
    ) -> tuple[Tensor, Tensor]:
        """Stream x and what is to be added to it, both [B, L, D], c [R, C] with R = 1 or B, rotary tables [L, Dh/2].

        `known` is what `conditioned` made of c, where that was done before. `lean` keeps less for the backward pass than
        fused attention does.
        """
        if known is not None:
            x, normal = add_norm(x, delta, known.scale1, known.shift1)
            mixed = F.linear(self._attention(normal, rotary, mask, cache), *known.out)
            x, normal = add_norm(x, mixed, known.scale2, known.shift2)
            return x, F.linear(gelu_of(self.mlp_in, normal), *known.mlp_out)
        shift1, scale1, gate1, shift2, scale2, gate2 = parts_of(self.modulation.exact(c), 6)
        x, normal = self.norm1(x, delta, shift1, scale1)
        mixed = self._attention(normal, rotary, mask, cache, lean)
        x, normal = self.norm2(x, gated(self.out, mixed, gate1), shift2, scale2)
        return x, gated(self.mlp_out, gelu_of(self.mlp_in, normal), gate2)

    def conditioned(self, c: Tensor, dtype: torch.dtype) -> Conditioned | None:
        """Once and for all, for one row of conditioning; None where something beside a linear map stands in its place (LoRA)."""
        out, mlp_out = self.out, self.mlp_out
        if type(out) is not Linear or type(mlp_out) is not Linear:
            return None
        shift1, scale1, gate1, shift2, scale2, gate2 = parts_of(self.modulation.exact(c), 6)
        return Conditioned(
            self.norm1.weight.float() * (1 + scale1),
            shift1.contiguous(),
            out._fold(gate1.reshape(-1), dtype),
            self.norm2.weight.float() * (1 + scale2),
            shift2.contiguous(),
            mlp_out._fold(gate2.reshape(-1), dtype),
        )

    def _attention(
        self,
        x: Tensor,
        rotary: tuple[Tensor, Tensor],
        mask: Tensor | None,
        cache: LayerCache | None,
        lean: bool = False,
    ) -> Tensor:
        batch, length, width = x.shape
        heads = (self.heads, self.heads, width // self.heads)
        if type(self.qkv) is Linear and not lean and fuses(x, heads, self.causal, mask, cache):
            return fused(x, self.qkv, rotary, heads)
        every = self.qkv(x).view(batch, length, 3, self.heads, -1)
        q, k, v = every.unbind(2)
        if turned_in_place(every.flatten(2, 3), 2 * self.heads, *rotary):
            q, k = q.transpose(1, 2), k.transpose(1, 2)
        else:
            q, k = rotate(q, *rotary).transpose(1, 2), rotate(k, *rotary).transpose(1, 2)
        mixed = attend(q, k, v.transpose(1, 2), self.causal, mask, cache)
        return mixed.transpose(1, 2).reshape(batch, length, -1)
