"""From what callers hand over to rows of tokens: what is given, what is to be drawn, and what a freeze covers."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from numbers import Integral
from typing import Any, NamedTuple

from scdd.core.errors import UserError
from scdd.data.tokenizer import TextTokenizer

MOST = 1 << 20  # a slip of the finger is answered before memory runs out
SPAN = re.compile(r"\[MASK(?::(\d+)(?:-(\d+))?)?\]")
NEARLY = re.compile(r"\[\s*mask(?![^\W\d_])[^\[\]]*\]", re.IGNORECASE)  # [masked] is another word
MOST_LENGTHS = 16  # that are tried of one range
MOST_TRIES = 64  # of all ranges of a text together
SHOWN = 30  # characters of what is refused
Freeze = Sequence[str | tuple[int, int]]


@dataclass(frozen=True)
class Row:
    """A text without its frame of [BOS] and [EOS]; masks where there is nothing yet."""

    tokens: tuple[int, ...]
    frozen: tuple[bool, ...]

    def __len__(self) -> int:
        return len(self.tokens)


def check_num(num: int) -> None:
    """Refuse a number of texts that nobody can mean."""
    check_whole("num", num, cure="; a text to go on from is prompt=…" if isinstance(num, str) else "")


def continued(tokenizer: TextTokenizer, prompt: str, suffix: str, length: int) -> Row:
    """`length` tokens in all: the prompt's, masks, the suffix's."""
    check_whole("length", length)
    before, after = (tokenizer.encode(text) if text else [] for text in (prompt, suffix))
    room = length - len(before) - len(after)
    if room < 1:
        raise UserError(
            f"The prompt and the suffix take {len(before) + len(after)} tokens and length is {length}: "
            "raise length, or shorten them."
        )
    tokens = (*before, *[tokenizer.mask_id] * room, *after)
    return Row(tokens, (*[True] * len(before), *[False] * room, *[True] * len(after)))


class Gaps(NamedTuple):
    """A text with spans to fill in: what is given before, between and after them, and the lengths that each may have."""

    given: tuple[tuple[int, ...], ...]
    sizes: tuple[tuple[int, ...], ...]
    mask_id: int

    @property
    def tries(self) -> list[tuple[int, ...]]:
        """Every choice of a length for each span."""
        return list(product(*self.sizes))

    def row(self, lengths: Sequence[int]) -> Row:
        """The text with spans of these lengths."""
        tokens, frozen = list(self.given[0]), [True] * len(self.given[0])
        for length, after in zip(lengths, self.given[1:], strict=True):
            tokens += [*[self.mask_id] * length, *after]
            frozen += [*[False] * length, *[True] * len(after)]
        return Row(tuple(tokens), tuple(frozen))


def with_gaps(tokenizer: TextTokenizer, text: str) -> Gaps:
    """A text whose [MASK] (one token), [MASK:12] (twelve) and [MASK:4-12] (four to twelve) are to be filled in.

    One space right before a span is left to the model: byte-level tokens carry their space in front, so "the [MASK]"
    would otherwise ask for a word that does not begin as words do. What is nearly a span is refused: left in the text, it
    would be taken for words.
    """
    if not text:
        raise UserError("The text to fill in is empty: give one with [MASK] or [MASK:12] in it.")
    for found in NEARLY.findall(text):
        if SPAN.fullmatch(found) is None:
            shown = found if len(found) <= SHOWN else f"{found[:SHOWN]}…"
            raise UserError(
                f"The text has {shown!r}, which is no span to fill in: write [MASK] (one token), [MASK:4] (four) or "
                "[MASK:4-12] (as many as fit best)."
            )
    given: list[tuple[int, ...]] = []
    sizes: list[tuple[int, ...]] = []
    end = 0
    for span in SPAN.finditer(text):
        given.append(tuple(tokenizer.encode(text[end : span.start()].removesuffix(" "))))
        sizes.append(_sizes(span))
        end = span.end()
    if end == 0:
        raise UserError(
            "The text has nothing to fill in: put [MASK] (one token), [MASK:12] (twelve) or [MASK:4-12] into it."
        )
    given.append(tuple(tokenizer.encode(text[end:]) if text[end:] else ()))
    if (tries := prod(map(len, sizes))) > MOST_TRIES:
        raise UserError(
            f"The gaps' lengths can be chosen in {tries:,} ways and at most {MOST_TRIES} are tried: narrow the ranges."
        )
    return Gaps(tuple(given), tuple(sizes), tokenizer.mask_id)


def _sizes(span: re.Match[str]) -> tuple[int, ...]:
    """The lengths that a span may have; of a wide range, some that are spread over it."""
    low, high = (digits and (digits.lstrip("0") or "0") for digits in (span[1] or "1", span[2]))
    for digits in (low, high or low):
        if len(digits) > len(str(MOST)) or int(digits) > MOST:
            raise UserError(f"{span[0][:SHOWN]} asks for too much: give a number of at most {MOST}.")
        if int(digits) < 1:
            raise UserError(f"{span[0]} asks for no token: give a number of at least 1.")
    least, most = int(low), int(high or low)
    if most < least:
        raise UserError(f"{span[0]} ends below its beginning: write [MASK:{most}-{least}].")
    every = range(least, most + 1)
    if len(every) <= MOST_LENGTHS:
        return tuple(every)
    return tuple(least + (most - least) * i // (MOST_LENGTHS - 1) for i in range(MOST_LENGTHS))


def whole(tokenizer: TextTokenizer, text: str, freeze: Freeze = ()) -> Row:
    """A text as it stands, free to change but for what `freeze` covers (pieces of it, or character ranges)."""
    check_text("The text", text)
    if not text.strip():
        raise UserError("The text is empty: give at least a word.")
    tokens = tokenizer.encode(text)
    ranges = frozen_ranges(text, freeze)
    if not ranges:
        return Row(tuple(tokens), (False,) * len(tokens))
    covered, ends = Ranges(ranges), tokenizer.ends(tokens)
    spans = zip([0, *ends], ends, strict=False)
    return Row(tuple(tokens), tuple(covered.meet(start, max(stop, start + 1)) for start, stop in spans))


class Ranges:
    """Character ranges in order, those that overlap as one; ranges side by side stay apart."""

    def __init__(self, ranges: Iterable[tuple[int, int]]) -> None:
        self.lows: list[int] = []
        self.highs: list[int] = []
        for low, high in sorted(ranges):
            if self.highs and low < self.highs[-1]:
                self.highs[-1] = max(high, self.highs[-1])
            else:
                self.lows.append(low)
                self.highs.append(high)

    def meet(self, start: int, end: int) -> bool:
        """Whether one of them has a character of [start, end); of an empty span, whether it lies strictly inside one."""
        i = bisect_right(self.highs, start)
        return i < len(self.lows) and self.lows[i] < end


def frozen_ranges(text: str, freeze: Freeze) -> list[tuple[int, int]]:
    """The character ranges that `freeze` covers, in order; what it names twice, or one inside another, is there once."""
    pieces = (freeze,) if isinstance(freeze, str) else freeze
    items = dict.fromkeys(item if isinstance(item, str) else _pair(item) for item in pieces)
    found = Ranges(each for item in items for each in _ranges(text, item))
    return list(zip(found.lows, found.highs, strict=True))


def _pair(item: Any) -> tuple[int, int]:
    if not isinstance(item, Sequence) or len(item) != 2 or any(type(end) is not int for end in item):
        raise UserError(
            f"freeze has {item!r}: give pieces of the text, or pairs (first character, behind the last).", "freeze"
        )
    return item[0], item[1]


def _ranges(text: str, item: str | tuple[int, int]) -> list[tuple[int, int]]:
    if isinstance(item, str):
        places = [match.span() for match in re.finditer(re.escape(item), text)] if item else []
        if not places:
            raise UserError(
                f"freeze names {item!r}, which the text does not contain: copy it letter by letter.", "freeze"
            )
        return places
    low, high = item
    if not 0 <= low < high <= len(text):
        raise UserError(f"freeze covers characters {low} to {high} of a text of {len(text)}: stay inside it.", "freeze")
    return [(low, high)]


def check_whole(name: str, value: Any, least: int = 1, cure: str = "") -> None:
    """A whole number from `least` to a million."""
    if not isinstance(value, Integral) or isinstance(value, bool):
        raise UserError(f"{name} is {value!r}: give a whole number{cure}.", name)
    if not least <= int(value) <= MOST:
        raise UserError(f"{name} is {value}: give {least} to {MOST:,}.", name)


def check_text(name: str, value: Any) -> None:
    """A text is a str without halves of surrogate pairs, which no tokenizer reads."""
    if not isinstance(value, str):
        raise UserError(f"{name} is of type {type(value).__name__}: give a text (str).")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        raise UserError(f"{name} is not valid Unicode at character {error.start}: mend it first.") from error


def texts(name: str, given: Any) -> list[str]:
    """One text, or several of them, as a list."""
    listed = list(given) if isinstance(given, Sequence) and not isinstance(given, str | bytes) else [given]
    for each in listed:
        check_text(name, each)
    return listed
