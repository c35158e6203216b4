"""What a round of a soak has found."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields
from pathlib import Path

FAULTS = ("differing", "tracebacks", "hangs", "memory")


@dataclass
class Tally:
    """Counts of a part so far, or of one of its rounds; sums are taken with `add`."""

    inputs: int = 0
    refused: int = 0
    seconds: float = 0.0
    differing: int = 0  # or lost
    tracebacks: int = 0
    hangs: int = 0  # more than 20 s
    memory: int = 0  # more than 1 GiB
    notes: list[str] = field(default_factory=list)
    rounds: int = 0
    peak: int = 0  # MiB beyond what the process had at first

    def add(self, other: Tally) -> None:
        for each in fields(self):
            one, two = getattr(self, each.name), getattr(other, each.name)
            setattr(self, each.name, max(one, two) if each.name == "peak" else one + two)

    def fault(self, kind: str, note: str) -> None:
        setattr(self, kind, getattr(self, kind) + 1)
        self.notes.append(f"{kind}: {note[:600]}")

    @property
    def sound(self) -> bool:
        return not any(getattr(self, name) for name in FAULTS)


Part = Callable[[Path, int], Iterator[Tally]]
"""Rounds from the given number on, without end, in a folder of their own; a round is repeatable by its number."""
