"""`scdd sample`: draw text from a model."""

from __future__ import annotations

from typing import Annotated

import typer

from scdd.cli import options as o
from scdd.cli.view import follow, on_terminal, save_trace, show_samples


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
    steps: o.Steps = None,
    seed: o.Seed = 0,
    sampler: o.SamplerName = None,
    process: o.Process = None,
    grid: o.GridName = None,
    final: o.Final = None,
    top_p: o.TopP = None,
    top_k: o.TopK = None,
    temperature: o.Temperature = None,
    tolerance: o.Tolerance = None,
    batch_size: o.BatchSize = 16,
    device: o.Device = None,
    changes: o.Changes = None,
    json: o.Json = False,
    trace: o.Trace = None,
    plain: o.Plain = False,
) -> None:
    """Draw text from a model."""
    o.checked(prompt, "--prompt"), o.checked(suffix, "--suffix")
    if trace is not None:
        from scdd.trace.output import check_path

        check_path(trace)
    lm = o.open_model(model, process, device, changes)
    live = on_terminal(json, plain)
    run = lm.start(
        num,
        length=length,
        prompt=prompt,
        suffix=suffix,
        record=live or trace is not None,
        **o.wishes(
            steps=steps,
            seed=seed,
            sampler=sampler,
            grid=grid,
            final=final,
            top_p=top_p,
            top_k=top_k,
            temperature=temperature,
            tolerance=tolerance,
            batch_size=batch_size,
        ),
    )
    samples = follow(run, lm, live)
    show_samples(samples, json, live)
    save_trace(trace, samples, lm, f"scdd sample · {lm.name}")
