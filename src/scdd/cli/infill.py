"""`scdd infill`: fill the [MASK] spans of a text."""

from __future__ import annotations

from scdd.cli import options as o
from scdd.cli.view import follow, on_terminal, save_trace, show_samples


def infill(
    text: o.Text = None,
    file: o.File = None,
    model: o.Model = None,
    num: o.Num = 1,
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
    blocks: o.Blocks = False,
    device: o.Device = None,
    changes: o.Changes = None,
    json: o.Json = False,
    trace: o.Trace = None,
    plain: o.Plain = False,
) -> None:
    """Fill the [MASK] (one token) and [MASK:12] (twelve tokens) spans of a text; the rest stays as it is."""
    given = o.read_text(text, file)
    if trace is not None:
        from scdd.trace.output import check_path

        check_path(trace)
    lm = o.open_model(model, process, device, changes)
    live = on_terminal(json, plain)
    run = lm.start_infill(
        given,
        num,
        blocks=blocks,
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
    save_trace(trace, samples, lm, f"scdd infill · {lm.name}")
