"""`scdd export`: a model to pass on, without what only training needs and with its weights in fewer bytes."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from scdd.core.errors import UserError

if TYPE_CHECKING:
    from scdd.bundle.folder import Bundle


def export(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL", help="Checkpoint folder, run folder (its newest), Hub id, or what convert reads."
        ),
    ],
    out: Annotated[Path, typer.Option(help="Folder for the exported model.")],
    weights: Annotated[
        str | None,
        typer.Option(
            help="How to store them: bfloat16 (half the bytes of float32), int8 (a quarter), int4 (a seventh) or float32; default: "
            "bfloat16, or without --hf the int8 or int4 that the model has already."
        ),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Replace a model in --out; its other files, README.md too, stay.")
    ] = False,
    hf: Annotated[
        bool, typer.Option("--hf", help="Add config, code and card, so that transformers loads it without scdd.")
    ] = False,
) -> None:
    """Write a model as a small folder to share: recipe, tokenizer and weights, nothing to resume training from."""
    from safetensors import SafetensorError

    from scdd.bundle.folder import CARD, KINDS, PACKED, read, write
    from scdd.lm.sharing import hub_files, own_card

    if weights is not None and weights not in KINDS:
        raise UserError(f"--weights {weights} is not known: choose one of {', '.join(KINDS)}.")
    kept = kept_files(out, force)
    source = read(model)
    kind = weights or (source.kind if source.kind in PACKED and not hf else "bfloat16")
    add = hub_files(source, out.name, kind) if hf else None
    if CARD not in (each.name for each in kept) and (card := own_card(source, model)) is not None:
        kept.append(card)

    def more(folder: Path) -> None:
        copy_files(kept, folder)
        if add is not None:
            add(folder)

    before = stored_bytes(source)  # --out may be the same folder
    try:
        write(out, source, source.weights, kind=kind, more=more)
    except (OSError, SafetensorError) as error:
        raise UserError(f"--out {out} cannot be written ({error}): make room, or choose another.") from error
    _summary(source, before, read(out), out)
    if hf:
        task = "Causal" if (source.network or {}).get("causal") else "Masked"
        print(f'  transformers: AutoModelFor{task}LM.from_pretrained("{out}", trust_remote_code=True)')


def kept_files(out: Path, force: bool) -> list[Path]:
    """What lies in `out` beside a model's own files and shall stay; refuses what must not be replaced."""
    from scdd.bundle.folder import FILES, META, WEIGHTS
    from scdd.bundle.huggingface import WRITTEN, is_written
    from scdd.training.verify import RESUME

    here, place = Path.cwd().resolve(), out.resolve()
    if place == here or place in here.parents:  # the shell would be left in a folder that is gone
        raise UserError(
            f"--out {out} is the folder you are in, or holds it: choose a folder inside, as in --out model."
        )
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return []
    if not all((out / name).is_file() for name in (META, WEIGHTS)):
        raise UserError(f"--out {out} exists and is no model: choose a folder that does not exist yet.")
    if (out / RESUME).exists():
        raise UserError(f"--out {out} is a checkpoint that training resumes from: choose another folder.")
    if not force:
        raise UserError(f"--out {out} holds a model already: replace it with --force, or choose another.")
    own = {*FILES, *(WRITTEN if is_written(out) else ())}  # a config must not outlive its weights
    return sorted(each for each in out.iterdir() if each.name not in own)


def stored_bytes(source: Bundle) -> int:
    """Bytes of a model's weights in its file; of one from elsewhere, of its file, or as they lie in memory."""
    from scdd.bundle.folder import WEIGHTS

    if source.folder.is_file() or (source.folder / WEIGHTS).is_file():
        return (source.folder if source.folder.is_file() else source.folder / WEIGHTS).stat().st_size
    return sum(tensor.numel() * tensor.element_size() for tensor in source.weights.values())


def copy_files(entries: list[Path], folder: Path) -> None:
    """Put files and folders into `folder`."""
    for each in entries:
        if each.is_dir():
            shutil.copytree(each, folder / each.name, symlinks=True)
        else:  # links are followed: the Hub's cache holds nothing else
            shutil.copy2(each, folder / each.name)


def shown(path: Path) -> Path:
    """A path as people would write it here."""
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path


def _summary(source: Bundle, before: int, written: Bundle, out: Path) -> None:
    """Sizes, and how far rounding moved the weights, measured on the file as it was read back."""
    from scdd.bundle.folder import WEIGHTS
    from scdd.bundle.packed import largest_change

    after = (written.folder / WEIGHTS).stat().st_size
    print(f"{shown(source.folder)} → {out}, step {source.step:,}")
    print(
        f"  weights: {before / 1e6:,.2f} MB of {source.kind} → {after / 1e6:,.2f} MB of {written.kind} "
        f"({after / before:.0%})"
    )
    name, share = largest_change(source.weights, written.weights)
    print(f"  largest change of a matrix: {share:.2%} of its norm ({name})" if name else "  no matrix changed")
