"""The paper's tables as data, and which of its systems a measurement is of."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from scdd.evals.measure.store import Measurement
from scdd.recipe.load import parse, shipped

ASSETS = Path(__file__).parent / "assets"
# None: no measurement of samples, or one of before the recipe's choices were written into its settings
PLAIN_GRID = (None, "uniform")
PAPERS_WAY = {
    "grid": PLAIN_GRID,
    "final": (None, "ancestral"),
    "top_k": (None,),
    "start": (None,),
    "temperature": (None, 1.0),
    "top_p": (None, 0.9),
}


@cache
def paper() -> dict[str, Any]:
    """The paper's tables, by label."""
    tables: dict[str, Any] = parse((ASSETS / "paper.yaml").read_text(encoding="utf-8"))
    return tables


def printed(table: str, name: str | None, corpus: str, steps: int) -> str | None:
    """The number that a table of systems by steps holds; None where the paper has none."""
    content = paper()[table]
    values = content["rows"].get(name or "", {}).get(corpus)
    known = content["steps"].get(corpus, [])
    return f"{values[known.index(steps)]:g}" if values and steps in known else None


def paper_of(measurement: Measurement) -> str | None:
    """The paper's system; None where the process is not the recipe's, or samples are drawn in another way than its own."""
    settings = measurement.settings
    if any(settings.get(name) not in allowed for name, allowed in PAPERS_WAY.items()):
        return None
    process = str(settings.get("model", {}).get("process", "")).partition("(")[0].lower()
    recipe = measurement.made.get("recipe")
    if process and recipe and _trained(recipe) not in (None, process):
        return None
    name: str | None = measurement.made["paper"]
    return name


def papers_corpus(measurement: Measurement) -> str | None:
    """The corpus of the recipe of the paper's that the model was trained with; None for any other recipe."""
    recipe = measurement.made.get("recipe")
    name = str(parse(recipe).get("name", "")) if recipe else ""
    known = {corpus.lower(): corpus for corpus in paper()["tab:valppl"]["columns"]}
    return known.get(name.partition("-")[0]) if f"paper/{name}" in shipped() else None


@cache
def _trained(recipe: str) -> str | None:
    """The process that a recipe trains; None for a converted checkpoint whose files did not say it."""
    process = parse(recipe).get("process")
    return None if process is None else str(process["kind"])
