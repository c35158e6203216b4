"""Models from elsewhere as bundles: Hugging Face folders, GGUF files, the authors' checkpoints."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from scdd.bundle import folder as bundle
from scdd.bundle.folder import CHAT_TEMPLATE, CHECKPOINTS, CURE, META, RECIPE, TOKENIZER, Bundle
from scdd.bundle.huggingface import CONFIG, MODEL_TYPE, recipe_text, saved
from scdd.bundle.said import described, named, said
from scdd.core.errors import UserError
from scdd.core.files import CONFIG_LIMIT, read_json, read_text
from scdd.data.tokenizer import TextTokenizer
from scdd.models.dit import DiT
from scdd.models.options import SIZES, DiTConfig, PretrainedOptions

DECODERS = ("llama", "mistral", "qwen2", "qwen3")
READABLE = (
    f"our own folders, Hugging Face folders of {', '.join(DECODERS)}, GGUF files of these, and checkpoints of SCDD, MDLM "
    "and GIDD by their authors"
)
CANDIDATES = ("model.safetensors", "model.pt", "pytorch_model.bin", "last.ckpt", "checkpoints/last.ckpt")
PICKLES = (".ckpt", ".pt", ".pth", ".bin")
LONGEST = 2048  # tokens of a row, if a pretrained model could read more
SPARE = 1024  # ids that a tokenizer may have beyond the model's rows: tokens that were added later
WRITTEN = 256  # tokens that it writes if no length is asked for
CONTEXT = 512  # of the authors' checkpoints that do not say how long their rows were


@dataclass(frozen=True, kw_only=True)
class Told:
    """What a caller knows of a foreign checkpoint that its files do not say."""

    process: str | None = None  # "mdlm", or "scdd:0.1" with p_u
    tokenizer: TextTokenizer | None = None
    ema: bool = True  # False: the raw weights


def trimmed(found: Bundle, texts: Iterable[str], size: int) -> Bundle:
    """The same model with the `size` ids that `texts` use most, and their rows of embedding and head."""
    if found.tokenizer is None or found.network is None:
        raise UserError(f"{found.folder} has no tokenizer, or does not say its network: vocab_size needs both.")
    if found.network.get("kind", "dit") not in ("dit", "llama") or bundle.NOISE in found.extra:
        raise UserError(
            f"{found.folder} has a network of another kind than dit and llama, or noise that is not uniform: leave vocab_size out."
        )
    from scdd.data.trim import trimmed as smaller
    from scdd.models.shrink import fewer_ids

    tokenizer, kept = smaller(TextTokenizer(found.tokenizer), texts, size)
    weights = fewer_ids(found.network, found.weights, found.vocab, tokenizer.vocab, kept)
    return replace(found, vocab=tokenizer.vocab, tokenizer=tokenizer.to_str(), weights=weights)


def reread(found: Bundle, attention_window: int | None = None, context: int | None = None) -> Bundle:
    """The same model, each token of which sees so many to either side (0: all), or whose rows may have `context` tokens."""
    from scdd.models.network import unfilled

    if found.network is None:
        raise UserError(f"{found.folder} does not say its network: leave attention_window and context out.")
    options = PretrainedOptions(attention_window=attention_window, context=context)
    changed = replace(found, network=options.reread(found.network))
    unfilled(changed.network or {}, found.vocab, len(found.weights))  # refuses what does not go together
    return changed


class Reading(NamedTuple):
    """How a model reads texts and chats: what there is to know without its weights."""

    tokenizer: TextTokenizer | None = None
    chat_template: str | None = None


def reading(source: str | Path) -> Reading:
    """The tokenizer and the template of chats of any model that can be read."""
    place = bundle.found(source)
    if (place / META).is_file():
        chat = (bundle.meta(place).get("extra") or {}).get(CHAT_TEMPLATE)
        return Reading(_tokenizer(place), chat if isinstance(chat, str) else None)
    from scdd.models.weights.gguf import is_gguf, metadata

    place = _model_in(place)
    if place.is_dir():
        return Reading(_tokenizer(place), _chat_template(place))
    return _gguf_reading(place, metadata(place)) if is_gguf(place) else Reading(_tokenizer(place.parent))


def foreign(source: Path, told: Told | None = None, *, hub: bool = False) -> Bundle:
    """A bundle in memory from a file or folder that is none of ours."""
    told, place = told or Told(), _model_in(source)
    if place.is_file():
        found = _in_file(place, told)
    elif _model_type(place) == MODEL_TYPE:
        chat = _chat_template(place)
        found = replace(saved(place, told.tokenizer), extra={} if chat is None else {CHAT_TEMPLATE: chat})
    else:
        found = _decoder_folder(place, told)
    return replace(found, hub=hub)


def _model_in(source: Path) -> Path:
    """What of a file or folder is read: a folder of transformers as a whole, and else one file."""
    if source.is_file():
        whole = source.suffix != ".gguf" and _model_type(source.parent) in DECODERS
        return source.parent if whole else source
    folder = source
    if (folder / RECIPE).is_file() and (folder / CHECKPOINTS).is_dir():
        raise UserError(f"{folder} is a run without a checkpoint: let `scdd train` go on until it saves the first.")
    if (folder / RECIPE).is_file():
        raise UserError(f"{folder} has no {META}, so it is no complete checkpoint: {CURE}.")
    kind = _model_type(folder)
    if kind in (*DECODERS, MODEL_TYPE):
        return folder
    files = [folder / name for name in CANDIDATES if (folder / name).is_file()]
    files = files[:1] or sorted(folder.glob("*.gguf")) or sorted(folder.glob("*.ckpt"))
    if len(files) > 1:
        raise UserError(f"{folder} holds {len(files)} models: name one, for example {files[0]}.")
    if files:
        return files[0]
    if kind is not None:
        raise UserError(f"{folder} is of model_type {kind}: what can be read is {READABLE}.")
    raise UserError(f"{folder} holds no model: what can be read is {READABLE}.")


def _in_file(file: Path, told: Told) -> Bundle:
    from scdd.models.weights.gguf import is_gguf

    if is_gguf(file):
        return _gguf(file, told)
    if file.suffix not in (*PICKLES, ".safetensors"):
        raise UserError(f"{file} is no model: what can be read is {READABLE}.")
    return _authors(file, told)


def _tokenizer(folder: Path) -> TextTokenizer | None:
    return TextTokenizer.from_file(folder) if (folder / TOKENIZER).is_file() else None


def _model_type(folder: Path) -> str | None:
    """What a config.json says; None where there is none."""
    config = read_json(folder / CONFIG) if (folder / CONFIG).is_file() else {}
    return config.get("model_type") if isinstance(config.get("model_type"), str) else None


# -- causal language models -----------------------------------------------------------------------------------------


def _decoder_folder(folder: Path, told: Told) -> Bundle:
    from scdd.models.weights.files import weights_of

    config, weights = read_json(folder / CONFIG), weights_of(folder)
    if weights is None:
        raise UserError(f"{folder} has a {CONFIG} and no weights (model.safetensors): fetch it again.")
    tokenizer = told.tokenizer or _tokenizer(folder)
    if tokenizer is None:
        raise UserError(f"{folder} has no {TOKENIZER}: put it there, or name the tokenizer.", "tokenizer")
    return _decoder(folder, config, weights, tokenizer, _chat_template(folder), told)


def _gguf(file: Path, told: Told) -> Bundle:
    from scdd.models.weights.gguf import read_gguf

    model = read_gguf(file)
    own, chat = _gguf_reading(file, model.facts, told.tokenizer)
    assert own is not None  # a file's own, where none is named
    return _decoder(file, model.config, model.weights, own, chat, told)


def _gguf_reading(file: Path, facts: Mapping[str, Any], own: TextTokenizer | None = None) -> Reading:
    from scdd.data.gguf import document, ends

    tokenizer = own or TextTokenizer.completed(document(facts, str(file)), str(file), *ends(facts))
    chat = facts.get("tokenizer.chat_template")
    return Reading(tokenizer, chat if isinstance(chat, str) else None)


def _decoder(
    source: Path,
    config: Mapping[str, Any],
    weights: Mapping[str, Tensor],
    tokenizer: TextTokenizer,
    chat: str | None,
    told: Told,
) -> Bundle:
    """A causal language model as an autoregressive bundle."""
    from scdd.models.weights.hf import config_of, from_hf

    if told.process not in (None, "ar"):
        raise UserError(
            f"process {told.process} is not what {source} was trained with: it writes left to right; to train it "
            "further as a diffusion model, name it in training.start_from.",
            "process",
        )
    shape, rows = replace(config_of(dict(config)), causal=True), config.get("vocab_size")
    if isinstance(rows, int) and tokenizer.size > rows + SPARE:
        raise UserError(
            f"The tokenizer has {tokenizer.size:,} ids and {source} rows for {rows:,}: use the model's own.",
            "tokenizer",
        )
    reach = config.get("max_position_embeddings")
    length = min(reach, LONGEST) if isinstance(reach, int) and reach > 0 else LONGEST
    sections = {
        "name": source.stem,
        "data": {"length": length},
        "model": {"kind": "pretrained"},
        "process": described("ar", None),
        "sampling": {"sampler": {"kind": "ar"}, "length": min(length, WRITTEN)},
    }
    extra = {"converted_from": source.name, **({} if chat is None else {CHAT_TEMPLATE: chat})}
    taken = from_hf(dict(config), weights, tokenizer.vocab, tokenizer.size - tokenizer.added)
    halved = all(tensor.dtype == torch.bfloat16 for tensor in taken.values())
    for name in taken:  # one after the other, so that not all are there twice
        taken[name] = taken[name].float()
    return Bundle(
        folder=source,
        recipe=recipe_text(sections),
        vocab=tokenizer.vocab,
        tokenizer=tokenizer.to_str(),
        network={"kind": "llama", **asdict(shape)},
        extra=extra,
        weights=taken,
        kind="bfloat16" if halved else "float32",
    )


def _chat_template(folder: Path) -> str | None:
    """The template of chats: of a file of its own, or of tokenizer_config.json (its default one, where it has several)."""
    alone, config = folder / "chat_template.jinja", folder / "tokenizer_config.json"
    if alone.is_file():
        return read_text(alone, CONFIG_LIMIT)
    found = read_json(config).get("chat_template") if config.is_file() else None
    if isinstance(found, list):
        named = {each.get("name"): each.get("template") for each in found if isinstance(each, dict)}
        found = named.get("default")
    return found if isinstance(found, str) else None


# -- the authors' checkpoints ---------------------------------------------------------------------------------------


def _authors(file: Path, known: Told) -> Bundle:
    """SCDD's, MDLM's and GIDD's checkpoints."""
    from scdd.models.weights.checkpoint import NetworkFile, gidd_length

    tokenizer = known.tokenizer or _tokenizer(file.parent)
    stored = NetworkFile.open(file)
    if not stored.readable:
        kind = _model_type(file.parent)
        raise UserError(f"{file} holds another network{f' ({kind})' if kind else ''}: what can be read is {READABLE}.")
    words = said(stored.hyper_parameters, file.parent, gidd=stored.gidd)
    model = stored.network(
        None if tokenizer is None else tokenizer.vocab,
        heads=None if stored.shows_heads else words.heads,
        time_conditioning=words.time_conditioning,
        ema=known.ema,
    )
    process = words.process if known.process is None else named(known.process, words.p_u)
    if model.config.causal:
        process = described("ar", None)
    extra = {"converted_from": file.name, **({"tokenizer_name": words.tokenizer} if words.tokenizer else {})}
    return Bundle(
        folder=file,
        recipe=_authors_recipe(file, model, process, words.length or gidd_length(stored.state)),
        vocab=model.vocab,
        tokenizer=None if tokenizer is None else tokenizer.to_str(),
        network=model.description(),
        extra=extra,
        step=stored.step,
        weights=dict(model.state_dict()),
    )


def _authors_recipe(file: Path, model: DiT, process: dict[str, Any] | None, length: int | None) -> str:
    sections: dict[str, Any] = {"name": file.stem, "data": {"length": length or CONTEXT}}
    sections["model"] = _dit_section(model.config)
    if process is not None:
        sections["process"] = process
        if process["kind"] == "ar":
            sections["sampling"] = {"sampler": {"kind": "ar"}}
    return recipe_text(sections)


def _dit_section(config: DiTConfig) -> dict[str, Any]:
    """The network's section of a recipe."""
    shape = {"depth": config.depth, "width": config.width, "heads": config.heads}
    preset = next((k for k, v in SIZES.items() if shape == {n: getattr(v, n) for n in shape}), None)
    return {
        "kind": "dit",
        **({"size": preset} if preset else {"size": "custom", **shape}),
        "cond_width": config.cond_width,
        "time_conditioning": config.time_conditioning,
        "time_input": config.time_input,
        "input_bias": config.input_bias,
    }
