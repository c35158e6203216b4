"""A table as data, and as Markdown; every entry keeps its error."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field


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


NONE = Entry("–")


def entries(*values: str | int | Entry) -> list[Entry]:
    """A row: plain words and counts become entries."""
    return [value if isinstance(value, Entry) else Entry(str(value)) for value in values]


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


def any_bold(rows: list[list[Entry]]) -> bool:
    """Whether a note on bold entries has something to speak of."""
    return any(entry.bold for row in rows for entry in row)


def any_paper(rows: list[list[Entry]]) -> bool:
    """Whether the paper's numbers stand anywhere."""
    return any(entry.paper for row in rows for entry in row)


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


def stars(p: float) -> str:
    """The paper's marks: * below 0.05, ** below 0.01."""
    return "**" if p < 0.01 else "*" if p < 0.05 else ""
