"""The statistics that both training's log and the measurements need. Nothing here imports torch."""

from __future__ import annotations

import math


def ratio_error(squares: float, units: float, total: float) -> float:
    """First-order standard error of r = Σa/Σk over independent units; unknown (NaN) of a single one.

    `squares` is Σ(a − r·k)², `total` is Σk.
    """
    return math.sqrt(squares * units / (units - 1)) / total if units > 1 else math.nan
