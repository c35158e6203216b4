"""What cells are called in tables and figures, so that no two different numbers share a name."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import cache
from typing import Any

from scdd.evals.cells import Measurement
from scdd.recipe.load import parse

# None: not a cell of samples, or one of before the recipe's choices were written into its settings
PLAIN_GRID, PAPERS_FINAL, PAPERS_TEMPERATURE, PAPERS_TOP_P = (
    (None, "uniform"),
    (None, "ancestral"),
    (None, 1.0),
    (None, 0.9),
)
SHORT = 8  # digits of a hash, where a hash is all there is to say
SPOKEN = {"top_p": "top-p", "top_k": "top-k", "num": "texts", "weights": "weights", "changes": "with"}
Slot = Callable[[Measurement], Hashable]


def told_apart(cells: Sequence[Measurement], slot: Slot) -> list[str]:
    """A name for each cell: its label, and where several of a label want one slot, what they differ in."""
    found = []
    for cell in cells:
        mine = [other for other in cells if other.label == cell.label]
        keys = _differences(mine, slot)
        said = [f"{SPOKEN.get(key, key)} {_value(cell, key)}" for key in keys]
        found.append(", ".join([cell.label, *said]))
    taken: dict[tuple[str, Hashable], set[str]] = {}
    for name, cell in zip(found, cells, strict=True):
        taken.setdefault((name, slot(cell)), set()).add(cell.hash)
    return [
        name if len(taken[name, slot(cell)]) == 1 else f"{name}, cell {cell.hash[:SHORT]}"
        for name, cell in zip(found, cells, strict=True)
    ]


def text_of(cell: Measurement) -> str:
    """The text that a cell is about: its name, or its fingerprint where nobody named it."""
    mark = cell.settings.get("text") or cell.settings.get("human") or ""
    return str(cell.made.get("text") or f"text {mark[:SHORT]}")


def paper_of(cell: Measurement) -> str | None:
    """The paper's system that a cell is; None where its process is not its recipe's, or it samples in a way of its own."""
    asked = cell.settings
    if asked.get("grid") not in PLAIN_GRID or asked.get("final") not in PAPERS_FINAL:
        return None
    if asked.get("top_k") is not None or asked.get("start") is not None:
        return None
    if asked.get("temperature") not in PAPERS_TEMPERATURE or asked.get("top_p") not in PAPERS_TOP_P:
        return None
    process = str(asked.get("model", {}).get("process", "")).partition("(")[0].lower()
    if process and cell.made.get("recipe") and _trained(cell.made["recipe"]) != process:
        return None
    name: str | None = cell.made["paper"]
    return name


@cache
def _trained(recipe: str) -> str:
    """The process that a recipe trains."""
    return str(parse(recipe)["process"]["kind"])


def joined(names: Sequence[str]) -> str:
    """Names in a row, each once."""
    return ", ".join(dict.fromkeys(names))


def _differences(cells: Sequence[Measurement], slot: Slot) -> list[str]:
    """The settings that differ within any slot, in the order of the settings."""
    slots: dict[Hashable, list[dict[str, Any]]] = {}
    for cell in cells:
        slots.setdefault(slot(cell), []).append(_flat(cell.settings))
    found: dict[str, None] = {}
    for some in slots.values():
        for key in dict.fromkeys(key for settings in some for key in settings):
            if any(settings.get(key) != some[0].get(key) for settings in some):
                found[key] = None
    return list(found)


def _flat(settings: dict[str, Any]) -> dict[str, Any]:
    """Settings with the model's identity beside the others; the judge and the text have tables of their own."""
    own = {key: value for key, value in settings.items() if key not in ("model", "judge", "text", "human")}
    return {**settings.get("model", {}), **own}


def _value(cell: Measurement, key: str) -> str:
    """A setting as a reader needs it: what the recipe decided, where the command left it open."""
    value = _flat(cell.settings).get(key)
    if value is None:
        value = {**cell.result.get("filters", {}), **cell.result}.get(key)
    if key in ("weights", "vocab"):
        return str(value)[:SHORT]
    if isinstance(value, list):
        return " ".join(map(str, value))
    return f"{value:g}" if isinstance(value, float) else "as in the recipe" if value is None else str(value)
