"""`scdd report`: one page from finished measurements."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from scdd.core.errors import UserError


def report(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN…", help="Run folders, or folders that `scdd eval` wrote to.")
    ],
    out: Annotated[
        Path, typer.Option(help="Where the report goes: the page .html, and the same as .md beside it.")
    ] = Path("report.html"),
    title: Annotated[str, typer.Option(help="Its heading.")] = "scdd: measurements",
    corpus: Annotated[
        str, typer.Option(help="Which of the paper's corpora to print beside ours: LM1B or OWT.")
    ] = "OWT",
    against: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SYSTEM",
            help="Also set this system beside each of the others; may be given several times.",
        ),
    ] = None,
) -> None:
    """Gather measurements into tables and figures: one self-contained HTML page, and Markdown."""
    from scdd.evals.paper import CORPORA
    from scdd.evals.report import markdown, page

    if out.suffix != ".html":
        raise UserError(f"--out {out} is no page: give a name that ends in .html.")
    if corpus not in CORPORA:
        raise UserError(f"--corpus {corpus} is not one of the paper's: choose {' or '.join(CORPORA)}.")
    named = against or []
    texts = {
        out: page(title, runs, corpus, named),
        out.with_suffix(".md"): markdown(title, runs, corpus, named),
    }
    for path, text in texts.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        typer.echo(f"wrote {path}")
