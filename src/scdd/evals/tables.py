"""A table as data: it can be printed in a terminal, in Markdown and in HTML, and every entry keeps its error."""

from __future__ import annotations

import html
import math
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
        shown = f"**{self.text}**" if self.bold else self.text
        return shown.replace("|", "\\|") + (f" [{self.paper}]" if self.paper else "")

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
        lines = [f"### {self.title}", "", "| " + " | ".join(self.head) + " |"]
        lines.append("|" + "|".join("---" if i == 0 else "---:" for i in range(len(self.head))) + "|")
        lines += ["| " + " | ".join(entry.markdown() for entry in row) + " |" for row in self.rows]
        return "\n".join([*lines, "", *(f"{note}  " for note in self.notes)]) + "\n"

    def html(self) -> str:
        """A table element with its caption and notes."""
        head = "".join(f"<th>{html.escape(name)}</th>" for name in self.head)
        body = "".join(
            "<tr>"
            + "".join(
                f"<{'th' if i == 0 else 'td'}>{e.html()}</{'th' if i == 0 else 'td'}>"
                for i, e in enumerate(row)
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
