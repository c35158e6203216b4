"""Time grids as data: N + 1 falling times, the last one 0, hence N steps and N network evaluations."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise

from scdd.core.errors import UserError

Grid = tuple[float, ...]

SHAPES: dict[str, Callable[[float], float]] = {
    "uniform": lambda u: 1.0 - u,
    "quadratic": lambda u: (1.0 - u) ** 2,  # small steps at the end, where the last errors are corrected
    "cosine": lambda u: math.cos(0.5 * math.pi * u),  # small steps at the start, where little is known
}
"""Times as a share of the first one, from the share u of the steps already done."""


def grid(kind: str = "uniform", steps: int = 128, start: float = 1.0) -> Grid:
    """`steps` steps from `start` (1: all masks; less: from a given text, t0) down to 0."""
    if kind not in SHAPES:
        raise UserError(f"The time grid is {kind!r}: choose one of {', '.join(SHAPES)}.")
    if steps < 1:
        raise UserError(f"steps is {steps}: take at least 1; each step is one network evaluation.")
    if not 0.0 < start <= 1.0:
        raise UserError(f"The grid's start is {start}: choose a time in (0, 1]; 1 begins from masks.")
    shape = SHAPES[kind]
    return (*(start * shape(i / steps) for i in range(steps)), 0.0)


def checked(times: Sequence[float]) -> Grid:
    """Times of a caller's own; a time may repeat (ReMDM's loop stays at one level), never rise, and 0 comes last."""
    times = tuple(float(t) for t in times)
    if len(times) < 2 or times[-1] != 0.0 or not 0.0 < times[0] <= 1.0:
        raise UserError("A time grid needs at least two times, the first in (0, 1] and the last 0.")
    if any(later > earlier for earlier, later in pairwise(times)):
        raise UserError("A time grid must not rise: sort its times from the largest to 0.")
    if times[-2] == 0.0:
        raise UserError("A time grid may hold 0 once, as its end: a step from 0 to 0 would do nothing.")
    return times
