"""Words of the language with their counts, and which of them are spelt nearly like a given one.

Words within two letters are found without walking through all of them: two words that differ by one insertion, deletion,
substitution or swap become equal when at most one letter is left out of each, so an index by words with a letter left out finds
every word at distance one, and asking it for everything at distance one of the given word finds those at two.
"""

from __future__ import annotations

import lzma
import math
from collections.abc import Iterator, Mapping
from functools import cache, cached_property
from importlib.resources import files

LETTERS = "abcdefghijklmnopqrstuvwxyz'"
UNKNOWN = -1.0  # log2 count of a word that is in no list
FORMAT = "words by log2 of their count"


class Lexicon:
    """Words by their log2 counts; names are written with their capital."""

    def __init__(self, counts: Mapping[str, float]) -> None:
        self.counts = dict(counts)

    def __contains__(self, word: str) -> bool:
        return word in self.counts

    def count(self, word: str) -> float:
        """log2 of how often the word was seen, with or without a capital."""
        spellings = (word, word.lower(), word[:1].upper() + word[1:])
        return max(self.counts.get(each, UNKNOWN) for each in spellings)

    def knows(self, word: str) -> bool:
        """Whether a word is in the list as it is written, or in lower case; possessives and compounds part by part."""
        word = word.replace("’", "'")
        if word in self.counts or word.lower() in self.counts:
            return True
        stem, mark, rest = word.partition("'")
        return bool(mark) and rest.lower() in ("s", "") and self.knows(stem)

    def near(self, word: str, distance: int = 1) -> dict[str, int]:
        """Words of the list by their distance from `word` (lower case): insertions, deletions, substitutions, swaps."""
        found = dict.fromkeys(self._one_away(word), 1)
        if distance > 1:
            for step in _deletes(word) | _replaced(word):
                for each in self._one_away(step) | ({step} & self._lower.keys()):
                    found.setdefault(each, 2)
        found.pop(word, None)
        return found

    def _one_away(self, word: str) -> set[str]:
        candidates = {each for key in (word, *_deletes(word)) for each in self._index.get(key, ())}
        candidates |= {key for key in _deletes(word) if key in self._lower}
        return {each for each in candidates if within_one(word, each)}

    @cached_property
    def _lower(self) -> dict[str, float]:
        """Words in lower case; of a name and a word that are spelt alike, the word."""
        return {word: count for word, count in self.counts.items() if word == word.lower()}

    @cached_property
    def _index(self) -> dict[str, list[str]]:
        """Words by what is left of them without one of their letters."""
        index: dict[str, list[str]] = {}
        for word in self._lower:
            index.setdefault(word, []).append(word)
            for key in _deletes(word):
                index.setdefault(key, []).append(word)
        return index


def _deletes(word: str) -> set[str]:
    return {word[:i] + word[i + 1 :] for i in range(len(word))}


def _replaced(word: str) -> set[str]:
    """Everything one substitution, insertion or swap away."""
    splits = [(word[:i], word[i:]) for i in range(len(word) + 1)]
    swaps = {a + b[1] + b[0] + b[2:] for a, b in splits if len(b) > 1}
    changes = {a + letter + b[1:] for a, b in splits if b for letter in LETTERS}
    return swaps | changes | {a + letter + b for a, b in splits for letter in LETTERS}


def within_one(a: str, b: str) -> bool:
    """Whether one insertion, deletion, substitution or swap of neighbours makes b of a, or they are equal."""
    if abs(len(a) - len(b)) > 1:
        return False
    start = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    a, b = a[start:], b[start:]
    if len(a) == len(b):
        return a[1:] == b[1:] or (a[:1] == b[1:2] and a[1:2] == b[:1] and a[2:] == b[2:])
    return a[1:] == b or a == b[1:]


def packed(counts: Mapping[str, int]) -> bytes:
    """Words with their counts, rounded to a power of two, as a small file."""
    groups: dict[int, list[str]] = {}
    for word, count in counts.items():
        groups.setdefault(round(math.log2(count)), []).append(word)
    lines = [FORMAT, *(f"{level} {' '.join(sorted(groups[level]))}" for level in sorted(groups, reverse=True))]
    return lzma.compress("\n".join(lines).encode(), preset=9 | lzma.PRESET_EXTREME)


def unpacked(data: bytes) -> Lexicon:
    """The words of such a file."""
    return Lexicon(dict(_words(lzma.decompress(data).decode())))


def _words(text: str) -> Iterator[tuple[str, float]]:
    for line in text.split("\n")[1:]:
        level, *words = line.split(" ")
        for word in words:
            yield word, float(level)


@cache
def english() -> Lexicon:
    """The words of English that come with the package."""
    return unpacked(files("scdd").joinpath("assets/edits/words.txt.xz").read_bytes())
