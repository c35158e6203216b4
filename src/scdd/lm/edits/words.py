"""A text as words with their places, and as the model reads it.

Offsets are characters of the original text, so that an edit can be put there and everything else stays byte for byte. What the
model reads differs from the text in one respect: a space before a closing mark or before "n't" and "'s" is left out, since texts
that were tokenised with spaces ("it is , I think , n't") look wrong to it everywhere.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from scdd.lm.rows import Ranges

CHUNK = re.compile(r"\S+")
PART = re.compile(r"[^\W\d_]+(?:['’][^\W\d_]+)*|['’](?:s|m|d|re|ve|ll|t)\b|[\d][\w.,]*|\W|_", re.IGNORECASE)
PLAIN = re.compile(r"[\"'“”‘’(\[]*[^\W\d_]+(?:['’-][^\W\d_]+)*[\"'“”‘’)\].,;:!?…]*|[^\w\s@/\\]+", re.IGNORECASE)
LEANS = re.compile(r"[.,;:!?%)\]}…]|n['’]t|['’](?:s|m|d|re|ve|ll)", re.IGNORECASE)
LONGEST = 24  # letters of a word that may be changed
ENDS = frozenset(".!?…:")
CLOSES = frozenset("\"'”’)]")
OPENS = frozenset("\"'“‘([")


@dataclass(frozen=True)
class Word:
    """A word, a number or a mark of a text; `gap` is the white space before it."""

    text: str
    start: int
    end: int
    gap: str
    first: bool = False
    """Whether a sentence begins here."""
    free: bool = True
    """Whether it may be changed: no number, no name, not frozen."""
    frozen: bool = False

    @cached_property
    def is_word(self) -> bool:
        """Letters."""
        return self.text[0].isalpha()

    @cached_property
    def lower(self) -> str:
        """As dictionaries have it, with the straight apostrophe."""
        return self.text.lower().replace("’", "'")

    @cached_property
    def read(self) -> str:
        """As the model reads it, with the white space before it."""
        return (self.gap if self.gap and not LEANS.fullmatch(self.text) else "") + self.text


def cut(text: str, frozen: Sequence[tuple[int, int]] = ()) -> list[Word]:
    """The words of a text in order; with their gaps they are the whole text but for white space at its end."""
    words: list[Word] = []
    kept = Ranges(frozen)
    place, first = 0, True
    for chunk in CHUNK.finditer(text):
        plain = PLAIN.fullmatch(chunk[0]) is not None
        for part in PART.finditer(chunk[0]):
            start, end = chunk.start() + part.start(), chunk.start() + part.end()
            gap = text[place:start]
            first = first or gap.count("\n") > 1
            word = Word(part[0], start, end, gap, first)
            touched = kept.meet(start, end)
            if word.is_word and LEANS.fullmatch(word.text) and words:  # "ca n't" is one word, written apart
                words[-1] = replace(words[-1], free=False)
            words.append(replace(word, free=plain and not touched and not _fixed(word), frozen=touched))
            first = _ends(words) if not (word.text in OPENS and first) else first
            place = end
    return words


def _ends(words: Sequence[Word]) -> bool:
    """Whether a sentence has ended with the last of these words."""
    for word in reversed(words[-3:]):
        if word.text not in CLOSES:
            return word.text in ENDS
    return False


def _fixed(word: Word) -> bool:
    """Numbers, and words with capitals that no place in a sentence explains: names, abbreviations, codes."""
    if not word.is_word:
        return word.text[0].isdigit()
    if len(word.text) > LONGEST or LEANS.fullmatch(word.text):
        return True
    return word.text != "I" and any(letter.isupper() for letter in word.text[0 if not word.first else 1 :])


def cased_like(word: Word, new: str) -> str:
    """`new` with a capital where the old word has one."""
    return new[:1].upper() + new[1:] if word.text[:1].isupper() and word.text != "I" else new
