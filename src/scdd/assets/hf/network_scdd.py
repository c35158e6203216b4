"""The networks: a DiT with adaptive layer norms, and a decoder of the Llama family. B batch, L length, D width, V ids."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

ALIGNMENT = 128  # the head has its rows in multiples of this; those from V on are padding
FREQUENCIES, MAX_PERIOD = 256, 10_000.0  # of the time's features


def padded(size: int) -> int:
    """`size` rounded up to the head's alignment."""
    return -(-size // ALIGNMENT) * ALIGNMENT


def exact(layer: nn.Linear, x: Tensor) -> Tensor:
    """The layer in float32: for the few rows of conditioning, where it costs nothing."""
    return F.linear(x.float(), layer.weight.float(), layer.bias.float())


def gated(layer: nn.Linear, x: Tensor, gate: Tensor) -> Tensor:
    """gate · layer(x), gate [R, 1, D]; one row for the whole batch goes into the weights, as scdd has it."""
    if gate.shape[0] != 1:
        return gate.to(x.dtype) * layer(x)
    row = gate.flatten()
    bias = None if layer.bias is None else (layer.bias * row).to(x.dtype)
    return F.linear(x, (layer.weight * row[:, None]).to(x.dtype), bias)


# -- attention ----------------------------------------------------------------------------------------------------------


def angles(length: int, network: dict[str, Any], device: torch.device) -> tuple[Tensor, Tensor]:
    """cos and sin of the rotary angles, each [L, Dh/2], float32."""
    pairs = (network.get("head_width") or network["width"] // network["heads"]) // 2
    exponents = torch.arange(pairs, dtype=torch.float32, device=device) / pairs
    frequencies = network.get("rotary_base", 10_000.0) ** (-exponents)
    if (scaling := network.get("rotary_scaling")) is not None:
        frequencies = stretched(frequencies, scaling)
    turned = torch.arange(length, dtype=torch.float32, device=device)[:, None] * frequencies
    return turned.cos(), turned.sin()


def stretched(frequencies: Tensor, scaling: dict[str, Any]) -> Tensor:
    """Frequencies for longer texts; "llama3" leaves short waves as they are."""
    slow = frequencies / scaling["factor"]
    if scaling["kind"] == "linear":
        return slow
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    turns = scaling["original_length"] * frequencies / (2 * math.pi)
    share = ((turns - low) / (high - low)).clamp(0.0, 1.0)
    return (1 - share) * slow + share * frequencies


def rotate(x: Tensor, rotary: tuple[Tensor, Tensor]) -> Tensor:
    """Turn the channel pairs (i, i + Dh/2) of x [B, L, H, Dh], in float32."""
    cos, sin = (table[:, None, :] for table in rotary)
    a, b = x.float().chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1).to(x.dtype)


def attend(q: Tensor, k: Tensor, v: Tensor, causal: bool, mask: Tensor | None) -> Tensor:
    """Softmax attention of [B, L, H, Dh], heads of keys and values repeated where there are fewer: [B, L, H·Dh]."""
    groups = q.shape[2] // k.shape[2]
    if groups > 1:
        k, v = k.repeat_interleave(groups, dim=2), v.repeat_interleave(groups, dim=2)
    q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
    mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal and mask is None)
    return mixed.transpose(1, 2).flatten(2)


def seen(
    attention_mask: Tensor | None, causal: bool, window: int | None = None, like: Tensor | None = None
) -> Tensor | None:
    """True where query i may look at key j, [B or 1, 1, L, L]; padding sees padding, so that no softmax is empty.

    With a window, and tokens `like` [B, L] to see, those within it and the row's first one.
    """
    near = None
    if window is not None and like is not None and like.shape[1] > window + 1:
        at = torch.arange(like.shape[1], device=like.device)
        near = ((at[:, None] - at[None, :]).abs() <= window) | (at == 0)[None, :]
        near = (near.tril() if causal else near)[None, None]
    if attention_mask is None:
        return near
    real = attention_mask.bool()
    same = real[:, :, None] == real[:, None, :]
    same = (same.tril() if causal else same)[:, None]
    return same if near is None else same & near


# -- the DiT: adaptive layer norms --------------------------------------------------------------------------------------


