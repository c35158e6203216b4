"""What a reader of a Markdown page sees: its tables, texts and headings, whatever their spelling in the file."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

from markdown_it import MarkdownIt
from markdown_it.token import Token

READER = MarkdownIt().enable("table")


class Field(NamedTuple):
    """One field of a table."""

    text: str
    bold: bool
    right: bool  # aligned to the right, as numbers are


def tables(page: str) -> list[list[list[Field]]]:
    """Every table as rows of fields, the head first."""
    found: list[list[list[Field]]] = []
    tokens = READER.parse(page)
    for token, after in pairwise(tokens):
        if token.type == "table_open":
            found.append([])
        elif token.type == "tr_open":
            found[-1].append([])
        elif token.type in ("th_open", "td_open"):
            bold = any(child.type == "strong_open" for child in after.children or [])
            right = "right" in str(token.attrGet("style"))
            found[-1][-1].append(Field(words(after), bold, right))
    return found


def blocks(page: str) -> list[tuple[str, str]]:
    """(What a text stands in, the text): ("h2", "Samples"), ("blockquote p", "…"), ("p a", "…") for a link within."""
    found, around = [], []
    for token in READER.parse(page):
        around += [token.tag] if token.nesting == 1 else []
        if token.type == "inline":
            inner = [child.tag for child in token.children or [] if child.nesting == 1]
            found.append((" ".join([*around, *inner]), words(token)))
        del around[len(around) - (token.nesting == -1) :]
    return found


def words(inline: Token) -> str:
    """The text alone; a line break is one."""
    breaks = ("softbreak", "hardbreak")
    return "".join("\n" if child.type in breaks else child.content for child in inline.children or [])
