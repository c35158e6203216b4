"""The authors' checkpoint layouts and ours: SCDD/MDLM's reference network and GIDD's."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor

from scdd.core.errors import UserError
from scdd.core.types import Vocab, padded
from scdd.models.dit import DiT
from scdd.models.options import DiTConfig

MOST_ROWS, MOST_COLUMNS = 1 << 24, 1 << 17  # of a matrix that is believed


class Loadable(Protocol):
    """A tensor that may still be on disk."""

    @property
    def shape(self) -> Sequence[int]:
        """Its size in each dimension."""
        ...


def parameter_names(depth: int) -> dict[str, str]:
    """Reference name → our name, in the order of the reference network's `parameters()`."""
    names = {"vocab_embed.embedding": "embedding.weight"}
    for theirs, ours in (("sigma_map.mlp.0", "time.first"), ("sigma_map.mlp.2", "time.second")):
        names |= {f"{theirs}.weight": f"{ours}.weight", f"{theirs}.bias": f"{ours}.bias"}
    for i in range(depth):
        block = {
            "norm1.weight": "norm1.weight",
            "attn_qkv.weight": "qkv.weight",
            "attn_out.weight": "out.weight",
            "norm2.weight": "norm2.weight",
            "mlp.0.weight": "mlp_in.weight",
            "mlp.0.bias": "mlp_in.bias",
            "mlp.2.weight": "mlp_out.weight",
            "mlp.2.bias": "mlp_out.bias",
            "adaLN_modulation.weight": "modulation.weight",
            "adaLN_modulation.bias": "modulation.bias",
        }
        names |= {f"blocks.{i}.{theirs}": f"blocks.{i}.{ours}" for theirs, ours in block.items()}
    return names | {
        "output_layer.norm_final.weight": "norm.weight",
        "output_layer.linear.weight": "output.weight",
        "output_layer.linear.bias": "output.bias",
        "output_layer.adaLN_modulation.weight": "modulation.weight",
        "output_layer.adaLN_modulation.bias": "modulation.bias",
    }


def _bare(state: Mapping[str, Loadable]) -> dict[str, Loadable]:
    """The network's own names, without the prefixes of wrappers (compile, data parallel, the Lightning module)."""
    plain = {re.sub(r"(^|\.)(_orig_mod|module)\.", r"\1", name): value for name, value in state.items()}
    if any(name.startswith("backbone.") for name in plain):
        plain = {k.removeprefix("backbone."): v for k, v in plain.items() if k.startswith("backbone.")}
    return plain


def _tensor(value: object) -> Tensor:
    """The float32 tensor behind a tensor or a `StoredTensor`."""
    tensor = value if isinstance(value, Tensor) else value.load()  # type: ignore[attr-defined]
    assert isinstance(tensor, Tensor)
    return tensor.detach().to(device="cpu", dtype=torch.float32)


def _shape(state: Mapping[str, Loadable], name: str) -> Sequence[int]:
    if name not in state:
        raise UserError(
            f'The checkpoint has no "{name}": only the DiT of SCDD, MDLM (reference layout) and GIDD can be converted.'
        )
    return state[name].shape


def _sizes(state: Mapping[str, Loadable], name: str) -> tuple[int, int]:
    """Rows and columns of a matrix."""
    shape = tuple(_shape(state, name))
    if len(shape) != 2 or shape[0] > MOST_ROWS or shape[1] > MOST_COLUMNS:
        raise UserError(f'"{name}" has shape {shape} where a matrix of a network is needed: the checkpoint is damaged.')
    return shape


def _depth(state: Iterable[str]) -> int:
    """How many blocks there are, with none left out."""
    found = {m[1] for name in state if (m := re.match(r"blocks\.(\d{1,4})\.", name))}
    if found != {str(i) for i in range(len(found))}:
        raise UserError("The checkpoint's blocks are not numbered in a row: it is damaged.")
    return len(found)


def _heads(state: Mapping[str, Loadable], width: int, heads: int | None) -> int:
    """The number of heads, which no weight shows, from the rotary buffer; the caller's word goes first."""
    if heads is not None:
        return heads
    for name, channels in (("rotary_emb.inv_freq", 2), ("rotary_emb.cos_cached", 1)):
        shape = tuple(state[name].shape) if name in state else ()
        if shape and shape[-1]:
            return width // (channels * shape[-1])
    raise UserError("The checkpoint does not show its number of attention heads: tell it, heads=….")


