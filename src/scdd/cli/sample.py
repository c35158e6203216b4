"""`scdd sample`: draw text from a model."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from scdd.cli import options as o
from scdd.cli.view import check_trace, draw, on_terminal


@o.with_sampling
def sample(
    model: o.Model = None,
    num: o.Num = 1,
    length: Annotated[
        int | None,
        typer.Option(
            help="Tokens in a text; default: the recipe's. Longer texts than the context are written in windows."
        ),
    ] = None,
    prompt: Annotated[str, typer.Option(help="What the text begins with.")] = "",
    suffix: Annotated[str, typer.Option(help="What the text ends with.")] = "",
    seed: o.Seed = 0,
    process: o.Process = None,
    batch_size: o.BatchSize = 16,
    device: o.Device = None,
    changes: o.Changes = None,
    json: o.Json = False,
    trace: o.Trace = None,
    plain: o.Plain = False,
    *,
    chosen: dict[str, Any],
) -> None:
    """Draw text from a model."""
    o.checked(prompt, "--prompt"), o.checked(suffix, "--suffix")
    check_trace(trace)
    lm = o.open_model(model, process, device, changes)
    record = on_terminal(json, plain) or trace is not None
    plan = lm.plan(seed=seed, batch_size=batch_size, record=record, stop=not suffix, **chosen)
    run = lm.start(num, length=length, prompt=prompt, suffix=suffix, plan=plan)
    draw(run, lm, f"scdd sample · {lm.name}", as_json=json, plain=plain, trace=trace)
