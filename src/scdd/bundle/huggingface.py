"""What makes a bundle a folder of transformers as well: its config, the network's code, and the tokenizer's settings.

The weights are the bundle's own file: the code in `assets/hf`, which is copied beside them, names its parts as we do.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from scdd.bundle.folder import ASSETS, CHAT_TEMPLATE, CURE, TOKENIZER, Bundle, Identity
from scdd.core.errors import UserError
from scdd.core.files import read_json
from scdd.data.tokenizer import TextTokenizer

CODE = ("configuration_scdd.py", "modeling_scdd.py", "network_scdd.py", "sampling_scdd.py")
PROMPTS = "tokenization_scdd.py"  # of autoregressive models alone
CONFIG = "config.json"
WRITTEN = (CONFIG, "generation_config.json", "tokenizer_config.json", "special_tokens_map.json", PROMPTS, *CODE)
"""Every file that `write_files` may write."""
MODEL_TYPE = "scdd"
UNKNOWN = "unknown"  # the process of a model that does not say it
NETWORKS = ("dit", "llama")
WEIGHTS_KINDS = ("float32", "bfloat16")


@dataclass(frozen=True)
class Specials:
    """Tokens with a role, each as (name, id); a tokenizer without padding of its own pads with the end of text."""

    bos: tuple[str, int]
    eos: tuple[str, int]
    mask: tuple[str, int]
    pad: tuple[str, int]


@dataclass(frozen=True, kw_only=True)
class Sheet:
    """All that the files beside the weights say of a model."""

    identity: Identity
    specials: Specials
    context: int
    process: Mapping[str, Any]  # its section of the recipe, as plain data
    sampling: Mapping[str, Any]
    name: str  # what commands call it: a Hub id, or the folder
    kind: str = "bfloat16"
    recipe: Mapping[str, Any] = field(default_factory=dict)  # the whole recipe, as plain data
    turn: int | None = None  # the token that ends a turn of its chats, where that is not the end of text

    @property
    def causal(self) -> bool:
        """Whether it is the autoregressive baseline."""
        return bool((self.identity.network or {}).get("causal", False))

    @property
    def windowed(self) -> bool:
        """Whether a row's first token, which must then be no padding, is seen from all over it."""
        return (self.identity.network or {}).get("attention_window") is not None


def check(network: Mapping[str, Any] | None, kind: str) -> None:
    """Refuse what transformers could not load."""
    if kind not in WEIGHTS_KINDS:
        raise UserError(
            f"weights {kind} cannot be read by transformers: choose one of {', '.join(WEIGHTS_KINDS)}.", "weights"
        )
    found = "unknown" if network is None else str(network.get("kind", "dit"))
    if found not in NETWORKS:
        raise UserError(
            f"a network of kind {found} has no code that could lie beside its weights (that is there for "
            f"{' and '.join(NETWORKS)}): write a bundle for scdd alone."
        )


def write_files(folder: Path, sheet: Sheet) -> None:
    """Everything but the card, the weights and tokenizer.json, which are there already."""
    check(sheet.identity.network, sheet.kind)
    for name in (*CODE, PROMPTS) if sheet.causal else CODE:
        shutil.copyfile(ASSETS / "hf" / name, folder / name)
    _write(folder / CONFIG, config(sheet))
    names = {f"{role}_token": getattr(sheet.specials, role)[0] for role in ("bos", "eos", "mask", "pad")}
    _write(folder / "special_tokens_map.json", names)
    settings = {
        "tokenizer_class": "SCDDTokenizer" if sheet.causal else "PreTrainedTokenizerFast",
        **({"auto_map": {"AutoTokenizer": [None, "tokenization_scdd.SCDDTokenizer"]}} if sheet.causal else {}),
        "model_max_length": sheet.context,
        "padding_side": "left" if sheet.causal and not sheet.windowed else "right",
        "model_input_names": ["input_ids", "attention_mask"],
        "clean_up_tokenization_spaces": False,
    }
    chat = sheet.identity.extra.get(CHAT_TEMPLATE)
    _write(folder / "tokenizer_config.json", {**settings, **names, **({"chat_template": chat} if chat else {})})
    if sheet.causal or sheet.turn is not None:
        ends = {} if sheet.turn is None else {"eos_token_id": [sheet.specials.eos[1], sheet.turn]}
        _write(folder / "generation_config.json", {**_ids(sheet), **ends, "use_cache": False})


