"""Typing errors as people make them: characters swapped, dropped, doubled, missed by a key; words swapped and repeated.

A text is a list of pieces, each a word with the white space before it, so that what was done to a word can be told from
what a model makes of it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

PIECE = re.compile(r"\s*\S+")
ROWS = ("qwertyuiop", "asdfghjkl", "zxcvbnm")
NEIGHBOURS = {
    letter: "".join(
        other
        for r, keys in enumerate(ROWS)
        for c, other in enumerate(keys)
        if abs(r - row) <= 1 and abs(c - column) <= 1 and other != letter
    )
    for row, line in enumerate(ROWS)
    for column, letter in enumerate(line)
}


@dataclass(frozen=True)
class Piece:
    """A word as it was typed, as it was meant, and what went wrong ("" for nothing)."""

    typed: str
    meant: str
    error: str = ""


def swap(word: str, rng: Random) -> str:
    """Two neighbouring letters change places."""
    i = rng.randrange(len(word) - 1)
    return word[:i] + word[i + 1] + word[i] + word[i + 2 :]


def drop(word: str, rng: Random) -> str:
    """A letter is missing."""
    i = rng.randrange(len(word))
    return word[:i] + word[i + 1 :]


def double(word: str, rng: Random) -> str:
    """A letter is there twice."""
    i = rng.randrange(len(word))
    return word[: i + 1] + word[i:]


def slip(word: str, rng: Random) -> str:
    """The key beside the right one."""
    places = [i for i, letter in enumerate(word) if letter.lower() in NEIGHBOURS]
    if not places:
        return word
    i = rng.choice(places)
    near = rng.choice(NEIGHBOURS[word[i].lower()])
    return word[:i] + (near.upper() if word[i].isupper() else near) + word[i + 1 :]


CHARACTERS: dict[str, Callable[[str, Random], str]] = {f.__name__: f for f in (swap, drop, double, slip)}
KINDS = (*CHARACTERS, "swapped words", "repeated word")


def mistype(text: str, count: int, seed: int = 0) -> list[Piece]:
    """`text` with `count` errors of all kinds in turn, at words of four letters or more that do not touch each other."""
    rng = Random(seed)
    words = PIECE.findall(text)
    places = [i for i in range(1, len(words) - 1) if len(words[i].strip()) >= 4 and words[i].strip().isalpha()]
    rng.shuffle(places)
    pieces = {i: [Piece(word, word)] for i, word in enumerate(words)}
    taken: set[int] = set()
    made = 0
    for i in places:
        if made == count:
            break
        if taken & {i - 1, i, i + 1, i + 2}:
            continue
        done = _spoilt(words, i, KINDS[made % len(KINDS)], rng)
        if done is None:
            continue
        pieces |= done
        taken |= {i, i + 1}
        made += 1
    return [piece for group in pieces.values() for piece in group]


def _spoilt(words: list[str], i: int, kind: str, rng: Random) -> dict[int, list[Piece]] | None:
    """What an error of this kind makes of word i, by place; None where it would change nothing."""
    here, after = words[i], words[i + 1]
    if kind == "repeated word":
        return {i: [Piece(here, here), Piece(" " + here.strip(), "", kind)]}
    if kind == "swapped words":
        if here.strip() == after.strip():
            return None
        space, next_space = here[: -len(here.strip())], after[: -len(after.strip())]
        return {i: [Piece(space + after.strip(), here, kind)], i + 1: [Piece(next_space + here.strip(), after, kind)]}
    word = here.strip()
    typed = CHARACTERS[kind](word, rng)
    return None if typed == word else {i: [Piece(here.replace(word, typed), here, kind)]}


def typed(pieces: list[Piece]) -> str:
    """The text with its errors."""
    return "".join(piece.typed for piece in pieces)
