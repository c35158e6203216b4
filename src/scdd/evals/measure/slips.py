"""Errors as writers make them, not only typists: spelling by ear, wrong forms, small words left out, added or confused.

Made in clean text, they are what the parameters of `correct` in mode edit are fitted on, and what `scdd eval repair --made`
measures.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

from scdd.evals.measure.typos import CHARACTERS
from scdd.lm.edits import grammar
from scdd.lm.edits.candidates import may_insert, swaps
from scdd.lm.edits.lexicon import Lexicon
from scdd.lm.edits.words import Word, cased_like, cut

VOWELS = "aeiou"
SOUNDS = (
    ("ph", "f"), ("ck", "k"), ("ie", "ei"), ("ei", "ie"), ("c", "s"), ("s", "c"), ("tion", "sion"), ("ant", "ent"),
    ("ent", "ant"), ("y", "i"), ("k", "c"), ("qu", "kw"), ("wh", "w"), ("sc", "s"), ("le", "el"), ("ible", "able"),
    ("ance", "ence"), ("d", "t"), ("t", "d"), ("b", "p"), ("p", "b"), ("f", "v"), ("v", "f"), ("s", "z"), ("z", "s"),
    ("m", "n"), ("t", "th"), ("er", "ar"), ("or", "er"), ("ou", "o"), ("ea", "e"), ("ee", "ea"), ("ai", "ei"),
)  # fmt: skip
SHARES = {
    "character": 40, "sound": 12, "two characters": 8, "form": 12, "confusion": 12, "near": 3, "missing": 12, "extra": 5,
    "repeated word": 3, "swapped words": 5, "split": 1, "joined": 2, "capital": 2, "other word": 3,
}  # fmt: skip
"""How often each kind is tried."""


@dataclass(frozen=True)
class Slip:
    """Characters [start, end) of a spoilt text, and what was there."""

    start: int
    end: int
    meant: str
    kind: str


def vowel(word: str, rng: Random) -> str:
    """Another vowel."""
    places = [i for i, letter in enumerate(word) if letter in VOWELS]
    if not places:
        return word
    i = rng.choice(places)
    return word[:i] + rng.choice(VOWELS) + word[i + 1 :]


def undouble(word: str, rng: Random) -> str:
    """Of a double letter one is left out; without one, a letter is dropped."""
    places = [i for i in range(1, len(word)) if word[i] == word[i - 1]]
    i = rng.choice(places) if places else rng.randrange(1, len(word))
    return word[:i] + word[i + 1 :]


def more(word: str, rng: Random) -> str:
    """A letter too much: most often a vowel, as it is heard between consonants."""
    i = rng.randrange(1, len(word) + 1)
    return word[:i] + rng.choice(VOWELS * 3 + "hlnrst") + word[i:]


def sound(word: str, rng: Random) -> str:
    """Spelt by ear."""
    fitting = [(old, new) for old, new in SOUNDS if old in word[1:] or (len(old) > 1 and old in word)]
    if not fitting:
        return vowel(word, rng)
    old, new = rng.choice(fitting)
    i = rng.choice([k for k in range(len(word)) if word.startswith(old, k)])
    return word[:i] + new + word[i + len(old) :]


LETTERS: tuple[Callable[[str, Random], str], ...] = (*CHARACTERS.values(), vowel, undouble, more)


def spoil(text: str, share: float, rng: Random, lexicon: Lexicon) -> tuple[str, list[Slip]]:
    """`text` with errors in about this share of its words, none beside another, and what was meant at each."""
    words = cut(text)
    order = [i for i, word in enumerate(words) if word.is_word]
    wanted = sum(rng.random() < share for _ in order)
    rng.shuffle(order)
    taken: set[int] = set()
    changes: list[tuple[int, int, str, str]] = []
    for i in order:
        if len(changes) == wanted:
            break
        if taken & {i - 1, i, i + 1, i + 2}:
            continue
        kind = rng.choices(list(SHARES), list(SHARES.values()))[0]
        made = _change(words, i, kind, rng, lexicon)
        if made is not None and made[2] != text[made[0] : made[1]]:
            changes.append((*made, kind))
            taken |= {i, i + 1}
    out, slips, place = "", [], 0
    for start, end, new, kind in sorted(changes):
        out += text[place:start]
        slips.append(Slip(len(out), len(out) + len(new), text[start:end], kind))
        out += new
        place = end
    return out + text[place:], slips


def _change(words: Sequence[Word], i: int, kind: str, rng: Random, lexicon: Lexicon) -> tuple[int, int, str] | None:
    """(Start, end, what is written there): an error of this kind at word i, or None where it cannot be made."""
    word = words[i]
    if kind == "capital":
        fits = word.text in lexicon and word.text[:1].isupper() and not word.first and word.text[1:].islower()
        return (word.start, word.end, word.lower) if fits else None
    if not word.free:
        return None
    after = words[i + 1] if i + 1 < len(words) else None
    if kind in ("swapped words", "joined") and (after is None or not swaps(words, i)):
        return None
    if kind == "swapped words":
        return (word.start, words[i + 1].end, " ".join(swaps(words, i)[0].new))
    if kind == "joined":
        return (word.start, words[i + 1].end, word.text + words[i + 1].text)
    if kind in ("missing", "repeated word", "extra"):
        if i == 0 or word.first or not word.gap.isspace():
            return None
        if kind == "missing":
            return (word.start - len(word.gap), word.end, "") if word.lower in grammar.INSERTED else None
        if kind == "repeated word":
            return (word.end, word.end, " " + word.text)
        small = rng.choice((*grammar.ARTICLES, *grammar.PREPOSITIONS))
        return (words[i - 1].end, words[i - 1].end, " " + small) if may_insert(words, i) else None
    new = _other(word, kind, rng, lexicon)
    return None if new is None else (word.start, word.end, cased_like(word, new))


def _other(word: Word, kind: str, rng: Random, lexicon: Lexicon) -> str | None:
    """Another word, or another spelling, in a word's place."""
    lower = word.lower
    if kind in ("character", "sound", "two characters"):
        if len(lower) < 4 or not lower.isalpha():
            return None
        once = sound(lower, rng) if kind == "sound" else rng.choice(LETTERS)(lower, rng)
        return rng.choice(LETTERS)(once, rng) if kind == "two characters" and len(once) > 4 else once
    if kind == "split":
        return None if len(lower) < 6 else lower[: len(lower) // 2] + " " + lower[len(lower) // 2 :]
    choices: list[str] = []
    if kind == "form":
        choices = [each for each in grammar.forms(lower, lexicon) if lexicon.count(each) >= 6]
    elif kind == "confusion":
        choices = list(grammar.confused(lower))
    elif kind == "near":
        choices = sorted(each for each in lexicon.near(lower) if lexicon.count(each) >= 9) if len(lower) > 2 else []
    elif kind == "other word":
        choices = _common(lexicon)
    return rng.choice(choices) if choices else None


def _common(lexicon: Lexicon) -> list[str]:
    return [word for word, count in lexicon.counts.items() if count >= 12 and word.islower() and len(word) > 3]
