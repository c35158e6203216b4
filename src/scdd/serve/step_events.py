"""A batch's rows as plain numbers: what watchers are told, and what texts end with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from scdd.lm.results import Moment
from scdd.lm.run import Ending, Recorded, Window
from scdd.samplers.readback import Array, HostRows
from scdd.serve.jobs import StepEvent

When = tuple[int, int, float, float]
"""Which step, of how many, from t to s (`BatchRow.moment`)."""


class Kept(NamedTuple):
    """A recorded step of a row."""

    moment: When
    tokens: Array
    moved: Array
    log_p: Array


def ending(rows: HostRows, slot: int, length: int, recorded: Recorded | None) -> Ending:
    """A row at its walk's end."""
    tokens, counts = rows.tokens[slot, :length].tolist(), rows.counts[slot].tolist()
    return Ending(tokens, counts, int(rows.nfe[slot]), recorded)


def event_of(rows: HostRows, slot: int, number: int, window: Window, moment: When) -> StepEvent:
    """What the watcher of text `number` is told."""
    inside = slice(1, 1 + window.stop - window.start)
    step, steps, t, s = moment
    return StepEvent(
        row=number,
        offset=window.start,
        step=step,
        steps=steps,
        t=t,
        s=s,
        tokens=rows.tokens[slot, inside].tolist(),
        moved=rows.moved[slot, inside].tolist(),
        log_p=rows.log_p[slot, inside].tolist(),
        counts=rows.counts[slot].tolist(),
        nfe=int(rows.nfe[slot]),
    )


def kept(rows: HostRows, slot: int, moment: When) -> Kept:
    """A row as it is, to be kept: a copy, which keeps no others alive."""
    return Kept(moment, rows.tokens[slot].copy(), rows.moved[slot].copy(), rows.log_p[slot].copy())


def kept_steps(steps: Sequence[Kept] | None) -> Recorded | None:
    """The recorded steps of a row that has ended."""
    if steps is None:
        return None
    moments, *parts = zip(*steps, strict=True)
    tokens, moved, log_p = (torch.from_numpy(np.stack(each)) for each in parts)
    return Recorded([Moment(step, t, s) for step, _, t, s in moments], tokens, moved, log_p)
