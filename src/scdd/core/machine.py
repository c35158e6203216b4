"""What this process may use of its machine. Nothing here imports torch."""

from __future__ import annotations

import os


def cores() -> int:
    """Cores that this process may run on, where the system says so; else all."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
