"""Signals that ask a run to end."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any

CAUGHT = (signal.SIGTERM, signal.SIGINT)


class Signals:
    """SIGTERM and SIGINT end the run after the current step, with a checkpoint; a second one ends it at once."""

    def __init__(self) -> None:
        self.received: signal.Signals | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Signals:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._receive) for number in CAUGHT}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _receive(self, number: int, _: FrameType | None) -> None:
        if self.received is not None:
            raise KeyboardInterrupt
        self.received = signal.Signals(number)