def _network(config: DiTConfig, vocab: Vocab, state: Mapping[str, Loadable]) -> DiT:
    """The network, once every shape in the file is known to fit it: a file must not make us fetch memory for what it lacks."""
    with torch.device("meta"):
        own = DiT(config, vocab).state_dict()
    for theirs, ours in parameter_names(config.depth).items():
        if theirs not in state and config.causal:
            continue
        found, target = tuple(_shape(state, theirs)), tuple(own[ours].shape)
        counted = ours.startswith(("embedding.", "output."))  # one row per id, with or without padding
        rows = range(vocab.size, padded(vocab.size) + 1) if counted else target[:1]
        if not found or found[0] not in rows or found[1:] != target[1:]:
            raise UserError(
                f'"{theirs}" has shape {found} where {target} is needed: the checkpoint is damaged, or of another network.'
            )
    return DiT(config, vocab)


def _fill(model: DiT, state: Mapping[str, Loadable]) -> DiT:
    """Copy the weights; fewer rows than ours (the head's padding) leave zeros, more (the embedding's) are dropped."""
    own = model.state_dict()
    for theirs, ours in parameter_names(model.config.depth).items():
        if theirs in state:
            source, target = _tensor(state[theirs]), own[ours]
            rows = min(source.shape[0], target.shape[0])
            target[:rows] = source[:rows]
    return model


def from_reference(
    state: Mapping[str, Loadable],
    vocab: Vocab | None = None,
    *,
    heads: int | None = None,
    time_conditioning: bool = False,
) -> DiT:
    """The SCDD/MDLM reference network's weights as ours; the mask is the last id unless `vocab` tells.

    Their autoregressive network has no modulation; ours then gets constant gates of one, which is the same function.
    """
    state = _bare(state)
    size, width = _sizes(state, "vocab_embed.embedding")
    depth, adaptive = _depth(state), "blocks.0.adaLN_modulation.weight" in state
    config = DiTConfig(
        depth=depth,
        width=width,
        heads=_heads(state, width, heads),
        cond_width=_sizes(state, "sigma_map.mlp.0.weight")[0] if adaptive else 1,
        time_conditioning=time_conditioning and adaptive,
        causal=not adaptive,
    )
    if vocab is not None and vocab.size != size:
        raise UserError(
            f"The checkpoint has {size} ids and the vocabulary told {vocab.size}: pass the one of its tokenizer."
        )
    model = _network(config, vocab or Vocab(size, size - 1), state)
    if not adaptive:
        for i in range(depth):
            gates = model.state_dict()[f"blocks.{i}.modulation.bias"].view(6, width)
            gates[2], gates[5] = 1.0, 1.0
    return _fill(model, state)


def from_gidd(state: Mapping[str, Loadable], vocab: Vocab, *, heads: int | None = None) -> DiT:
    """GIDD's network as ours. Its V is rounded up to 128 already, so the true vocabulary must be told."""
    state = _bare(state)
    rows, width = _sizes(state, "vocab_embed.embedding")
    if rows not in (vocab.size, padded(vocab.size)):
        raise UserError(
            f"The checkpoint's embedding has {rows} rows and the vocabulary {vocab.size} ids: pass the vocabulary that "
            "it was trained with (its tokenizer's length, the mask included)."
        )
    bias = _tensor(state["logit_bias"]).flatten() if "logit_bias" in state else torch.zeros(1)
    if len(bias) != 1:
        raise UserError(f'"logit_bias" has {len(bias)} numbers where one is needed: the checkpoint is damaged.')
    config = DiTConfig(
        depth=_depth(state),
        width=width,
        heads=_heads(state, width, heads),
        cond_width=_sizes(state, "sigma_map.mlp.0.weight")[0],
        time_conditioning=True,
        time_input="t",
        input_bias=bool(bias[0] != 0),
    )
    model = _fill(_network(config, vocab, state), state)
    if model.output.input_bias is not None:
        model.output.input_bias.data.copy_(bias[0])
    return model


def with_averages(state: Mapping[str, Loadable], shadow: Sequence[Loadable]) -> dict[str, Loadable]:
    """The state with its parameters replaced by EMA shadows, a bare list in the order of `parameters()`."""
    state = _bare(state)
    names = [name for name in parameter_names(_depth(state)) if name in state]
    if len(shadow) < len(names):
        raise UserError(
            f"The checkpoint's EMA has {len(shadow)} tensors for {len(names)} parameters: convert without its EMA.",
            "ema",
        )
    for name, average in zip(names, shadow, strict=False):  # a learned noise schedule's come after the network's
        if not hasattr(average, "shape") or tuple(average.shape) != tuple(state[name].shape):
            raise UserError(
                f'The checkpoint\'s EMA does not fit the network at "{name}": convert without its EMA.', "ema"
            )
    return {**state, **dict(zip(names, shadow, strict=False))}
