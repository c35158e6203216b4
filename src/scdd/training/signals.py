"""Signals that ask a run to end."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any

LOST = getattr(signal, "SIGHUP", None)  # the terminal is gone; Windows has none
CAUGHT = (signal.SIGTERM, signal.SIGINT, *([] if LOST is None else [LOST]))


class Signals:
    """SIGTERM, SIGINT and SIGHUP end the run after the current step, with a checkpoint; a second one ends it at once.

    A run that was told not to hear of its terminal (nohup) does not.
    """

    def __init__(self) -> None:
        self.received: signal.Signals | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Signals:
        if threading.current_thread() is threading.main_thread():
            heard = [number for number in CAUGHT if number != LOST or signal.getsignal(number) != signal.SIG_IGN]
            self._before = {number: signal.signal(number, self._receive) for number in heard}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _receive(self, number: int, _: FrameType | None) -> None:
        if self.received is not None:
            raise KeyboardInterrupt
        self.received = signal.Signals(number)
