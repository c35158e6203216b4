"""A batch's rows as plain numbers, read off the device at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from scdd.lm.results import Moment
from scdd.lm.run import Ending, Recorded, Window
from scdd.samplers.sight import Seen as Rows
from scdd.serve.jobs import Seen

Array = np.ndarray[Any, np.dtype[Any]]


class Shown(NamedTuple):
    """All rows after a step."""

    tokens: Array
    moved: Array
    log_p: Array
    counts: Array
    nfe: Array

    def ending(self, place: int, length: int, recorded: Recorded | None) -> Ending:
        """A row at its walk's end."""
        tokens, counts = self.tokens[place, :length].tolist(), self.counts[place].tolist()
        return Ending(tokens, counts, int(self.nfe[place]), recorded)

    def seen(self, place: int, number: int, window: Window, moment: tuple[int, int, float, float]) -> Seen:
        """What the watcher of text `number` is told."""
        inside = slice(1, 1 + window.stop - window.start)
        step, steps, t, s = moment
        return Seen(
            row=number,
            offset=window.start,
            step=step,
            steps=steps,
            t=t,
            s=s,
            tokens=self.tokens[place, inside].tolist(),
            moved=self.moved[place, inside].tolist(),
            log_p=self.log_p[place, inside].tolist(),
            counts=self.counts[place].tolist(),
            nfe=int(self.nfe[place]),
        )


def shown(seen: Rows) -> Shown:
    """One copy, for a wait for the device costs more than what is copied."""
    if seen.tokens.device.type == "cpu":
        return Shown(*(each.numpy() for each in seen))
    length = seen.tokens.shape[1]
    parts = (seen.tokens, seen.moved, seen.log_p.view(torch.int32), seen.counts, seen.nfe[:, None])
    packed = torch.cat([part.to(torch.int64) for part in parts], dim=1).cpu().numpy()
    tokens, moved, log_p, counts, nfe = np.split(packed, [length, 2 * length, 3 * length, 3 * length + 3], axis=1)
    return Shown(tokens, moved, log_p.astype(np.int32).view(np.float32), counts, nfe[:, 0])


def kept_steps(kept: Sequence[tuple[Any, ...]] | None) -> Recorded | None:
    """The recorded steps of a row that has ended: (step, steps, t, s, tokens, moves, log x_θ) each."""
    if kept is None:
        return None
    stacked = (torch.stack(list(each)).cpu() for each in list(zip(*kept, strict=True))[4:])
    tokens, moved, log_p = stacked
    return Recorded([Moment(step, t, s) for step, _, t, s, *_ in kept], tokens, moved, log_p)
