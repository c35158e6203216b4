"""A table as data: it can be printed in a terminal, in Markdown and in HTML, and every entry keeps its error."""

from __future__ import annotations

import html
import math
import re
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Entry:
    """What one field says: ours, and what the paper prints beside it."""

    text: str
    bold: bool = False
    paper: str | None = None

    def markdown(self) -> str:
        """Bold by stars; the paper's number in brackets."""
        shown = escaped(self.text)
        return (f"**{shown}**" if self.bold else shown) + (f" [{self.paper}]" if self.paper else "")

    def html(self) -> str:
        """The paper's number set apart."""
        shown = html.escape(self.text)
        shown = f"<b>{shown}</b>" if self.bold else shown
        return shown + (f' <span class="paper">[{html.escape(self.paper)}]</span>' if self.paper else "")


@dataclass(frozen=True)
class Table:
    """Rows of entries under a head; `notes` say what the numbers are."""

    title: str
    head: list[str]
    rows: list[list[Entry]]
    notes: list[str] = field(default_factory=list)

    def markdown(self) -> str:
        """A pipe table."""
        lines = [f"### {escaped(self.title)}", "", "| " + " | ".join(map(escaped, self.head)) + " |"]
        lines.append("|" + "|".join("---" if words else "---:" for words in self.words()) + "|")
        lines += ["| " + " | ".join(entry.markdown() for entry in row) + " |" for row in self.rows]
        notes = ["", *(f"{escaped(note)}  " for note in self.notes)] if self.notes else []
        return "\n".join([*lines, *notes]) + "\n"

    def words(self) -> list[bool]:
        """Which columns hold words, that begin at the left; numbers end at the right."""
        word = re.compile(r"^[^\W\d_]|[^\W\d_]{3}")
        return [i == 0 or any(word.search(row[i].text) for row in self.rows) for i in range(len(self.head))]

    def html(self) -> str:
        """A table element with its caption and notes."""
        sides = ["class=words" if words else "class=number" for words in self.words()]
        head = "".join(
            f"<th {side}>{html.escape(name)}</th>" for side, name in zip(sides, self.head, strict=True)
        )
        tags = ["th", *["td"] * (len(self.head) - 1)]
        body = "".join(
            "<tr>"
            + "".join(
                f"<{tag} {side}>{e.html()}</{tag}>" for tag, side, e in zip(tags, sides, row, strict=True)
            )
            + "</tr>"
            for row in self.rows
        )
        notes = "".join(f"<p class=note>{html.escape(note)}</p>" for note in self.notes)
        return (
            f"<figure><div class=wide><table><caption>{html.escape(self.title)}</caption><thead><tr>{head}</tr></thead>"
            f"<tbody>{body}</tbody></table></div>{notes}</figure>"
        )

    def json(self) -> dict[str, Any]:
        """Plain data."""
        rows = [[{"text": e.text, "bold": e.bold, "paper": e.paper} for e in row] for row in self.rows]
        return {"title": self.title, "head": self.head, "rows": rows, "notes": self.notes}


def escaped(text: str) -> str:
    """Text that Markdown shows as it is; what it would not mistake stays readable."""
    return re.sub(r"[\\`*|~]|<(?=[\w/!?])|(?<!\w)_|_(?!\w)", r"\\\g<0>", text)


def number(value: float | None, digits: int = 4) -> str:
    """Significant digits, without an exponent where people would not write one; – for none."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "–"
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    if value == 0:
        return "0"
    places = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    return f"{value:.{min(places, 8)}f}" if abs(value) >= 1e-4 else f"{value:.2e}"


def with_error(value: float, error: float | None) -> str:
    """Value ± error, both to the error's two digits."""
    if error is None or math.isnan(error) or not math.isfinite(value):
        return number(value)
    if error == 0:
        return f"{number(value)} ± 0"
    places = max(0, 1 - math.floor(math.log10(error)))
    return f"{value:.{min(places, 6)}f} ± {error:.{min(places, 6)}f}"


def plain(text: str) -> Entry:
    """An entry of words."""
    return Entry(text)
