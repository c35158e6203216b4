"""What kind of mistake an edit mends, told from its words alone: of writers' corrections as of ours, in any mode."""

from __future__ import annotations

from collections.abc import Sequence

from scdd.lm.edits import grammar
from scdd.lm.edits.channel import distance
from scdd.lm.edits.lexicon import Lexicon

KINDS = (
    *[
        "spelling",
        "form or confusion",
        "small word",
        "missing",
        "too much",
        "marks",
        "case",
        "together or apart",
        "order",
    ],
    *["other word", "several words"],
)
MARKS = "\"'“”‘’()[].,;:!?…-–—`"
NEAR = 2  # letters by which a misspelt word differs from the one that was meant, at most; one of three letters by one
SMALL = grammar.DELETED | set(grammar.INSERTED)


def kind_of(old: Sequence[str], new: Sequence[str], lexicon: Lexicon) -> str:
    """The kind of the edit that puts the words `new` in place of `old`; words are what stands between white space."""
    before, after = ([word for word in (each.strip(MARKS) for each in words) if word] for words in (old, new))
    if before == after:
        return "marks"
    lower, meant = ([word.lower().replace("’", "'") for word in words] for words in (before, after))
    if lower == meant:
        return "case"
    if not before or not after:
        return "missing" if after else "too much"
    if "".join(lower) == "".join(meant):
        return "together or apart"
    if sorted(lower) == sorted(meant):
        return "order"
    if len(lower) == len(meant) == 1:
        return _of_word(before[0], lower[0], meant[0], lexicon)
    return _grown(lower, meant)


def _of_word(written: str, a: str, b: str, lexicon: Lexicon) -> str:
    if not lexicon.knows(written):
        return "spelling"
    if a in SMALL and b in SMALL:
        return "small word"
    if b in grammar.forms(a, lexicon) or b in grammar.confused(a):
        return "form or confusion"
    return "spelling" if distance(a, b) <= (NEAR if len(a) > 3 else 1) else "other word"


def _grown(a: Sequence[str], b: Sequence[str]) -> str:
    """Of several words: whether only some were put in, or left out."""
    if _within(a, b):
        return "missing"
    return "too much" if _within(b, a) else "several words"


def _within(few: Sequence[str], many: Sequence[str]) -> bool:
    rest = iter(many)
    return all(word in rest for word in few)
