"""`scdd correct`: find and repair what a model doubts in a text."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from scdd.cli import options as o
from scdd.cli.view import save_trace, show_correction
from scdd.core.errors import UserError
from scdd.lm.options import RepairOptions


@o.with_flags(o.DrawFlags)
@o.with_options(RepairOptions)
def correct(
    text: o.Text = None,
    file: o.File = None,
    freeze: Annotated[
        list[str] | None, typer.Option(metavar="PIECE", help="A piece of the text that must stay; may be repeated.")
    ] = None,
    blocks: o.Blocks = False,
    *,
    flags: o.DrawFlags,
    chosen: dict[str, Any],
) -> None:
    """Find and repair what a model doubts in a text: an argument, a file, or standard input."""
    given = o.read_text(text, file)
    lm, record = flags.open(), flags.trace is not None
    mode = chosen.get("mode", "reverse")
    if record and mode != "reverse":
        raise UserError(f"--trace shows steps, and --mode {mode} takes none: leave it out, or use --mode reverse.")
    correction = lm.correct(given, freeze=tuple(freeze or ()), seed=flags.seed, blocks=blocks, record=record, **chosen)
    show_correction(correction, flags)
    save_trace(flags.trace, [correction], lm, "correct")
