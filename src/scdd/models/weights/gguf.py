"""GGUF files: a decoder's shape, weights and tokenizer, under Hugging Face's names.

Weights are dequantised one at a time. llama.cpp turns neighbouring channels where everybody else turns halves, so files
of architecture llama hold the rows of queries and keys in another order, which is undone here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from scdd.core.errors import UserError, missing_extra, reason
from scdd.models.weights.files import Lazy, Loader
from scdd.models.weights.gguf_format import MAGIC, StoredTensor, read
from scdd.models.weights.hf import config_of

ARCHITECTURES = ("llama", "qwen2", "qwen3")  # Mistral's files say llama
_TOP = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_BLOCK = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
}
_STRETCH = "rope_freqs.weight"  # llama3's rotary scaling, as a divisor for each frequency
_NAME = re.compile(r"(?:blk\.(\d+)\.)?(\w+)\.(weight|bias)")


@dataclass(frozen=True)
class GgufModel:
    """What a file says: `config` as a config.json would, `facts` are its metadata."""

    config: dict[str, Any]
    weights: Lazy
    facts: Mapping[str, Any]


def is_gguf(file: Path) -> bool:
    """Whether a file begins as GGUF files do."""
    with open(file, "rb") as handle:
        return handle.read(len(MAGIC)) == MAGIC


def read_gguf(file: Path) -> GgufModel:
    """A model of one of the architectures."""
    facts, tensors = _opened(file)
    config = _config(facts, {name: tensor.shape for name, tensor in tensors.items()}, file)
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    loaders: dict[str, Loader] = {}
    for stored, tensor in tensors.items():
        if stored == _STRETCH:
            config["rope_scaling"] = _llama3(_loader(stored, tensor, None)(), config, file)
            continue
        match = _NAME.fullmatch(stored)
        known = match is not None and match[2] in (_TOP if match[1] is None else _BLOCK)
        if match is None or not known:
            raise UserError(f"{file} has a tensor {stored}, which no network here has: take another model.")
        name = _TOP[match[2]] if match[1] is None else f"model.layers.{match[1]}.{_BLOCK[match[2]]}"
        turned = heads.get(match[2]) if config["model_type"] == "llama" else None
        loaders[f"{name}.{match[3]}"] = _loader(stored, tensor, turned)
    return GgufModel(config, Lazy(loaders), facts)


def metadata(file: Path) -> dict[str, Any]:
    """Only what a file says beside its weights."""
    return _opened(file)[0]


def _opened(file: Path) -> tuple[dict[str, Any], dict[str, StoredTensor]]:
    try:
        from gguf.constants import GGML_QUANT_SIZES
    except ImportError as error:
        raise UserError(missing_extra(f"{file} needs the gguf package", "gguf")) from error
    try:
        return read(file, {int(kind): size for kind, size in GGML_QUANT_SIZES.items()})
    except (OSError, ValueError) as error:
        raise UserError(f"{file} cannot be read as a GGUF file ({reason(error)}): fetch it again.") from error


def _config(facts: Mapping[str, Any], tensors: Mapping[str, tuple[int, ...]], file: Path) -> dict[str, Any]:
    kind = facts.get("general.architecture")
    if kind not in ARCHITECTURES:
        raise UserError(f"{file} is of architecture {kind!s:.60}: {', '.join(ARCHITECTURES)} can be read.")

    def number(name: str, default: Any = None) -> Any:
        value = facts.get(f"{kind}.{name}", default)
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not abs(value) < 1e300:
            raise UserError(f"{file} does not say {kind}.{name} as one number: it is damaged, or of another network.")
        return value

    heads, width = number("attention.head_count"), number("embedding_length")
    if heads < 1 or width < 1 or len(tensors.get("token_embd.weight", ())) != 2:
        raise UserError(f"{file} says {heads} heads and a width of {width}, or has no embedding: it is damaged.")
    config = {
        "model_type": kind,
        "vocab_size": tensors["token_embd.weight"][0],
        "num_hidden_layers": number("block_count"),
        "hidden_size": width,
        "intermediate_size": number("feed_forward_length"),
        "num_attention_heads": heads,
        "num_key_value_heads": number("attention.head_count_kv", heads),
        "head_dim": number("attention.key_length", width // heads),
        "rms_norm_eps": round(number("attention.layer_norm_rms_epsilon", 1e-5), 10),  # a float32, as it was meant
        "rope_theta": number("rope.freq_base", 10_000.0),
        "max_position_embeddings": number("context_length", 2048),
        "tie_word_embeddings": "output.weight" not in tensors,
        "attention_bias": kind == "llama" and "blk.0.attn_q.bias" in tensors,
        "hidden_act": "silu",
    }
    if number("rope.dimension_count", config["head_dim"]) != config["head_dim"]:
        raise UserError(f"{file} turns a part of each head only, which no network here does: take another model.")
    stretch = facts.get(f"{kind}.rope.scaling.type", "none")
    if stretch == "linear":
        config["rope_scaling"] = {"rope_type": "linear", "factor": number("rope.scaling.factor")}
    elif stretch != "none":
        raise UserError(f"{file} stretches its rotary positions by {stretch!s:.60}: linear and llama3's can be read.")
    config_of(config)  # refuses what is no size of a network
    return config


def _loader(name: str, tensor: StoredTensor, heads: int | None) -> Loader:
    def load() -> Tensor:
        from gguf.constants import GGMLQuantizationType
        from gguf.quants import dequantize

        try:
            values = np.array(dequantize(tensor.content, GGMLQuantizationType(tensor.kind)), dtype=np.float32)
            values = values.reshape(tensor.shape)
            if heads is not None:  # [heads, pairs, 2, …] → [heads, 2, pairs, …]
                apart = values.reshape(heads, -1, 2, *values.shape[1:])
                values = np.ascontiguousarray(apart.swapaxes(1, 2).reshape(values.shape))
        except (ValueError, TypeError, IndexError, ZeroDivisionError, NotImplementedError) as error:
            raise UserError(f"The tensor {name} cannot be read ({reason(error)}): take another file.") from error
        return torch.from_numpy(values)

    return load


def _llama3(divisors: Tensor, config: Mapping[str, Any], file: Path) -> dict[str, Any]:
    """The scaling whose divisors these are: llama.cpp keeps them, and not the four numbers that made them."""
    own = UserError(f"{file} stretches its rotary positions in a way of its own: take another model.")
    pairs = config["head_dim"] // 2
    if divisors.shape != (pairs,) or not pairs:
        raise own
    scaling = {
        "rope_type": "llama3", "factor": float(divisors.max()), "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }  # fmt: skip
    waves = 2 * torch.pi * config["rope_theta"] ** (torch.arange(pairs, dtype=torch.float64) / pairs)
    smooth = ((8192 / waves - 1.0) / 3.0).clamp(0.0, 1.0)
    expected = 1 / ((1 - smooth) / scaling["factor"] + smooth)
    if not torch.allclose(divisors.double(), expected, rtol=1e-3):
        raise own
    return scaling
