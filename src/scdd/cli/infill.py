"""`scdd infill`: fill the [MASK] spans of a text."""

from __future__ import annotations

from typing import Any

from scdd.cli import options as o
from scdd.cli.view import check_trace, draw, on_terminal


@o.with_sampling
def infill(
    text: o.Text = None,
    file: o.File = None,
    model: o.Model = None,
    num: o.Num = 1,
    seed: o.Seed = 0,
    process: o.Process = None,
    batch_size: o.BatchSize = 16,
    blocks: o.Blocks = False,
    device: o.Device = None,
    changes: o.Changes = None,
    json: o.Json = False,
    trace: o.Trace = None,
    plain: o.Plain = False,
    *,
    chosen: dict[str, Any],
) -> None:
    """Fill the [MASK] (one token) and [MASK:12] (twelve tokens) spans of a text; the rest stays as it is."""
    given = o.read_text(text, file)
    check_trace(trace)
    lm = o.open_model(model, process, device, changes)
    record = on_terminal(json, plain) or trace is not None
    plan = lm.plan(seed=seed, batch_size=batch_size, record=record, **chosen)
    run = lm.start_infill(given, num, blocks=blocks, plan=plan)
    draw(run, lm, f"scdd infill · {lm.name}", as_json=json, plain=plain, trace=trace)
