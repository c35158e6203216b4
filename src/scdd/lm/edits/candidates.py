"""What a writer may have meant in place of what stands there, before the model is asked.

Candidates come from the noisy channel walked backwards: words of the lexicon that are spelt nearly like the written one, parts
that belong together or apart, other forms of the word, small words that are taken for each other, left out, doubled or swapped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from scdd.lm.edits import grammar
from scdd.lm.edits.lexicon import Lexicon
from scdd.lm.edits.words import LEANS, Word, cased_like
from scdd.lm.rows import Ranges

SPELLINGS = 5  # of a word that nobody knows
COMMON = 9.0  # log2 count of words that others may have been split into
FAMILIAR = 6.0  # log2 count of words that a known word may have been meant to be
COMMONER = 6.0  # log2 counts by which another word is commoner than the one that may be a slip of it
RARER = 6.0  # log2 counts by which an alternative may be rarer than the known word that is written
LETTERS_ALONE = ("spelling", "near", "slip", "split")  # kinds of edits that may touch a part of a compound
DISTANCE_PRICE = 5.0  # in log2 counts, when spellings are ranked before the model sees them


@dataclass(frozen=True)
class Candidate:
    """Words [first, last) of a text give way to `new`, which are put with one space between them."""

    first: int
    last: int
    new: tuple[str, ...]
    kind: str

    def written(self, words: Sequence[Word]) -> tuple[int, int, str]:
        """(Start, end, text): the characters that are replaced, and what stands there then."""
        if self.first == self.last:
            before = words[self.first - 1]
            spaced = not LEANS.fullmatch(self.new[0]) or _spaced_marks(words)
            return before.end, before.end, (" " if spaced else "") + " ".join(self.new)
        old = words[self.first : self.last]
        if not self.new:
            return old[0].start - len(old[0].gap), old[-1].end, ""
        return old[0].start, old[-1].end, " ".join(self.new)

    def spares(self, words: Sequence[Word], frozen: Ranges) -> bool:
        """Whether it leaves the frozen characters alone, white space too; something may be put in beside them."""
        start, end, _ = self.written(words)
        return not frozen.meet(start, end)

    def pieces(self, words: Sequence[Word]) -> list[str]:
        """The new words as the model reads them."""
        gap = words[self.first].gap if self.first < self.last else " "
        gaps = [gap, *[" "] * (len(self.new) - 1)]
        return [("" if LEANS.fullmatch(word) else space) + word for space, word in zip(gaps, self.new, strict=False)]


def _spaced_marks(words: Sequence[Word]) -> bool:
    """Whether this text writes spaces before its marks."""
    marks = [word for word in words if word.text in ".,;:!?"]
    return any(word.gap for word in marks)


def for_word(words: Sequence[Word], i: int, lexicon: Lexicon) -> list[Candidate]:
    """What word i may have been meant to be; nothing for names, numbers and frozen words."""
    word = words[i]
    if not word.free or not word.is_word:
        return []
    known = lexicon.knows(word.text)
    options = _known(word, lexicon) if known else _unknown(word, lexicon)
    whole = not in_compound(words, i)
    found = [Candidate(i, i + 1, _cased(word, new), kind) for new, kind in options if whole or kind in LETTERS_ALONE]
    if not whole:
        return found
    after = words[i + 1] if i + 1 < len(words) else None
    apart = after is not None and after.gap == " " and not after.first and not LEANS.fullmatch(after.text)
    if after is not None and apart and after.free and after.is_word:
        joined = word.lower + after.lower
        if lexicon.count(joined) >= (FAMILIAR if known and lexicon.knows(after.text) else 1.0):
            found.append(Candidate(i, i + 2, _cased(word, (joined,)), "join"))
    return found


def in_compound(words: Sequence[Word], i: int) -> bool:
    """Whether a hyphen joins word i to another: what form it has there is the compound's affair ("third-party", "life-long")."""
    before = i > 0 and words[i - 1].text == "-" and not words[i].gap
    return before or (i + 1 < len(words) and words[i + 1].text == "-" and not words[i + 1].gap)


def _cased(word: Word, new: tuple[str, ...]) -> tuple[str, ...]:
    return (cased_like(word, new[0]), *new[1:])


