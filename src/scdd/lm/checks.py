"""What callers hand over, refused in a sentence where it is of the wrong kind."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral, Real
from typing import Any

from scdd.core.errors import UserError

WHOLE = ("num", "length", "steps", "seed", "top_k", "batch_size", "together", "context")
REAL = ("top_p", "temperature", "tolerance", "strength", "threshold")


def check_kinds(**given: Any) -> None:
    """Numbers are numbers, by their names; None stands for what was not given."""
    for name, value in given.items():
        wanted = Integral if name in WHOLE else Real if name in REAL else object
        if value is None or (isinstance(value, wanted) and (wanted is object or not isinstance(value, bool))):
            continue
        kind = "whole number" if name in WHOLE else "number"
        cure = "; a text to go on from is prompt=…" if name == "num" and isinstance(value, str) else ""
        raise UserError(f"{name} is {value!r}: give a {kind}{cure}.")


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
    found = list(given) if isinstance(given, Sequence) and not isinstance(given, str | bytes) else [given]
    for each in found:
        check_text(name, each)
    return found
