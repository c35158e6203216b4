"""`scdd convert`: a model from elsewhere as a folder of ours."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from scdd.core.errors import UserError

if TYPE_CHECKING:
    from scdd.bundle.folder import Bundle


def convert(
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE",
            help="A Hugging Face folder or Hub id (owner/name[@revision]) of a llama, mistral, qwen2 or qwen3; a .gguf file "
            "of one, here or on the Hub (owner/name/file.gguf); a .ckpt of SCDD's or MDLM's authors; a folder or Hub id of "
            "GIDD's; or a folder of ours.",
        ),
    ],
    out: Annotated[Path, typer.Option(help="Folder for the converted model.")],
    weights: Annotated[
        str | None,
        typer.Option(
            help="How to store them: float32, bfloat16, int8 or int4; default: as the source has them, or float32."
        ),
    ] = None,
    process: Annotated[
        str | None,
        typer.Option(
            metavar="KIND[:P_U]",
            help="What it was trained with, if its files do not say: mdlm, ar, or scdd:0.1 and gidd:0.1 with their p_u.",
        ),
    ] = None,
    tokenizer: Annotated[
        str | None, typer.Option(help="A tokenizer.json, its folder or a Hub id, if none lies beside the source.")
    ] = None,
    ema: Annotated[
        bool, typer.Option(help="Take the averaged weights of the authors' checkpoints, or the raw.")
    ] = True,
    vocab_size: Annotated[
        int | None,
        typer.Option(help="Keep only so many ids, those that --vocab-text uses most; of byte-pair tokenizers."),
    ] = None,
    vocab_text: Annotated[
        list[str] | None, typer.Option(metavar="FILE", help="Text to choose them by, as prepare reads it; repeatable.")
    ] = None,
    attention_window: Annotated[
        int | None,
        typer.Option(
            help="Let a token see only so many to either side, and the row's first: a model that reads both sides can then read "
            "longer rows than it was trained on; their length less 1 is a good choice; 0: the whole row. Of the Llama family."
        ),
    ] = None,
    context: Annotated[
        int | None, typer.Option(help="Tokens of the longest row that it is used with; default: as it was trained.")
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Replace a model in --out; its other files, README.md too, stay.")
    ] = False,
) -> None:
    """Read a model from elsewhere and write it as a folder that every verb takes as --model.

    Nothing pickled is ever run. Causal language models stay what they are, left to right; training.start_from takes them,
    converted or not, to go on as diffusion models.
    """
    from safetensors import SafetensorError

    from scdd.bundle.convert import Told, reread, trimmed
    from scdd.bundle.folder import KINDS, read, write
    from scdd.cli.export import copy_files, kept_files
    from scdd.data.tokenizer import TextTokenizer

    if weights is not None and weights not in KINDS:
        raise UserError(f"--weights {weights} is not known: choose one of {', '.join(KINDS)}.")
    if (vocab_size is None) != (not vocab_text):
        raise UserError("--vocab-size and --vocab-text go together: so many ids, and a text to choose them by.")
    kept = kept_files(out, force)
    own = None if tokenizer is None else TextTokenizer.load(tokenizer)
    with _shown(f"reading {source}"):
        found = read(source, told=Told(process=process, tokenizer=own, ema=ema))
    if vocab_size is not None and vocab_text:
        from scdd.data.corpus import discover, documents

        with _shown("counting tokens"):
            found = trimmed(found, documents(discover(vocab_text)), vocab_size)
    if attention_window is not None or context is not None:
        found = reread(found, attention_window, context)
        found = replace(found, recipe=_rewritten(found.recipe, found.network or {}))
    kind = weights or found.kind
    try:
        with _shown(f"writing {out}"):
            write(out, found, found.weights, kind=kind, more=lambda folder: copy_files(kept, folder))
    except (OSError, SafetensorError) as error:
        raise UserError(f"--out {out} cannot be written ({error}): make room, or choose another.") from error
    _summary(found, out, kind)


def _shown(what: str) -> Any:
    """A spinner for work that may take minutes, on a terminal."""
    if not sys.stderr.isatty():
        return nullcontext()
    from rich.console import Console

    return Console(stderr=True).status(what)


def _summary(found: Bundle, out: Path, kind: str) -> None:
    from scdd.bundle.folder import WEIGHTS
    from scdd.cli.export import shown
    from scdd.recipe.load import parse

    recipe = parse(found.recipe)
    count, size = sum(each.numel() for each in found.weights.values()), (out / WEIGHTS).stat().st_size
    network = found.network or {}
    shape = ", ".join(f"{name} {network[name]}" for name in ("depth", "width", "heads") if name in network)
    print(f"{shown(found.folder)} → {out}" + (f", step {found.step:,}" if found.step else ""))
    print(f"  network: {network.get('kind', 'dit')}, {shape}; {count:,} parameters, {size / 1e6:,.2f} MB of {kind}")
    print(f"  tokenizer: {_tokenizer(found)}")
    print(f"  process: {_process(recipe.get('process'))}")
    print(f"  rows: {_rows((recipe.get('data') or {}).get('length'), network)}")


def _rewritten(recipe: str, network: Mapping[str, Any]) -> str:
    """The recipe with the network's own window and context in its model section, so that both say the same."""
    from scdd.recipe.load import parse, render

    sections = parse(recipe)
    section = sections.get("model") if isinstance(sections, dict) else None
    if not isinstance(section, dict) or section.get("kind") not in ("llama", "pretrained"):
        return recipe
    window, whole = network.get("attention_window"), 0 if section["kind"] == "pretrained" else None
    own = {"attention_window": whole if window is None else window, "context": network.get("context")}
    return render({**sections, "model": {**section, **own}})


def _rows(trained: int | None, network: Mapping[str, Any]) -> str:
    window, context = network.get("attention_window"), network.get("context")
    told = f"{context} tokens, trained on {trained}" if context else f"{trained} tokens"
    told += f"; a token sees {window} to either side and the first" if window else ""
    if trained and (context or trained) > trained and (window is None or window >= trained):
        told += f"\n  note: it now sees further than in training, which mostly harms: --attention-window {trained - 1} does not"
    return told


def _tokenizer(found: Bundle) -> str:
    if found.tokenizer is None:
        name = found.extra.get("tokenizer_name")
        there = f"; the checkpoint names {name}" if name else ""
        return f"none{there}: convert again with --tokenizer, so that it can write text"
    from scdd.data.tokenizer import TextTokenizer

    own = TextTokenizer(found.tokenizer)
    chat = ", with a template of chats" if "chat_template" in found.extra else ""
    return f"{own.size:,} ids, mask {own.mask} ({own.mask_id}), texts from {own.bos} to {own.eos}{chat}"


def _process(section: dict[str, Any] | None) -> str:
    if section is None:
        return "its files do not say: convert again with --process, for example scdd:0.1 or mdlm"
    if section["kind"] == "ar":
        return "ar, left to right; as training.start_from it becomes a diffusion model"
    p_u = (section.get("schedule") or {}).get("p_u")
    return str(section["kind"]) + ("" if p_u is None else f", p_u {p_u:g}")
