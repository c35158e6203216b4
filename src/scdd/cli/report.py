"""`scdd report`: one page from finished measurements."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from scdd.cli.eval_session import Corpus
from scdd.core.errors import UserError


def report(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN…", help="Run folders, or folders that `scdd eval` wrote to.")
    ],
    out: Annotated[
        Path, typer.Option(help="Where the report goes: the page .html, and the same as .md beside it.")
    ] = Path("report.html"),
    title: Annotated[str, typer.Option(help="Its heading.")] = "scdd: measurements",
    corpus: Corpus = None,
    against: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SYSTEM", help="Also set this system beside each of the others; may be given several times."
        ),
    ] = None,
) -> None:
    """Gather measurements into tables and figures: one self-contained HTML page, and Markdown."""
    from scdd.evals.report.page import markdown, page

    if out.suffix != ".html":
        raise UserError(f"--out {out} is no page: give a name that ends in .html.")
    arguments = (title, runs, corpus, against or [])
    for path, text in ((out, page(*arguments)), (out.with_suffix(".md"), markdown(*arguments))):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        typer.echo(f"wrote {path}")