def config(sheet: Sheet) -> dict[str, Any]:
    """config.json."""
    task = "CausalLM" if sheet.causal else "MaskedLM"
    code = {"AutoConfig": "configuration_scdd.SCDDConfig", f"AutoModelFor{task}": f"modeling_scdd.SCDDFor{task}"}
    vocab = sheet.identity.vocab
    return {
        "architectures": [f"SCDDFor{task}"],
        "auto_map": code,
        "model_type": MODEL_TYPE,
        "network": {"kind": "dit", **(sheet.identity.network or {})},
        "process": dict(sheet.process),
        "sampling": dict(sheet.sampling),
        "vocab_size": vocab.size,
        "mask_token_id": vocab.mask_id,
        **_ids(sheet),
        "max_position_embeddings": sheet.context,
        "tie_word_embeddings": False,  # the code has one matrix where there is one
        "torch_dtype": sheet.kind,
    }


def is_written(folder: Path) -> bool:
    """Whether a folder has these files, from here."""
    try:
        found = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(found, dict) and found.get("model_type") == MODEL_TYPE


def saved(folder: Path, tokenizer: TextTokenizer | None = None) -> Bundle:
    """What `save_pretrained` wrote of a model that came from here, perhaps after more training, as a bundle in memory."""
    from scdd.models.weights.files import weights_of

    place, facts, stored = folder / CONFIG, read_json(folder / CONFIG), weights_of(folder)
    if stored is None:
        raise UserError(f"{folder} has a {CONFIG} and no weights (model.safetensors): fetch it again.")
    if tokenizer is None and not (folder / TOKENIZER).is_file():
        raise UserError(f"{folder} has no {TOKENIZER}: save the tokenizer there too, or name it.", "tokenizer")
    tokenizer = tokenizer or TextTokenizer.from_file(folder)
    network, process, sampling, length = (
        facts.get(name) for name in ("network", "process", "sampling", "max_position_embeddings")
    )
    if not isinstance(network, dict) or not isinstance(process, dict) or not isinstance(length, int):
        raise UserError(f"{place} does not say network, process and max_position_embeddings: {CURE}.")
    check(network, WEIGHTS_KINDS[0])
    if (facts.get("vocab_size"), facts.get("mask_token_id")) != (tokenizer.size, tokenizer.mask_id):
        raise UserError(
            f"{place} and {TOKENIZER} do not agree in their ids: use the tokenizer that came with the model."
        )
    weights = {name: stored[name] for name in stored}
    halved = all(tensor.dtype == torch.bfloat16 for tensor in weights.values())
    known = process.get("kind") != UNKNOWN
    sections = {
        "name": folder.name,
        "data": {"length": length},
        "model": {"kind": "pretrained"},
        **({"process": process, "sampling": sampling or {}} if known else {}),
    }
    return Bundle(
        folder=folder,
        recipe=recipe_text(sections),
        vocab=tokenizer.vocab,
        tokenizer=tokenizer.to_str(),
        network=network,
        weights={name: tensor.float() for name, tensor in weights.items()},
        kind="bfloat16" if halved else "float32",
    )


def recipe_text(sections: Mapping[str, Any]) -> str:
    """A recipe's sections as YAML, of which JSON is a part."""
    return "".join(f"{name}: {json.dumps(content, ensure_ascii=False)}\n" for name, content in sections.items())


def _ids(sheet: Sheet) -> dict[str, int]:
    return {f"{role}_token_id": getattr(sheet.specials, role)[1] for role in ("bos", "eos", "pad")}


def _write(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
