"""What callers hand over, refused in a sentence where it is of the wrong kind."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral
from typing import Any

from scdd.core.errors import UserError

MOST = 1 << 20  # a slip of the finger is answered before memory runs out


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
