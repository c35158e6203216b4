"""A text under repair: what it reads now, and by which edits of the original."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from scdd.lm.results import Edit


@dataclass(frozen=True)
class _Piece:
    """Characters [start, end) of the present text, which stand for [low, high) of the original."""

    start: int
    end: int
    low: int
    high: int
    log_odds: float
    kind: str

    @property
    def growth(self) -> int:
        return (self.end - self.start) - (self.high - self.low)


class Draft:
    """Edits are put into the present text; those that touch earlier ones become one with them."""

    def __init__(self, text: str) -> None:
        self.original = self.text = text
        self._pieces: list[_Piece] = []

    def put(self, start: int, end: int, new: str, log_odds: float, kind: str) -> None:
        """Replace characters [start, end) of the present text."""
        near = [p for p in self._pieces if p.start <= end and start <= p.end]
        low, high = min([start, *(p.start for p in near)]), max([end, *(p.end for p in near)])
        content = self.text[low:start] + new + self.text[end:high]
        before = [p for p in self._pieces if p not in near and p.end <= low]
        after = [p for p in self._pieces if p not in near and p.end > low]
        shift = sum(p.growth for p in before)
        inside = sum(p.growth for p in near)
        piece = _Piece(
            low, low + len(content), low - shift, high - shift - inside, log_odds + sum(p.log_odds for p in near), kind
        )
        moved = len(content) - (high - low)
        self.text = self.text[:low] + content + self.text[high:]
        later = [_Piece(p.start + moved, p.end + moved, p.low, p.high, p.log_odds, p.kind) for p in after]
        self._pieces = [*before, piece, *later]

    def now(self, ranges: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
        """Ranges of the original that no edit touches, in the present text."""
        highs = [p.high for p in self._pieces]
        growths = list(accumulate((p.growth for p in self._pieces), initial=0))
        shifts = [growths[bisect_right(highs, low)] for low, _ in ranges]
        return [(low + shift, high + shift) for (low, high), shift in zip(ranges, shifts, strict=True)]

    @property
    def changed(self) -> list[tuple[int, int]]:
        """Ranges of the present text that edits wrote."""
        return [(p.start, p.end) for p in self._pieces if p.end > p.start]

    @property
    def edits(self) -> tuple[Edit, ...]:
        """What was changed, by the original's characters; what came back to what it was is no edit."""
        made = [
            Edit(p.low, p.high, self.original[p.low : p.high], self.text[p.start : p.end], p.log_odds, p.kind)
            for p in self._pieces
        ]
        return tuple(each for each in made if each.before != each.after)
