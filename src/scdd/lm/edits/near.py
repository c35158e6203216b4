"""Words that are spelt nearly like given ones, found without walking through all words.

Two words that differ by one insertion, deletion, substitution or swap of neighbours become equal when at most one letter is left out of
each. So every word stands in an index under itself and under what is left of it without one of its letters, and whoever is looked up in
the same ways meets all words at distance one. The index holds hashes, since a hundred thousand words have a million such keys;
what meets by chance is sorted out by looking at the letters.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

Hashes = np.ndarray[Any, np.dtype[np.uint64]]
Places = np.ndarray[Any, np.dtype[np.int64]]
BASE = 0x9E3779B97F4A7C15  # odd, so that its powers never vanish


class Near:
    """An index of words."""

    def __init__(self, words: Sequence[str]) -> None:
        self._words = words
        hashes, owners = keys(words)
        order = np.argsort(hashes)
        self._hashes, self._owners = hashes[order], owners[order].astype(np.int32)

    def one_away(self, words: Sequence[str]) -> dict[str, set[str]]:
        """The index's words at distance one or less from each of these."""
        hashes, askers = keys(words)
        first = np.searchsorted(self._hashes, hashes, "left")
        many = np.searchsorted(self._hashes, hashes, "right") - first
        found: dict[str, set[str]] = {word: set() for word in words}
        for i in np.flatnonzero(many):
            word = words[askers[i]]
            met = (self._words[owner] for owner in self._owners[first[i] : first[i] + many[i]])
            found[word].update(each for each in met if within_one(word, each))
        return found


def keys(words: Sequence[str]) -> tuple[Hashes, Places]:
    """Hashes of words and of what is left of them without one of their letters, and whose each is.

    The hash of letters c_0 … c_{n−1} is Σ c_i·B^{n−1−i} mod 2^64, so leaving out letter i takes the letters before it down by one power.
    """
    lengths = np.array([len(word) for word in words], dtype=np.int64)
    longest = max(int(lengths.max(initial=0)), 1)
    codes = np.array(words, dtype=f"U{longest}").view(np.uint32).reshape(len(words), longest).astype(np.uint64)
    powers = np.cumprod(np.array([1] + [BASE] * longest, dtype=np.uint64))
    before = np.zeros((len(words), longest + 1), dtype=np.uint64)  # hashes of the first i letters
    for i in range(longest):
        before[:, i + 1] = before[:, i] * np.uint64(BASE) + codes[:, i]
    rows = np.arange(len(words))
    whole = before[rows, lengths]
    places = np.arange(longest)
    inside = places < lengths[:, None]
    after = np.where(inside, lengths[:, None] - 1 - places, 0)
    without = whole[:, None] - (before[:, 1:] - before[:, :-1]) * powers[after]
    owners = np.broadcast_to(rows[:, None], inside.shape)
    return np.concatenate([whole, without[inside]]), np.concatenate([rows, owners[inside]])


def within_one(a: str, b: str) -> bool:
    """Whether one insertion, deletion, substitution or swap of neighbours makes b of a, or they are equal."""
    if abs(len(a) - len(b)) > 1:
        return False
    start = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    a, b = a[start:], b[start:]
    if len(a) == len(b):
        return a[1:] == b[1:] or (a[:1] == b[1:2] and a[1:2] == b[:1] and a[2:] == b[2:])
    return a[1:] == b or a == b[1:]
