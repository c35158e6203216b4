"""`scdd eval repair`: what `scdd correct` is worth to writers."""

from __future__ import annotations

from itertools import product
from typing import Annotated, Any

import typer

from scdd.cli import eval_session as s
from scdd.core.errors import UserError

MADE = ("typos", "slips")


@s.with_session()
def repair(
    here: s.Session,
    model: s.Models = None,
    pairs: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[NAME=]FOLDER",
            help="Folder of src.txt and ref0.txt, ref1.txt, …: a sentence a line, and what it should read as; may be repeated.",
        ),
    ] = None,
    text: Annotated[
        list[str] | None,
        typer.Option("--text", metavar="[NAME=]PATH", help="Clean text to make errors in; may be repeated."),
    ] = None,
    field: s.Field = "text",
    made: Annotated[
        str,
        typer.Option(
            metavar="KIND,KIND…",
            help="Errors made in --text. typos: mistyped; slips: also wrong forms and small words.",
        ),
    ] = "typos",
    errors: Annotated[
        float, typer.Option(min=0.0, max=0.5, help="Share of the words of --text that are spoilt.")
    ] = 0.1,
    num: Annotated[int, typer.Option(*s.NUM, min=1, help="Sentences of each.")] = 200,
    mode: Annotated[
        str | None, typer.Option(metavar="MODE,MODE…", help="edit, reverse or pass; default: as the model has it.")
    ] = None,
    strength: Annotated[
        str | None, typer.Option(metavar="X,X…", help="One or several; default: as the model has it.")
    ] = None,
) -> None:
    """What correct does to real or made errors: distance to the references, GLEU, right and wrong edits, harm."""
    from scdd.evals.measure.pairs import make_pairs, read_pairs
    from scdd.evals.measure.repair import RepairSpec, measure_repair

    if not pairs and not text:
        raise UserError("repair needs sentences: give --pairs FOLDER, or clean text to make errors in, --text PATH.")
    kinds = [kind for kind in made.split(",") if kind]
    if not kinds or not set(kinds) <= set(MADE):
        raise UserError(f"--made {made} is not known: choose from {', '.join(MADE)}.")
    sets = [read_pairs(each).some(num, here.seed) for each in pairs or ()]
    sets += [make_pairs(text, kind, errors, num, here.seed, field) for kind in kinds if text]  # type: ignore[arg-type]
    modes: list[str | None] = list(mode.split(",")) if mode else [None]
    strengths: list[float | None] = [*s.parse_numbers(strength, "--strength", float)] or [None]
    for _, loaded in here.opened(model):
        for one, way, level in product(sets, modes, strengths):
            wishes: dict[str, Any] = {"mode": way, "strength": level}
            spec = RepairSpec({name: value for name, value in wishes.items() if value is not None}, here.seed)
            here.ask(f"{loaded.label} on {one.name}", len(one), measure_repair, loaded, one, spec)
    here.show()
