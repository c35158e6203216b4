"""What tests do inside of the ranks that they start: die at a chosen step, count the memory that saving takes."""

from __future__ import annotations

import os
import signal
from typing import Any


def die_in_step(rank: int, step: int) -> None:
    """SIGKILL that rank between the backward pass and the update of a step, unless it has been restarted already."""
    if os.environ.get("RANK", "0") != str(rank) or os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0":
        return
    from scdd.training.optim import Optimiser

    update = Optimiser.update_and_average

    def deadly(self: Optimiser, number: int, *more: Any) -> Any:
        if number == step:
            os.kill(os.getpid(), signal.SIGKILL)
        return update(self, number, *more)

    Optimiser.update_and_average = deadly  # type: ignore[method-assign]