class AdaptiveNorm(nn.Module):
    """Layer norm · (1 + scale) + shift, with a weight and no bias, in float32 inside."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width))

    def forward(self, x: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
        """x [B, L, D]; shift and scale [R, 1, D], R = 1 or B."""
        normal = F.layer_norm(x.float(), x.shape[-1:])
        return (normal * (self.weight.float() * (1 + scale)) + shift).to(x.dtype)


class TimeEmbedding(nn.Module):
    """One row of conditioning for each time, [R] → [R, C], float32."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = nn.Linear(FREQUENCIES, width)
        self.second = nn.Linear(width, width)

    def forward(self, time: Tensor) -> Tensor:
        """Cosine and sine features through two layers."""
        half = FREQUENCIES // 2
        exponents = torch.arange(half, dtype=torch.float32, device=time.device) / half
        turned = time.float()[:, None] * torch.exp(-math.log(MAX_PERIOD) * exponents)
        features = torch.cat((turned.cos(), turned.sin()), dim=-1)
        return F.silu(exact(self.second, F.silu(exact(self.first, features))))


class DiTBlock(nn.Module):
    """Attention and MLP, each behind an adaptive norm and a gate."""

    def __init__(self, network: dict[str, Any]) -> None:
        super().__init__()
        width, cond = network["width"], network.get("cond_width", 128)
        self.heads, self.causal = network["heads"], network.get("causal", False)
        self.norm1, self.norm2 = AdaptiveNorm(width), AdaptiveNorm(width)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.mlp_in = nn.Linear(width, 4 * width)
        self.mlp_out = nn.Linear(4 * width, width)
        self.modulation = nn.Linear(cond, 6 * width)

    def forward(self, x: Tensor, rotary: tuple[Tensor, Tensor], mask: Tensor | None, c: Tensor) -> Tensor:
        """x [B, L, D], c [R, C]."""
        shift1, scale1, gate1, shift2, scale2, gate2 = exact(self.modulation, c)[:, None].chunk(6, dim=-1)
        q, k, v = self.qkv(self.norm1(x, shift1, scale1)).unflatten(-1, (3, self.heads, -1)).unbind(2)
        x = x + gated(self.out, attend(rotate(q, rotary), rotate(k, rotary), v, self.causal, mask), gate1)
        hidden = F.gelu(self.mlp_in(self.norm2(x, shift2, scale2)), approximate="tanh")
        return x + gated(self.mlp_out, hidden, gate2)


class Output(nn.Module):
    """A head: weight [Vp, D], for a DiT a bias [Vp], and GIDD's bias towards the input token, where there is one."""

    def __init__(self, width: int, rows: int, bias: bool = False, input_bias: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(rows, width))
        self.register_parameter("bias", nn.Parameter(torch.empty(rows)) if bias else None)
        self.register_parameter("input_bias", nn.Parameter(torch.empty(1)) if input_bias else None)


# -- the Llama family ----------------------------------------------------------------------------------------------------


class RMSNorm(nn.Module):
    """x over the root of its mean square, with a weight, in float32 inside."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(width))

    def forward(self, x: Tensor) -> Tensor:
        """Along the last axis."""
        wide = x.float()
        inverse = torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return (wide * inverse * self.weight.float()).to(x.dtype)


class LlamaBlock(nn.Module):
    """Attention and gated MLP, each behind an RMSNorm; rows of `qkv` and `mlp_in`: queries, keys, values; gate, up."""

    def __init__(self, network: dict[str, Any]) -> None:
        super().__init__()
        width, head, inner, eps = (network[name] for name in ("width", "head_width", "mlp_width", "eps"))
        self.heads = (network["heads"], network["kv_heads"], network["kv_heads"])
        self.causal = network.get("causal", False)
        self.norm1, self.norm2 = RMSNorm(width, eps), RMSNorm(width, eps)
        self.qkv = nn.Linear(width, sum(self.heads) * head, bias=network.get("qkv_bias", False))
        self.q_norm = RMSNorm(head, eps) if network.get("qk_norm") else None
        self.k_norm = RMSNorm(head, eps) if network.get("qk_norm") else None
        self.out = nn.Linear(network["heads"] * head, width, bias=network.get("out_bias", False))
        self.mlp_in = nn.Linear(width, 2 * inner, bias=network.get("mlp_bias", False))
        self.mlp_out = nn.Linear(inner, width, bias=network.get("mlp_bias", False))

    def forward(self, x: Tensor, rotary: tuple[Tensor, Tensor], mask: Tensor | None) -> Tensor:
        """x [B, L, D]."""
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (sum(self.heads), -1)).split(self.heads, dim=2)
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        x = x + self.out(attend(rotate(q, rotary), rotate(k, rotary), v, self.causal, mask))
        gate, up = self.mlp_in(self.norm2(x)).chunk(2, dim=-1)
        return x + self.mlp_out(F.silu(gate) * up)
