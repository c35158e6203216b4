"""The authors' networks, stated again in plain torch over their own weight names, for tests of conversion.

Written from the facts of the layout, one formula at a time, with nothing shared with `scdd.models`.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

State = dict[str, Tensor]


def random_state(
    rows: int, width: int, depth: int, cond: int, heads: int, seed: int = 0, adaptive: bool = True
) -> State:
    """Random weights under the reference names, in the order of the reference network's parameters."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator) / shape[-1] ** 0.5

    state = {"vocab_embed.embedding": draw(rows, width) * 3}
    if adaptive:
        state |= {"sigma_map.mlp.0.weight": draw(cond, 256), "sigma_map.mlp.0.bias": draw(cond)}
        state |= {"sigma_map.mlp.2.weight": draw(cond, cond), "sigma_map.mlp.2.bias": draw(cond)}
    for i in range(depth):
        block = {
            "norm1.weight": 1 + draw(width),
            "attn_qkv.weight": draw(3 * width, width),
            "attn_out.weight": draw(width, width),
            "norm2.weight": 1 + draw(width),
            "mlp.0.weight": draw(4 * width, width),
            "mlp.0.bias": draw(4 * width),
            "mlp.2.weight": draw(width, 4 * width),
            "mlp.2.bias": draw(width),
        }
        if adaptive:
            block |= {"adaLN_modulation.weight": draw(6 * width, cond), "adaLN_modulation.bias": draw(6 * width)}
        state |= {f"blocks.{i}.{name}": value for name, value in block.items()}
    state |= {"output_layer.norm_final.weight": 1 + draw(width)}
    state |= {"output_layer.linear.weight": draw(rows, width), "output_layer.linear.bias": draw(rows)}
    if adaptive:
        state |= {"output_layer.adaLN_modulation.weight": draw(2 * width, cond)}
        state |= {"output_layer.adaLN_modulation.bias": draw(2 * width)}
    pairs = width // heads // 2
    state["rotary_emb.inv_freq"] = 10_000 ** (-torch.arange(pairs) / pairs)
    return state


def logits(state: State, z: Tensor, time: Tensor, heads: int, causal: bool = False) -> Tensor:
    """What the network of these weights says about tokens z [B, L] when told `time` [B]."""
    depth = 1 + max(int(name.split(".")[1]) for name in state if name.startswith("blocks."))
    x = state["vocab_embed.embedding"][z]
    c = _conditioning(state, time) if "sigma_map.mlp.0.weight" in state else None
    for i in range(depth):
        block = {k.removeprefix(f"blocks.{i}."): v for k, v in state.items() if k.startswith(f"blocks.{i}.")}
        x = _block(block, x, c, heads, causal)
    h = _layer_norm(x, state["output_layer.norm_final.weight"])
    if c is not None:
        shift, scale = _affine(state, "output_layer.adaLN_modulation", c)[:, None].chunk(2, dim=2)
        h = h * (1 + scale) + shift
    return h @ state["output_layer.linear.weight"].T + state["output_layer.linear.bias"]


def _affine(state: State, name: str, x: Tensor) -> Tensor:
    return x @ state[f"{name}.weight"].T + state[f"{name}.bias"]


def _silu(x: Tensor) -> Tensor:
    return x * torch.sigmoid(x)


def _conditioning(state: State, time: Tensor) -> Tensor:
    frequencies = torch.exp(-math.log(10_000) * torch.arange(128) / 128)
    angles = time.float()[:, None] * frequencies
    features = torch.cat((torch.cos(angles), torch.sin(angles)), dim=1)
    return _silu(_affine(state, "sigma_map.mlp.2", _silu(_affine(state, "sigma_map.mlp.0", features))))


def _layer_norm(x: Tensor, weight: Tensor) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    return centred / torch.sqrt(centred.square().mean(-1, keepdim=True) + 1e-5) * weight


def _turn(x: Tensor) -> Tensor:
    """Rotary embedding of [B, H, L, Dh]: channels i and i + Dh/2 form the pair of frequency i."""
    length, pairs = x.shape[2], x.shape[3] // 2
    angle = torch.arange(length)[:, None] * 10_000.0 ** (-torch.arange(pairs) / pairs)
    turned = torch.complex(x[..., :pairs], x[..., pairs:]) * torch.polar(torch.ones_like(angle), angle)
    return torch.cat((turned.real, turned.imag), dim=-1)


def _block(w: State, x: Tensor, c: Tensor | None, heads: int, causal: bool) -> Tensor:
    batch, length, width = x.shape
    if c is None:
        zero, one = torch.zeros(1, 1, width), torch.ones(1, 1, width)
        shift1, scale1, gate1, shift2, scale2, gate2 = zero, zero, one, zero, zero, one
    else:
        parts = _affine(w, "adaLN_modulation", c)[:, None].chunk(6, dim=2)
        shift1, scale1, gate1, shift2, scale2, gate2 = parts
    h = _layer_norm(x, w["norm1.weight"]) * (1 + scale1) + shift1
    qkv = (h @ w["attn_qkv.weight"].T).view(batch, length, 3, heads, width // heads)
    q, k, v = (qkv[:, :, j].transpose(1, 2) for j in range(3))
    scores = _turn(q) @ _turn(k).transpose(2, 3) / math.sqrt(width // heads)
    if causal:
        scores = scores + torch.full((length, length), -math.inf).triu(1)
    mixed = (scores.softmax(-1) @ v).transpose(1, 2).reshape(batch, length, width)
    x = x + gate1 * (mixed @ w["attn_out.weight"].T)
    h = _affine(w, "mlp.0", _layer_norm(x, w["norm2.weight"]) * (1 + scale2) + shift2)
    h = 0.5 * h * (1 + torch.tanh(math.sqrt(2 / math.pi) * (h + 0.044715 * h**3)))
    return x + gate2 * _affine(w, "mlp.2", h)
