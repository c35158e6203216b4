"""`scdd infill`: fill the [MASK] spans of a text."""

from __future__ import annotations

from typing import Any

from scdd.cli import options as o
from scdd.cli.view import draw
from scdd.samplers.options import DRAWING, SamplingOptions


@o.with_flags(o.DrawFlags)
@o.with_options(SamplingOptions, *DRAWING)
def infill(
    text: o.Text = None,
    file: o.File = None,
    num: o.Num = 1,
    batch_size: o.BatchSize = 16,
    blocks: o.Blocks = False,
    *,
    flags: o.DrawFlags,
    chosen: dict[str, Any],
) -> None:
    """Fill the [MASK] (one token) and [MASK:12] (twelve tokens) spans of a text; the rest stays as it is."""
    given = o.read_text(text, file)
    lm = flags.open()
    record = flags.live or flags.trace is not None
    plan = lm.plan(seed=flags.seed, batch_size=batch_size, record=record, **chosen)
    draw(lm.start_infill(given, num, blocks=blocks, plan=plan), lm, "infill", flags)
