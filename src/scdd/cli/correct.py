"""`scdd correct`: find and repair what a model doubts in a text."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from scdd.cli import options as o
from scdd.cli.view import check_trace, on_terminal, save_trace, show_correction
from scdd.core.errors import UserError
from scdd.lm.options import RepairOptions


@o.with_options(RepairOptions, into="chosen")
def correct(
    text: o.Text = None,
    file: o.File = None,
    model: o.Model = None,
    freeze: Annotated[
        list[str] | None, typer.Option(metavar="PIECE", help="A piece of the text that must stay; may be repeated.")
    ] = None,
    seed: o.Seed = 0,
    process: o.Process = None,
    blocks: o.Blocks = False,
    device: o.Device = None,
    changes: o.Changes = None,
    json: o.Json = False,
    trace: o.Trace = None,
    plain: o.Plain = False,
    *,
    chosen: dict[str, Any],
) -> None:
    """Find and repair what a model doubts in a text: an argument, a file, or standard input."""
    given = o.read_text(text, file)
    check_trace(trace)
    lm = o.open_model(model, process, device, changes)
    if trace is not None and chosen.get("mode", lm.repair.mode) == "pass":
        raise UserError("--trace shows steps, and --mode pass takes none: leave it out, or use --mode reverse.")
    keep = tuple(freeze or ())
    correction = lm.correct(given, freeze=keep, seed=seed, blocks=blocks, record=trace is not None, **chosen)
    show_correction(correction, json, on_terminal(json, plain))
    save_trace(trace, [correction], lm, f"scdd correct · {lm.name}")
