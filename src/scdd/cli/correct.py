"""`scdd correct`: find and repair what a model doubts in a text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from scdd.cli import options as o
from scdd.cli.batch import BatchFlags, check_alone, identity, run_batch
from scdd.cli.view import save_trace, show_correction
from scdd.core.errors import UserError
from scdd.lm.options import RepairOptions

if TYPE_CHECKING:
    from scdd.lm.results import Correction


@o.with_flags(o.DrawFlags)
@o.with_flags(BatchFlags, "many")
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
    many: BatchFlags,
    chosen: dict[str, Any],
) -> None:
    """Find and repair what a model doubts in a text: an argument, a file, or standard input; or in many (--jsonl, --lines)."""
    if many.wanted:
        check_alone(text, file, flags.trace)
        lm, stay = flags.open(), tuple(freeze or ())

        def ask(texts: list[str]) -> tuple[Correction, ...]:
            return lm.correct(texts, freeze=stay, seed=flags.seed, blocks=blocks, **chosen)

        settings = {"freeze": stay, "blocks": blocks, "seed": flags.seed, "changes": flags.changes, **chosen}
        plain = None if flags.json else lambda correction: correction.text
        run_batch("correct", many, {**identity(lm, many), **settings}, ask, plain)
        return
    given = o.read_text(text, file)
    lm, record = flags.open(), flags.trace is not None
    mode = chosen.get("mode", "reverse")
    if record and mode != "reverse":
        raise UserError(f"--trace shows steps, and --mode {mode} takes none: leave it out, or use --mode reverse.")
    how = {"freeze": tuple(freeze or ()), "seed": flags.seed, "blocks": blocks, "record": record, **chosen}
    correction = lm.correct(given, progress=flags.watched, **how)
    show_correction(correction, flags)
    save_trace(flags.trace, [correction], lm, "correct")
