"""Decoders as Hugging Face's transformers write them: config.json and names of weights."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from scdd.core.errors import UserError
from scdd.core.types import Vocab, padded
from scdd.models.options import LlamaConfig, RotaryScaling

FAMILIES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
MOST = {"num_hidden_layers": 1024, "vocab_size": 1 << 24}  # of one number in a config; sizes of layers have OTHERS
OTHERS = 1 << 20
SKIPPED = "rotary_emb.inv_freq"  # a table that old checkpoints carry


# -- configs ------------------------------------------------------------------------------------------------------------


def config_of(hf_config: Mapping[str, Any]) -> LlamaConfig:
    """The shape that a config.json describes, causal as it was trained; refuses what this package does not compute."""
    family = hf_config.get("model_type")
    if not isinstance(family, str) or family not in FAMILIES:
        raise UserError(
            f"model_type is {family!r:.60}: this version of scdd reads {', '.join(FAMILIES)}.", "model_type"
        )
    _refuse_others(hf_config)
    width, heads = _whole(hf_config, "hidden_size"), _whole(hf_config, "num_attention_heads")
    kv_heads = heads if family == "llama" else None
    biased = family in ("llama", "qwen3") and _flag(hf_config, "attention_bias")
    base, scaling = _rotary(hf_config)
    return LlamaConfig(
        depth=_whole(hf_config, "num_hidden_layers"),
        width=width,
        heads=heads,
        kv_heads=_whole(hf_config, "num_key_value_heads", kv_heads),
        head_width=_whole(hf_config, "head_dim", 128 if family == "qwen3" else width // heads),
        mlp_width=_whole(hf_config, "intermediate_size"),
        rotary_base=base,
        rotary_scaling=scaling,
        eps=_real(hf_config, "rms_norm_eps", 1e-6),
        qkv_bias=biased or family == "qwen2",
        out_bias=biased,
        mlp_bias=family == "llama" and _flag(hf_config, "mlp_bias"),
        qk_norm=family == "qwen3",
        tied=_flag(hf_config, "tie_word_embeddings"),
        causal=True,
    )


def _refuse_others(config: Mapping[str, Any]) -> None:
    """Refuse what would be computed otherwise than the config says."""
    if (act := config.get("hidden_act", "silu")) not in ("silu", "swish"):
        raise UserError(
            f"hidden_act is {act!r:.60}, and this network computes silu only: use another model.", "hidden_act"
        )
    if config.get("num_experts") or config.get("num_local_experts"):
        raise UserError("the model is a mixture of experts, which is not computed here: use a dense one.", "model")
    if config.get("quantization_config"):
        raise UserError("the model's weights are quantised: use the checkpoint that they were made from.", "model")
    if _window(config):
        window = config.get("sliding_window")
        raise UserError(
            f"sliding_window is {window!r:.60} and in use, and attention here sees the whole row: use another model.",
            "sliding_window",
        )


def _window(config: Mapping[str, Any]) -> bool:
    """Whether some layer sees less than the longest row that the model takes."""
    window, family = config.get("sliding_window"), config["model_type"]
    if family == "llama" or window is None:
        return False
    if family != "mistral" and not config.get("use_sliding_window", False):
        return False
    if isinstance(layers := config.get("layer_types"), list):
        return "sliding_attention" in layers
    if family != "mistral":
        return _whole(config, "max_window_layers", 28) < _whole(config, "num_hidden_layers")
    return _whole(config, "sliding_window") < _whole(config, "max_position_embeddings", OTHERS)


def _rotary(config: Mapping[str, Any]) -> tuple[float, RotaryScaling | None]:
    """(Base, stretching): transformers 5 has both in rope_parameters, older ones rope_theta and rope_scaling."""
    given = config.get("rope_parameters")
    named = "rope_scaling" if given is None else "rope_parameters"
    values = (config.get("rope_scaling") if given is None else given) or {}
    if not isinstance(values, Mapping):
        raise UserError(f"{named} is {values!r:.60}: it must be an object with rope_type in it.", named)
    values = dict(values)
    base = _real({"rope_theta": config.get("rope_theta"), **values}, "rope_theta", 10_000.0)
    for place in (config, values):
        if (part := place.get("partial_rotary_factor")) not in (None, 1, 1.0):
            raise UserError(
                f"partial_rotary_factor is {part!r:.60}, and whole heads are turned here: use another model."
            )
    kind = values.get("rope_type", values.get("type", "default"))
    if kind == "default":
        return base, None
    if kind == "linear":
        return base, RotaryScaling("linear", _real(values, "factor"))
    if kind != "llama3":
        raise UserError(
            f"the rotary scaling is {kind!r:.60}, and default, linear and llama3 are computed here: use another model.",
            named,
        )
    return base, RotaryScaling(
        "llama3",
        _real(values, "factor"),
        _real(values, "low_freq_factor"),
        _real(values, "high_freq_factor"),
        _whole(values, "original_max_position_embeddings"),
    )


def _whole(config: Mapping[str, Any], name: str, default: int | None = None) -> int:
    value = config.get(name)
    if value is None and default is not None:
        return default
    most = MOST.get(name, OTHERS)
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
        raise UserError(
            f"{name} is {value!r:.60} in the model's config: it must be a whole number from 1 to {most}.", name
        )
    return value


def _real(config: Mapping[str, Any], name: str, default: float | None = None) -> float:
    value = config.get(name)
    if value is None and default is not None:
        return default
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < 1e300:
        raise UserError(f"{name} is {value!r:.60} in the model's config: it must be a positive number.", name)
    return float(value)


def _flag(config: Mapping[str, Any], name: str) -> bool:
    value = config.get(name)
    if value is not None and not isinstance(value, bool):
        raise UserError(f"{name} is {value!r:.60} in the model's config: it must be true or false.", name)
    return bool(value)


# -- weights ------------------------------------------------------------------------------------------------------------


def _parts(config: LlamaConfig) -> Iterator[tuple[str, list[tuple[str, int]], int | None]]:
    """(Our name, theirs with the rows of each, columns or None for a vector) of everything but embedding and head."""
    head, width, mlp = config.head_width, config.width, config.mlp_width
    q, kv = config.heads * head, config.kv_heads * head
    for i in range(config.depth):
        ours, attention, gated = f"blocks.{i}", f"layers.{i}.self_attn", f"layers.{i}.mlp"
        yield f"{ours}.norm1.weight", [(f"layers.{i}.input_layernorm.weight", width)], None
        yield f"{ours}.norm2.weight", [(f"layers.{i}.post_attention_layernorm.weight", width)], None
        if config.qk_norm:
            yield f"{ours}.q_norm.weight", [(f"{attention}.q_norm.weight", head)], None
            yield f"{ours}.k_norm.weight", [(f"{attention}.k_norm.weight", head)], None
        matrices = (
            (
                "qkv",
                [(f"{attention}.{n}_proj", r) for n, r in (("q", q), ("k", kv), ("v", kv))],
                width,
                config.qkv_bias,
            ),
            ("out", [(f"{attention}.o_proj", width)], q, config.out_bias),
            ("mlp_in", [(f"{gated}.gate_proj", mlp), (f"{gated}.up_proj", mlp)], width, config.mlp_bias),
            ("mlp_out", [(f"{gated}.down_proj", width)], mlp, config.mlp_bias),
        )
        for name, theirs, columns, bias in matrices:
            yield f"{ours}.{name}.weight", [(f"{each}.weight", rows) for each, rows in theirs], columns
            if bias:
                yield f"{ours}.{name}.bias", [(f"{each}.bias", rows) for each, rows in theirs], None
    yield "norm.weight", [("norm.weight", width)], None


def from_hf(
    config: Mapping[str, Any], state: Mapping[str, Tensor], vocab: Vocab, known: int | None = None
) -> dict[str, Tensor]:
    """Our weights from theirs, in their dtype: matrices fused, rows for each id of `vocab`.

    The first `known` ids are the ones that the model was trained with (all of its rows unless told); the others are
    new, an added mask for one, and begin at the mean of those.
    """
    shape = config_of(config)
    prefix = "" if "embed_tokens.weight" in state else "model."
    left = {name for name in state if not name.endswith(SKIPPED)}

    def take(name: str, size: tuple[int, ...]) -> Tensor:
        if name not in state:
            raise UserError(f"the model's weights have no {name}, which its config asks for: get the whole checkpoint.")
        if (found := tuple(state[name].shape)) != size:
            raise UserError(f"{name} is {found} and its config says {size}: get weights and config of one model.")
        if not state[name].is_floating_point():
            raise UserError(f"{name} is of {state[name].dtype}: get the checkpoint that it was quantised from.")
        left.discard(name)
        return state[name]

    weights = {}
    for ours, theirs, columns in _parts(shape):
        taken = [take(prefix + name, (rows,) if columns is None else (rows, columns)) for name, rows in theirs]
        weights[ours] = taken[0].clone() if len(taken) == 1 else torch.cat(taken)
    size = _whole(config, "vocab_size"), shape.width
    rows = padded(vocab.size) if shape.tied else vocab.size
    weights["embedding.weight"] = _rows(take(f"{prefix}embed_tokens.weight", size), vocab, known, rows)
    if shape.tied:
        left.discard("lm_head.weight")
    else:
        weights["output.weight"] = _rows(take("lm_head.weight", size), vocab, known, padded(vocab.size))
    if left:
        raise UserError(f"the model's weights have {min(left)}, which its config does not speak of: use another model.")
    return weights


def _rows(table: Tensor, vocab: Vocab, known: int | None, rows: int) -> Tensor:
    """A table [rows, D] for the ids of `vocab`: known ids as they are, new ones their mean, zero beyond the last id."""
    count = min(table.shape[0] if known is None else known, table.shape[0], vocab.size)
    if count < 1:
        raise UserError(f"known is {known}: the model must have been trained with one id at least.", "known")
    made = table.new_zeros(rows, table.shape[1])
    made[:count] = table[:count]
    made[count : vocab.size] = table[:count].float().mean(0).to(table.dtype)
    return made
