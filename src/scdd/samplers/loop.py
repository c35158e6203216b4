"""The only loop: evaluate, decide, move, record. The terminal, the trace, the metrics and the server all read its frames.

`sample_loop` walks rows that begin together. What a step does is in `samplers.step`; `samplers.row_batch` holds the rows, and lets
others join them at any step, as the server's do.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from scdd.core.rng import CounterRNG
from scdd.samplers.base import Model
from scdd.samplers.plan import SamplingPlan
from scdd.samplers.row_batch import RowBatch
from scdd.samplers.step import TokenRows


class Frame(NamedTuple):
    """The texts after a step, and what moved. Tensors stay where the network lives: reading one may wait for it."""

    step: int  # 1 … steps
    steps: int
    t: float
    s: float
    tokens: Tensor  # [B, L] int64
    moved: Tensor  # [B, L] int8, see KINDS
    log_p: Tensor  # [B, L] float32: log x_θ of the token as of this step; NaN where noise was drawn, −∞ at masks
    counts: Tensor  # [B, 3] int64: positions unmasked, corrected and remasked so far
    nfe: Tensor  # [B] int64: network evaluations so far


@torch.no_grad()
def sample_loop(model: Model, plan: SamplingPlan, rows: TokenRows, rng: CounterRNG) -> Iterator[Frame]:
    """Walk `rows` back to clean text as planned; a frame a step, or the last one only where nobody looks."""
    batch = RowBatch(model, plan)
    batch.add(rows, rng)
    frame = Frame(0, 0, 0.0, 0.0, *batch.standing)
    while not all(row.ended for row in batch.rows):
        seen = batch.step()
        frame = Frame(*batch.rows[0].moment, *seen)
        if plan.record:
            yield frame
    if not plan.record or frame.step == 0:  # without steps (final "none" of a single one) nothing has moved
        yield frame
