"""`scdd correct`: find and repair what a model doubts in a text."""

from __future__ import annotations

from typing import Annotated

import typer

from scdd.cli import options as o
from scdd.cli.view import on_terminal, save_trace, show_correction


def correct(
    text: o.Text = None,
    file: o.File = None,
    model: o.Model = None,
    strength: o.Strength = 0.1,
    mode: Annotated[
        str,
        typer.Option(
            help="reverse: walk the reverse process from --strength; pass: one evaluation, by --threshold."
        ),
    ] = "reverse",
    threshold: Annotated[
        float,
        typer.Option(help="pass: change a token whose probability is below this share of the best one's."),
    ] = 2e-4,
    freeze: Annotated[
        list[str] | None,
        typer.Option(metavar="PIECE", help="A piece of the text that must stay; may be repeated."),
    ] = None,
    steps: Annotated[
        int, typer.Option(help="reverse: steps from --strength to 0, each one network evaluation.")
    ] = 16,
    seed: o.Seed = 0,
    final: Annotated[
        str, typer.Option(help="reverse: last step; greedy settles each token for the likelier one.")
    ] = "greedy",
    top_p: Annotated[float, typer.Option(help="reverse: replacements come from this nucleus.")] = 0.9,
    process: o.Process = None,
    blocks: o.Blocks = False,
    device: o.Device = None,
    changes: o.Changes = None,
    json: o.Json = False,
    trace: o.Trace = None,
    plain: o.Plain = False,
) -> None:
    """Find and repair what a model doubts in a text: an argument, a file, or standard input."""
    given = o.read_text(text, file)
    if trace is not None:
        from scdd.core.errors import UserError
        from scdd.trace.output import check_path

        check_path(trace)
        if mode == "pass":
            raise UserError(
                "--trace shows steps, and --mode pass takes none: leave it out, or use --mode reverse."
            )
    lm = o.open_model(model, process, device, changes)
    found = lm.correct(
        given,
        strength=strength,
        mode=mode,
        threshold=threshold,
        freeze=tuple(freeze or ()),
        steps=steps,
        seed=seed,
        final=final,
        top_p=top_p,
        blocks=blocks,
        record=trace is not None,
    )
    show_correction(found, json, on_terminal(json, plain))
    save_trace(trace, [found], lm, f"scdd correct · {lm.name}")
