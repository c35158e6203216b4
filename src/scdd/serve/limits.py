"""How much one request, and all of them together, may ask for."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Everything is bounded: what is beyond is refused before anything is computed."""

    body: int = 256 * 1024
    """Bytes of a request."""
    length: int = 1024
    """Tokens of a text, prompt and suffix included."""
    steps: int = 1024
    """Steps, hence network evaluations for each window of a text."""
    texts: int = 8
    """Texts that one request may draw."""
    queue: int = 64
    """Jobs that may wait; the next one is answered with 429."""
    seconds: float = 60.0
    """From a request's arrival to its answer."""
    batch: int = 16
    """Texts under way at the same time, in each worker."""
    workers: int = 1
    """Threads that compute."""
    rows_per_forward: int | None = None
    """Rows of a network evaluation, filled up if need be, or fewer that give the same bits; None on a CPU, where `sharing` finds out."""
