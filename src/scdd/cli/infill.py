"""`scdd infill`: fill the [MASK] spans of a text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from scdd.cli import options as o
from scdd.cli.batch import BatchFlags, check_alone, identity, run_batch
from scdd.cli.view import draw
from scdd.core.errors import UserError
from scdd.samplers.options import DRAWING, SamplingOptions

if TYPE_CHECKING:
    from scdd.lm.results import Sample


@o.with_flags(o.DrawFlags)
@o.with_flags(BatchFlags, "many")
@o.with_options(SamplingOptions, *DRAWING)
def infill(
    text: o.Text = None,
    file: o.File = None,
    num: o.Num = 1,
    batch_size: o.BatchSize = 16,
    blocks: o.Blocks = False,
    *,
    flags: o.DrawFlags,
    many: BatchFlags,
    chosen: dict[str, Any],
) -> None:
    """Fill the [MASK] (one token), [MASK:12] (twelve) and [MASK:4-12] (as many as fit best) spans of a text; the rest stays."""
    if many.wanted:
        check_alone(text, file, flags.trace)
        if many.lines is not None and num > 1 and not flags.json:
            raise UserError(f"--num {num} with --lines has a line for several texts: add --json, or leave --num out.")
        lm = flags.open()
        plan = lm.plan(seed=flags.seed, batch_size=batch_size, **chosen)

        def ask(texts: list[str]) -> list[tuple[Sample, ...]]:
            samples = lm.start_infill(texts, num, blocks=blocks, plan=plan).results
            return [samples[i : i + num] for i in range(0, len(samples), num)]

        settings = {"num": num, "blocks": blocks, "seed": flags.seed, "changes": flags.changes, **chosen}
        plain = None if flags.json else lambda samples: samples[0].text
        run_batch("infill", many, {**identity(lm, many), **settings}, ask, plain)
        return
    given = o.read_text(text, file)
    lm = flags.open()
    record = flags.live or flags.trace is not None
    plan = lm.plan(seed=flags.seed, batch_size=batch_size, record=record, **chosen)
    draw(lm.start_infill(given, num, blocks=blocks, plan=plan), lm, "infill", flags)
