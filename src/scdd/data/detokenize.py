"""Undo the tokenisation that LM1B and WikiText were published with, as the field does before measuring perplexity.

Both corpora put spaces around punctuation; a subword model should see ordinary text. The rules below give the text on which
published subword perplexities are measured, quirks included (WikiText's ` N ` → ` 1 `), because numbers compare
only on equal text. Rules apply line by line, so that an odd quotation mark spoils one line, not an article.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial

from scdd.core.errors import UserError

Detokenizer = Callable[[str], str]
_Rule = tuple[re.Pattern[str], str]


def _literal(*pairs: tuple[str, str]) -> list[_Rule]:
    return [(re.compile(re.escape(old)), new.replace("\\", r"\\")) for old, new in pairs]


def _pattern(*pairs: tuple[str, str]) -> list[_Rule]:
    return [(re.compile(old), new) for old, new in pairs]


def _hug(marks: str) -> list[_Rule]:
    """Punctuation that leans on the word before it: `word , next` → `word, next`."""
    return _literal(*((f" {mark} ", f"{mark} ") for mark in marks))


_LM1B: list[_Rule] = [
    *_literal(("http : / / ", "http://"), ("https : / / ", "https://")),
    *_pattern((r" '(\w+)", r"'\1"), (r" (\w+) \. ", r" \1. "), (r" (\w+) \.$", r" \1.")),
    *_hug("?"),
    *_pattern((r" \?$", "?")),
    *_hug("!"),
    *_pattern((r" !$", "!")),
    *_hug(",:;"),
    *_literal((" / ", "/")),
    *_pattern(
        (r'" ([^"]+) "', r'"\1"'),
        (r"' ([^']+) '", r"'\1'"),
        (r"\( ([^()]+) \)", r"(\1)"),
        (r"\[ ([^\[\]]+) \]", r"[\1]"),
    ),
    *_literal(("$ ", "$"), ("£ ", "£")),
]

_WIKITEXT: list[_Rule] = [
    *_literal(("s '", "s'"), (" @-@ ", "-"), (" @,@ ", ","), (" @.@ ", ".")),
    *_hug(":;.!?,"),
    *_pattern(
        (r"\(\s*([^)]*?)\s*\)", r"(\1)"),
        (r"\[\s*([^\]]*?)\s*\]", r"[\1]"),
        (r"\{\s*([^}]*?)\s*\}", r"{\1}"),
        (r'"\s*([^"]*?)\s*"', r'"\1"'),
        (r"'\s*([^']*?)\s*'", r"'\1'"),
    ),
    *_literal(("= = = =", "===="), ("= = =", "==="), ("= =", "==")),
    *_literal((" ° ", "°")),
    *_pattern((r" $", "")),  # after the punctuation: ` . ` at a line's end needs that last space
    *_literal((" N ", " 1 "), (" 's", "'s")),
    *_pattern((r"^ ", "")),
]


def _apply(rules: list[_Rule], text: str) -> str:
    lines = text.split("\n")
    for i, line in enumerate(lines):
        for pattern, new in rules:
            line = pattern.sub(new, line)
        lines[i] = line
    return "\n".join(lines)


lm1b: Detokenizer = partial(_apply, _LM1B)
"""One Billion Words: `he 's , well , fine .` → `he's, well, fine.`"""
wikitext: Detokenizer = partial(_apply, _WIKITEXT)
"""WikiText-2 and -103: `a guest @-@ starring role ( 2000 ) .` → `a guest-starring role (2000).`"""
DETOKENIZERS: dict[str, Detokenizer] = {"lm1b": lm1b, "wikitext": wikitext}


def detokenizer(name: str | None) -> Detokenizer | None:
    """The detokeniser of that name; None for None."""
    if name is None:
        return None
    if name not in DETOKENIZERS:
        known = ", ".join(sorted(DETOKENIZERS))
        raise UserError(f"detokenizer {name} is not known: choose one of {known}.", "detokenizer")
    return DETOKENIZERS[name]
