"""Words of the language with their counts, and which of them are spelt nearly like a given one (`lm.edits.near`)."""

from __future__ import annotations

import lzma
import math
from collections.abc import Iterator, Mapping
from functools import cache, cached_property
from importlib.resources import files

from scdd.lm.edits.near import Near

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
        found = dict.fromkeys(self._near.one_away([word])[word], 1)
        if distance > 1:
            for each in set().union(*self._near.one_away(sorted(_one_step(word))).values()):
                found.setdefault(each, 2)
        found.pop(word, None)
        return found

    @cached_property
    def _lower(self) -> dict[str, float]:
        """Words in lower case; of a name and a word that are spelt alike, the word."""
        return {word: count for word, count in self.counts.items() if word == word.lower()}

    @cached_property
    def _near(self) -> Near:
        return Near(list(self._lower))


def _one_step(word: str) -> set[str]:
    """Everything one deletion, substitution, insertion or swap away."""
    splits = [(word[:i], word[i:]) for i in range(len(word) + 1)]
    swaps = {a + b[1] + b[0] + b[2:] for a, b in splits if len(b) > 1}
    changes = {a + letter + b[1:] for a, b in splits if b for letter in LETTERS}
    deletions = {a + b[1:] for a, b in splits if b}
    return deletions | swaps | changes | {a + letter + b for a, b in splits for letter in LETTERS}


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
