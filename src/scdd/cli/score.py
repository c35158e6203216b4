"""`scdd score`: show how likely a model finds each token of a text."""

from __future__ import annotations

from typing import Any

from scdd.cli import options as o
from scdd.cli.view import show_score
from scdd.lm.options import RepairOptions


@o.with_flags(o.ModelFlags)
@o.with_options(RepairOptions, "strength")
def score(
    text: o.Text = None, file: o.File = None, blocks: o.Blocks = False, *, flags: o.ModelFlags, chosen: dict[str, Any]
) -> None:
    """Show how likely a model finds each token of a text, and how much it doubts it."""
    given = o.read_text(text, file)
    show_score(flags.open().score(given, blocks=blocks, **chosen), flags)
