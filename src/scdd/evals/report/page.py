"""The report, written once as Markdown; the page is that Markdown as HTML, with the figures put in."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from pathlib import Path

from markdown_it import MarkdownIt

from scdd import __version__
from scdd.evals.measure.store import Measurement
from scdd.evals.report import plots, provenance
from scdd.evals.report.paper import ASSETS
from scdd.evals.report.sections import gather, samples, sections, training_curves
from scdd.evals.report.tables import escaped


def markdown(title: str, runs: Sequence[str | Path], corpus: str | None = "OWT", against: Sequence[str] = ()) -> str:
    """The report as Markdown: tables, samples, recipes. Long lists are folded, where the reader's program can fold."""
    return f"# {escaped(title)}\n\n{_written(runs, corpus, against)[0]}"


def page(title: str, runs: Sequence[str | Path], corpus: str | None = "OWT", against: Sequence[str] = ()) -> str:
    """The report as one HTML file that asks for nothing from outside."""
    text, figures = _written(runs, corpus, against, full=True)
    body = re.sub(r"<!--figure (\d+)-->", lambda slot: plots.svg(figures[int(slot[1])]), html_of(text))
    return _filled(title, f"Made by scdd report, scdd {__version__}.", body)


def document(title: str, made: str, text: str) -> str:
    """Any Markdown as such a page; `made` says what made it."""
    return _filled(title, made, html_of(text))


def _filled(title: str, made: str, body: str) -> str:
    content = {"title": html.escape(title), "made": html.escape(made), "body": body}
    template = (ASSETS / "report.html").read_text(encoding="utf-8")
    for key, value in content.items():
        template = template.replace("{{" + key + "}}", value)
    return template


def html_of(text: str) -> str:
    """Markdown as HTML: wide tables scroll by themselves, the paper's numbers are set apart, nothing is a link."""
    parser = MarkdownIt("commonmark", {"html": True}).enable("table").disable(["link", "image", "autolink"])
    body = parser.render(text)
    body = body.replace("<table>", '<div class="wide"><table>').replace("</table>", "</table></div>")
    return re.sub(r"(\[[\d.]+\])</td>", r'<span class="paper">\1</span></td>', body)


def _written(
    runs: Sequence[str | Path], corpus: str | None, against: Sequence[str], full: bool = False
) -> tuple[str, list[plots.Figure]]:
    """The report below its title. With `full`, what would make a text too long and a page can hold as well: slots for
    the figures, a second sample, all recipes."""
    measurements, figures, parts = gather(runs), list[plots.Figure](), list[str]()

    def slots(group: Sequence[plots.Figure]) -> list[str]:
        places = [f"<!--figure {i}-->" for i in range(len(figures), len(figures) + len(group))]
        figures.extend(group)
        return ["\n".join(['<div class="figures">', *places, "</div>\n"])] if places else []

    curves = training_curves(runs)
    if full and curves:
        parts += ["## Training\n", *slots([plots.training_plot(curves)])]
    for section in sections(measurements, corpus, against):
        parts += [f"## {section.name}\n", *(table.markdown() for table in section.tables)]
        parts += slots(section.figures) if full else []
    told = samples(measurements)
    parts += ["## Samples\n"] if told else []
    for name, texts in told:
        quotes = [quoted(caption, text) for caption, text in texts]
        parts.append(f"### {escaped(name)}\n")
        if full:
            columns = (f"<div>\n\n{quote}\n</div>" for quote in quotes)
            parts.append("\n".join(['<div class="texts">', *columns, "</div>\n"]))
        else:
            parts += quotes if texts[0][0] else quotes[:1]
    parts += _provenance(measurements, full) if measurements else []
    return "\n".join(parts), figures


def _provenance(measurements: Sequence[Measurement], full: bool) -> list[str]:
    """What made the numbers: the systems in sight, the rest folded."""
    recipes = provenance.recipes(measurements)
    letters = provenance.environments(measurements)
    parts = ["## Provenance\n", provenance.systems(measurements).markdown()]
    parts += [*(f"{letter}: {escaped(name)}  " for name, letter in letters.items()), ""]
    differences = provenance.changed(recipes)
    parts += [] if differences is None else [differences.markdown()]
    for name, text in list(recipes.items())[: None if full else 1]:
        fence = "`" * (3 + max(map(len, re.findall("`+", text)), default=0))  # none in the recipe ends it
        parts.append(folded(f"Recipe of {name}", f"{fence}yaml\n{text}{fence}"))
    parts.append(folded("The cell behind every number", provenance.numbers(measurements).markdown()))
    return parts


def quoted(caption: str, text: str) -> str:
    """A text as a quotation that Markdown leaves as it is, line by line."""
    lines = [re.sub(r"^(\d*)([-+>.)])|([\[\]#])", r"\1\\\2\3", escaped(line.strip())) for line in text.splitlines()]
    shown = "  \n> ".join(line for line in lines if line)
    return (f"{escaped(caption)}:\n\n" if caption else "") + f"> {shown}\n"


def folded(summary: str, body: str) -> str:
    """A part that opens on a click."""
    return f"<details><summary>{html.escape(summary)}</summary>\n\n{body}\n</details>\n"
