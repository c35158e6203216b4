"""Our weights as other projects write theirs, for tests that read them back: the package itself only reads."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from scdd.models.attention import BASE, tables
from scdd.models.dit import DiT
from scdd.models.llama import Llama
from scdd.models.options import LlamaConfig
from scdd.models.weights.authors import parameter_names
from scdd.models.weights.hf import FAMILIES, _parts

NEVER = -1e4  # GIDD's softmax includes the padding rows; exp of this is zero


def numbers(network: nn.Module) -> int:
    """How many are trained."""
    return sum(each.numel() for each in network.parameters())


def to_reference(model: DiT) -> dict[str, Tensor]:
    """Our weights in the reference layout, `backbone.` prefix and rotary buffer included, head of V rows."""
    own, size = model.state_dict(), model.vocab.size
    assert model.output.input_bias is None, "the reference layout has none"
    names = parameter_names(model.config.depth)
    out = {f"backbone.{theirs}": own[ours].detach().clone() for theirs, ours in names.items()}
    for name in ("backbone.output_layer.linear.weight", "backbone.output_layer.linear.bias"):
        out[name] = out[name][:size].clone()
    pairs = model.config.head_width // 2
    out["backbone.rotary_emb.inv_freq"] = BASE ** (-torch.arange(pairs, dtype=torch.float32) / pairs)
    return out


def to_gidd(model: DiT, length: int = 512) -> dict[str, Tensor]:
    """Our weights in GIDD's layout, with rotary buffers for rows of `length` tokens."""
    own, size = model.state_dict(), model.vocab.size
    names = parameter_names(model.config.depth)
    out = {theirs: own[ours].detach().clone() for theirs, ours in names.items()}
    embedding = torch.zeros_like(out["output_layer.linear.weight"])
    embedding[:size] = out["vocab_embed.embedding"]
    out["vocab_embed.embedding"] = embedding
    spare = out["output_layer.linear.weight"][size:].abs().amax(dim=1) == 0
    out["output_layer.linear.bias"][size:][spare] = NEVER
    cos, sin = tables(0, length, model.config.head_width // 2, torch.device("cpu"))
    for name, table, identity in (("cos_cached", cos, 1.0), ("sin_cached", sin, 0.0)):
        full = torch.cat((table, table), dim=-1)[None, :, None, None, :].repeat(1, 1, 3, 1, 1)
        full[:, :, 2] = identity  # values are not turned
        out[f"rotary_emb.{name}"] = full
    bias = model.output.input_bias
    out["logit_bias"] = torch.zeros(1, 1, 1) if bias is None else bias.detach().reshape(1, 1, 1).clone()
    return out


def to_hf(network: Llama, length: int = 2048) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """(config.json's entries, weights under their names): the member of the family with the network's shape.

    `length` is the longest row that the config will promise. The rows of the vocabulary include the mask's.
    """
    shape, weights = network.config, network.state_dict()
    state = {}
    for ours, theirs, _ in _parts(shape):
        for (name, _), part in zip(theirs, weights[ours].split([rows for _, rows in theirs]), strict=True):
            state[f"model.{name}"] = part.clone()
    size = network.vocab.size
    state["model.embed_tokens.weight"] = weights["embedding.weight"][:size].clone()
    if not shape.tied:
        state["lm_head.weight"] = weights["output.weight"][:size].clone()
    dtype = str(weights["embedding.weight"].dtype).removeprefix("torch.")
    return {**_hf_config(shape, length), "vocab_size": size, "torch_dtype": dtype}, state


def _hf_config(shape: LlamaConfig, length: int) -> dict[str, Any]:
    family = "qwen3" if shape.qk_norm else "qwen2" if shape.qkv_bias and not shape.out_bias else "llama"
    odd = shape.mlp_bias if family != "llama" else False
    assert not odd
    assert family == "qwen2" or shape.qkv_bias == shape.out_bias, "transformers has no decoder with these biases"
    scaling = shape.rotary_scaling
    stretch: dict[str, Any] | None = None
    if scaling is not None:
        stretch = {"rope_type": scaling.kind, "factor": scaling.factor}
        if scaling.kind == "llama3":
            stretch |= {
                "low_freq_factor": scaling.low_freq_factor,
                "high_freq_factor": scaling.high_freq_factor,
                "original_max_position_embeddings": scaling.original_length,
            }
    own = {"attention_bias": shape.qkv_bias} if family != "qwen2" else {}
    if family == "llama":
        own["mlp_bias"] = shape.mlp_bias
    return {
        "architectures": [FAMILIES[family]],
        "model_type": family,
        "hidden_size": shape.width,
        "intermediate_size": shape.mlp_width,
        "num_hidden_layers": shape.depth,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_width,
        "hidden_act": "silu",
        "max_position_embeddings": length,
        "rms_norm_eps": shape.eps,
        "rope_theta": shape.rotary_base,
        "rope_scaling": stretch,
        "tie_word_embeddings": shape.tied,
        **own,
    }
