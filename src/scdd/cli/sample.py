"""`scdd sample`: draw text from a model."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from scdd.cli import options as o
from scdd.cli.view import draw
from scdd.samplers.options import DRAWING, SamplingOptions


@o.with_flags(o.DrawFlags)
@o.with_options(SamplingOptions, *DRAWING)
def sample(
    num: o.Num = 1,
    length: Annotated[
        int | None,
        typer.Option(
            help="Tokens in a text; default: the recipe's. Longer texts than the context are written in windows."
        ),
    ] = None,
    prompt: Annotated[str, typer.Option(help="What the text begins with.")] = "",
    suffix: Annotated[str, typer.Option(help="What the text ends with.")] = "",
    batch_size: o.BatchSize = 16,
    *,
    flags: o.DrawFlags,
    chosen: dict[str, Any],
) -> None:
    """Draw text from a model."""
    o.checked(prompt, "--prompt"), o.checked(suffix, "--suffix")
    lm = flags.open()
    record = flags.live or flags.trace is not None
    plan = lm.plan(seed=flags.seed, batch_size=batch_size, record=record, stop=not suffix, **chosen)
    samples = draw(lm.start(num, length=length, prompt=prompt, suffix=suffix, plan=plan), lm, "sample", flags)
    empty = [number for number, each in enumerate(samples, 1) if not each.text]
    if empty:
        one, many = f"text {empty[0]} ended at once, so it is", f"{len(empty)} texts ended at once, so they are"
        said = one if len(empty) == 1 else many
        typer.echo(f"note: {said} empty: try another --seed or a --prompt.", err=True)