def _unknown(word: Word, lexicon: Lexicon) -> list[tuple[tuple[str, ...], str]]:
    """Spellings of a word that is in no list."""
    lower = word.lower
    near = lexicon.near(lower, 2 if len(lower) > 3 else 1)

    def rank(each: str) -> tuple[float, str]:
        head = 0.0 if each[0] == lower[0] else DISTANCE_PRICE / 2
        return near[each] * DISTANCE_PRICE + head - lexicon.count(each), each

    found: list[tuple[tuple[str, ...], str]] = [((each,), "spelling") for each in sorted(near, key=rank)[:SPELLINGS]]
    title = lower[:1].upper() + lower[1:]
    if word.text == lower and title in lexicon:
        found.append(((title,), "case"))
    halves = [(lower[:k], lower[k:]) for k in range(1, len(lower))]
    apart = [
        pair
        for pair in halves
        if (min(map(lexicon.count, pair)) >= COMMON and min(map(len, pair)) > 1)
        or (pair[0] == "a" and lexicon.count(pair[1]) >= COMMON)
    ]
    if apart:
        found.append((max(apart, key=lambda pair: (min(map(lexicon.count, pair)), pair)), "split"))
    return found


def _known(word: Word, lexicon: Lexicon) -> list[tuple[tuple[str, ...], str]]:
    """Other words that a known word may have been meant to be."""
    lower = word.lower
    least = max(FAMILIAR, lexicon.count(lower) - RARER)
    kinds: dict[str, str] = {}
    for each in grammar.confused(lower):
        kinds.setdefault(each, "confusion")
    for each in grammar.forms(lower, lexicon):
        if lexicon.count(each) >= min(least, 9.0):
            kinds.setdefault(each, "form")
    if len(lower) > 2:
        for each in sorted(lexicon.near(lower)):
            if len(each) > 1 and lexicon.count(each) >= least:
                # lists have misspelt words too: "teh" is one that three others have written
                slip = lexicon.count(each) - lexicon.count(lower) >= COMMONER
                kinds.setdefault(each, "slip" if slip else "near")
    title = lower[:1].upper() + lower[1:]
    if word.text == lower and lexicon.count(title) > lexicon.counts.get(lower, 0.0) and title in lexicon:
        kinds.setdefault(title, "case")
    return [((each,), kind) for each, kind in kinds.items() if each != word.text]


def _parted(word: Word) -> bool:
    """Whether a tab or a line's end stands before it: columns and lines are the writer's, and nothing is moved across them."""
    return any(mark in word.gap for mark in "\t\n\r\v\f")


def deletions(words: Sequence[Word], i: int) -> list[Candidate]:
    """Word i may be too much: a small word, or one that stands there twice."""
    word = words[i]
    if not word.free or word.first or i == 0 or _parted(word):
        return []
    if word.is_word and word.lower == words[i - 1].lower:
        return [Candidate(i, i + 1, (), "repeat")]
    return [Candidate(i, i + 1, (), "delete")] if word.lower in grammar.DELETED else []


def swaps(words: Sequence[Word], i: int) -> list[Candidate]:
    """Words i and i + 1 may have changed places."""
    pair = words[i : i + 2]
    if len(pair) < 2 or not all(word.free and word.is_word for word in pair) or pair[1].first or pair[1].gap != " ":
        return []
    a, b = pair
    if a.lower == b.lower or (not a.gap and i):
        return []
    first = cased_like(a, b.text)
    second = a.text if not a.first or a.text == "I" else a.text[:1].lower() + a.text[1:]
    return [Candidate(i, i + 2, (first, second), "swap")]


def may_insert(words: Sequence[Word], i: int) -> bool:
    """Whether something may be missing between words i − 1 and i."""
    if not 0 < i < len(words):
        return False
    before, word = words[i - 1], words[i]
    if before.frozen and word.frozen:
        return False
    both = before.is_word or before.text in ",;", word.is_word
    return (
        all(both)
        and bool(word.gap)
        and not _parted(word)
        and not word.first
        and bool(LEANS.fullmatch(word.text)) is False
    )
