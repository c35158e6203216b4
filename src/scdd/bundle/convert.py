"""From the authors' published files to a bundle."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import safetensors
from safetensors.torch import load_file
from torch import Tensor

from scdd.bundle.folder import TOKENIZER, Identity, write
from scdd.bundle.layouts import Loadable, from_gidd, from_reference, with_averages
from scdd.bundle.unpickle import StoredTensor, find, read_checkpoint
from scdd.core.errors import UserError
from scdd.core.types import Vocab
from scdd.models.dit import DiT
from scdd.models.options import SIZES, DiTConfig

CANDIDATES = ("model.safetensors", "model.pt", "pytorch_model.bin", "last.ckpt", "checkpoints/last.ckpt")


def convert(
    source: str | Path,
    out: str | Path,
    *,
    recipe: str | None = None,
    tokenizer: str | None = None,
    vocab: Vocab | None = None,
    heads: int | None = None,
    time_conditioning: bool | None = None,
    ema: bool = True,
) -> Path:
    """Write the authors' checkpoint at `source` (file or folder) as a bundle at `out`.

    What the file itself shows (sizes, heads, time conditioning, step) need not be told. `tokenizer` is the text of a
    tokenizer.json; one beside the source is taken by itself. `ema=False` takes the raw weights.
    """
    file = _file(Path(source))
    if tokenizer is None and (file.parent / TOKENIZER).is_file():
        tokenizer = (file.parent / TOKENIZER).read_text(encoding="utf-8")
    model, step = load(
        file, vocab=vocab or _vocab(tokenizer), heads=heads, time_conditioning=time_conditioning, ema=ema
    )
    identity = Identity(
        recipe=recipe if recipe is not None else recipe_text(model.config),
        vocab=model.vocab,
        tokenizer=tokenizer,
        network=asdict(model.config),
        extra={"converted_from": file.name},
        step=step,
    )
    return write(out, identity, model.state_dict())


def load(
    file: str | Path,
    *,
    vocab: Vocab | None = None,
    heads: int | None = None,
    time_conditioning: bool | None = None,
    ema: bool = True,
) -> tuple[DiT, int]:
    """The network in an authors' file, and the step it was saved at (0 when the file does not say)."""
    file = Path(file)
    tree = _safetensors(file) if file.suffix == ".safetensors" else read_checkpoint(file)
    state = _state(tree, file)
    if any(name.endswith(("logit_bias", "rotary_emb.cos_cached")) for name in state):
        if vocab is None:
            raise UserError(
                f"{file} is a GIDD checkpoint, which does not show its vocabulary: pass vocab=Vocab(size, mask_id), or "
                f"put its {TOKENIZER} beside it."
            )
        return from_gidd(state, vocab, heads=heads), _step(tree)
    shadow = find(tree, "shadow_params") if ema else None
    if isinstance(shadow, list):
        state = with_averages(state, shadow)
    if time_conditioning is None:
        time_conditioning = find(tree.get("hyper_parameters"), "time_conditioning") is True
    return from_reference(state, vocab, heads=heads, time_conditioning=time_conditioning), _step(tree)


def recipe_text(config: DiTConfig) -> str:
    """The network's section of a recipe: what the weights alone determine."""
    shape = {"depth": config.depth, "width": config.width, "heads": config.heads}
    preset = next((k for k, v in SIZES.items() if shape == {n: getattr(v, n) for n in shape}), None)
    values = {
        "kind": "dit",
        **({"size": preset} if preset else {"size": "custom", **shape}),
        "cond_width": config.cond_width,
        "time_conditioning": config.time_conditioning,
        "time_input": config.time_input,
    }
    return "model:\n" + "".join(f"  {key}: {json.dumps(value)}\n" for key, value in values.items())


def _file(source: Path) -> Path:
    if source.is_file():
        return source
    for file in (source / name for name in CANDIDATES):
        if file.is_file():
            return file
    raise UserError(f"{source} holds no checkpoint to convert: name the .ckpt, .pt or .safetensors file itself.")


def _safetensors(file: Path) -> dict[str, Any]:
    try:
        return dict(load_file(file))
    except (OSError, safetensors.SafetensorError) as error:
        raise UserError(f"{file} is missing or damaged ({error}): fetch it again.") from error


def _state(tree: Any, file: Path) -> dict[str, Loadable]:
    """The weights: a Lightning checkpoint keeps them under "state_dict", the others are nothing else."""
    state = tree.get("state_dict", tree) if isinstance(tree, dict) else None
    if not isinstance(state, dict):
        raise UserError(f"{file} holds no weights: name a file that has a state_dict.")
    return {k: v for k, v in state.items() if isinstance(k, str) and isinstance(v, (Tensor, StoredTensor))}


def _step(tree: Any) -> int:
    step = tree.get("global_step", 0)
    return step if isinstance(step, int) else 0


def _vocab(tokenizer: str | None) -> Vocab | None:
    """V and the mask's id from a tokenizer.json that has a mask token; None otherwise."""
    if tokenizer is None:
        return None
    try:
        content = json.loads(tokenizer)
        added = {token["content"]: token["id"] for token in content.get("added_tokens", [])}
        entries = content["model"]["vocab"]
        ids = [*(entries.values() if isinstance(entries, dict) else range(len(entries))), *added.values()]
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"The {TOKENIZER} beside the checkpoint is damaged ({error!r}): fetch it again.") from error
    masks = [added[name] for name in ("[MASK]", "<mask>", "<|mask|>") if name in added]
    return Vocab(max(ids) + 1, masks[0]) if masks else None
