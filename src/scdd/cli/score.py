"""`scdd score`: show how likely a model finds each token of a text."""

from __future__ import annotations

from typing import Any

from scdd.cli import options as o
from scdd.cli.batch import BatchFlags, check_alone, identity, run_batch
from scdd.cli.view import show_score
from scdd.lm.options import ScoreOptions


@o.with_flags(o.ModelFlags)
@o.with_flags(BatchFlags, "many")
@o.with_options(ScoreOptions)
def score(
    text: o.Text = None,
    file: o.File = None,
    blocks: o.Blocks = False,
    *,
    flags: o.ModelFlags,
    many: BatchFlags,
    chosen: dict[str, Any],
) -> None:
    """Show how likely a model finds each token of a text, and how much it doubts it."""
    if many.wanted:
        check_alone(text, file)
        lm = flags.open()
        settings = {**identity(lm, many), "blocks": blocks, **chosen}
        run_batch("score", many, settings, lambda texts: lm.score(texts, blocks=blocks, **chosen), None)
        return
    given = o.read_text(text, file)
    show_score(flags.open().score(given, blocks=blocks, **chosen), flags)
