"""`scdd score`: show how likely a model finds each token of a text."""

from __future__ import annotations

from typing import Any

from scdd.cli import options as o
from scdd.cli.view import on_terminal, show_score
from scdd.lm.options import RepairOptions


@o.with_options(RepairOptions, "strength", into="chosen")
def score(
    text: o.Text = None,
    file: o.File = None,
    model: o.Model = None,
    process: o.Process = None,
    blocks: o.Blocks = False,
    device: o.Device = None,
    json: o.Json = False,
    plain: o.Plain = False,
    *,
    chosen: dict[str, Any],
) -> None:
    """Show how likely a model finds each token of a text, and how much it doubts it."""
    given = o.read_text(text, file)
    lm = o.open_model(model, process, device)
    show_score(lm.score(given, blocks=blocks, **chosen), json, on_terminal(json, plain))
