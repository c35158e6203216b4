"""Sentences with errors and their corrections: read from files, or made from clean text."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Literal

from scdd.core.errors import UserError
from scdd.core.rng import derive_seed
from scdd.data.corpus import read
from scdd.evals.measure.slips import spoil
from scdd.evals.measure.texts import split_name
from scdd.evals.measure.typos import mistype, typed
from scdd.lm.edits.lexicon import english

SOURCE, REFERENCES = "src.txt", "ref*.txt"
LARGEST = 64 << 20  # bytes of a file of sentences
SENTENCE = re.compile(r"(?<=[.!?])\s+(?=[A-Z])")
SHORTEST, LONGEST = 40, 300  # characters of a sentence of clean text
Made = Literal["typos", "slips"]


@dataclass(frozen=True)
class Pairs:
    """Sentences as they were written, and for each the texts that it should read as, any of them."""

    name: str
    sources: tuple[str, ...]
    references: tuple[tuple[str, ...], ...]

    def __len__(self) -> int:
        return len(self.sources)

    def some(self, num: int | None, seed: int) -> Pairs:
        """So many of them, drawn by the seed, in their order."""
        if num is None or num >= len(self):
            return self
        chosen = sorted(Random(derive_seed(seed, "pairs")).sample(range(len(self)), num))
        return Pairs(self.name, tuple(self.sources[i] for i in chosen), tuple(self.references[i] for i in chosen))


def read_pairs(place: str) -> Pairs:
    """A folder with src.txt and ref0.txt, ref1.txt, …: a sentence a line, the same number of lines in each."""
    name, path = split_name(place)
    folder = Path(path)
    if not (folder / SOURCE).is_file():
        raise UserError(f"{folder} has no {SOURCE}: give a folder with {SOURCE} and ref0.txt, ref1.txt, …")
    others = sorted(folder.glob(REFERENCES))
    if not others:
        raise UserError(
            f"{folder} has no {REFERENCES}: put the corrected sentences there, a line for each of {SOURCE}."
        )
    sources, *references = ([line.strip() for line in _lines(file)] for file in (folder / SOURCE, *others))
    for file, lines in zip(others, references, strict=True):
        if len(lines) != len(sources):
            raise UserError(f"{file} has {len(lines)} lines and {SOURCE} {len(sources)}: give one for each.")
    kept = [row for row in zip(sources, *references, strict=True) if row[0]]
    if not kept:
        raise UserError(f"{folder / SOURCE} has no sentence: give at least one.")
    return Pairs(name, tuple(row[0] for row in kept), tuple(row[1:] for row in kept))


def _lines(file: Path) -> list[str]:
    if file.stat().st_size > LARGEST:
        raise UserError(f"{file} is larger than {LARGEST >> 20} MiB: cut it into several.")
    try:
        return file.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    except ValueError as error:
        raise UserError(f"{file} is not UTF-8: convert it.") from error


def make_pairs(paths: Sequence[str], kind: Made, share: float, num: int, seed: int, field: str = "text") -> Pairs:
    """`num` sentences of clean texts with errors in about this share of their words, each with itself as reference.

    typos: characters and words mistyped; slips: also spelling by ear, wrong forms, small words confused and left out.
    """
    names, places = zip(*(split_name(path) for path in paths), strict=True)
    clean = clean_sentences(places, num, field)
    sources = []
    for i, text in enumerate(clean):
        own = derive_seed(seed, f"{kind} {i}")
        if kind == "typos":
            count = max(1, round(share * len(text.split())))
            sources.append(typed(mistype(text, count, own)))
        else:
            sources.append(spoil(text, share, Random(own), english())[0])
    name = f"{' + '.join(names)}, {kind} in {share:.0%}"
    return Pairs(name, tuple(sources), tuple((text,) for text in clean))


def clean_sentences(places: Sequence[str], num: int, field: str = "text") -> list[str]:
    """Sentences spread over the documents: a few of each, until there are enough."""
    found: list[str] = []
    for document in read(places, field=field):
        parts = [part for line in document.split("\n") for part in SENTENCE.split(line)]
        whole = [part for part in parts if SHORTEST <= len(part) <= LONGEST and part[0].isupper() and part[-1] in ".!?"]
        found += whole[:: max(1, len(whole) // 8)][:8]
        if len(found) >= num:
            return found[:num]
    if not found:
        raise UserError(f"{', '.join(map(str, places))} has no whole sentence: give running text.")
    return found
