"""What made the numbers of a report: systems, environments, recipes, and the cell behind each number.

What all have in common is said once: an environment has a letter, and a recipe is told by what it changes in the first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from scdd.evals.cells import Measurement, digest
from scdd.evals.names import PLAIN_GRID, SHORT, joined
from scdd.evals.tables import Table, plain
from scdd.recipe.load import parse

MANY = 4  # names in a heading
INTERMEDIATE = ("samples", "denoised")  # texts that other cells judge
HIDDEN = ("model", "text", "human", "first", "second", "against")


def systems(cells: Sequence[Measurement]) -> Table:
    """Which weights each system is, and how it samples where it samples."""
    rows = []
    for label in dict.fromkeys(cell.label for cell in cells):
        mine = [cell for cell in cells if cell.label == label]
        models = [cell.settings.get("model", {}) for cell in mine]
        rows.append(
            [
                plain(label),
                plain(joined([str(model.get("weights"))[:12] for model in models])),
                plain(joined([str(model.get("step", "–")) for model in models])),
                plain(joined([_process(model) for model in models])),
                plain(joined(list(filter(None, map(_way, mine)))) or "–"),
            ]
        )
    return Table("Systems", ["system", "weights, SHA-256", "step", "process", "sampling"], rows)


def _process(model: dict[str, Any]) -> str:
    """The process without its vocabulary, which is the same everywhere."""
    said = str(model.get("process"))
    head, found, tail = said.partition("Vocab(")
    return "autoregressive" if said == "None" else head + tail.partition("), ")[2] if found else said


def _way(cell: Measurement) -> str:
    """How a cell's texts were drawn; what was asked for alone, where it does not say what that came to."""
    if cell.kind == "denoised":
        own = ("sampler", "final", "grid", "top_p", "top_k", "temperature")
        return "; ".join(
            f"{name} {cell.settings[name]}".replace("_", "-")
            for name in own
            if cell.settings.get(name) is not None
        )
    if "filters" not in cell.result:
        return ""
    found, filters = cell.result, cell.result["filters"]
    said = [cell.settings.get("sampler") or found["sampler"], f"final {found['final']}"]
    said += [f"{cell.settings['grid']} grid"] if cell.settings.get("grid") not in PLAIN_GRID else []
    said += [f"top-p {filters['top_p']:g}"] if filters["top_p"] < 1 else []
    said += [f"top-k {filters['top_k']}"] if filters.get("top_k") else []
    said += [f"temperature {filters['temperature']:g}"] if filters["temperature"] != 1 else []
    said += [f"seed {cell.settings['seed']}"] if cell.settings.get("seed") else []
    said += [f"with {change}" for change in cell.settings.get("model", {}).get("changes", [])]
    return "; ".join(said)


def environments(cells: Sequence[Measurement]) -> dict[str, str]:
    """A letter for every set of versions and device, in the order in which they occur."""
    found = list(dict.fromkeys(_environment(cell) for cell in cells))
    return {said: _letter(i) for i, said in enumerate(found)}


def _environment(cell: Measurement) -> str:
    made = cell.made
    ranks = f" × {made['ranks']}" if made.get("ranks", 1) > 1 else ""
    versions = ", ".join(f"{name} {version}" for name, version in made["versions"].items())
    return f"{versions}; on {made['device']}{ranks}"


def _letter(index: int) -> str:
    return chr(ord("A") + index) if index < 26 else f"Z{index - 25}"


def numbers(cells: Sequence[Measurement]) -> Table:
    """The cell that holds each number, and what was asked; texts that were drawn for it count as its own."""
    letters = environments(cells)
    drawn = {cell.hash: cell for cell in cells if cell.kind in INTERMEDIATE}
    shared: dict[tuple[str, str], list[Measurement]] = {}
    for cell in cells:
        if cell.kind not in INTERMEDIATE:
            shared.setdefault((cell.kind, cell.hash), []).append(cell)
    rows = []
    for (kind, mark), some in shared.items():
        cell = some[0]
        parts = [*(drawn[key] for key in _texts(cell) if key in drawn), cell]
        rows.append(
            [
                plain(joined([one.label for one in some])),
                plain(kind),
                plain(mark),
                plain(cell.made["date"][:16].replace("T", " ")),
                plain(f"{sum(part.made['seconds'] for part in parts):.0f} s"),
                plain(joined([letters[_environment(part)] for part in parts])),
                plain(_asked(cell)),
            ]
        )
    head = ["system", "kind", "cell", "date", "time", "made in", "settings"]
    notes = [
        "Cells are files, cells/KIND-CELL.json in the folder of the results; the time includes drawing the texts."
    ]
    return Table("Behind every number", head, rows, notes)


def _texts(cell: Measurement) -> list[str]:
    """The hashes of the cells whose texts this one is about."""
    asked = {key: value for key, value in cell.settings.items() if key not in ("judge", "human")}
    return [digest("samples", asked), *(str(asked[key]) for key in ("first", "second") if key in asked)]


def _asked(cell: Measurement) -> str:
    said = {key: value for key, value in cell.settings.items() if key not in HIDDEN and value is not None}
    if isinstance(said.get("judge"), dict):  # one of our own
        said["judge"] = f"weights {str(said['judge'].get('weights'))[:SHORT]}"
    mark = cell.settings.get("text") or cell.settings.get("human")
    about = [f"text={cell.made.get('text', '')}#{mark[:SHORT]}"] if mark else []
    return " ".join([*about, *(f"{key}={value}" for key, value in said.items())])


def recipes(cells: Sequence[Measurement]) -> dict[str, str]:
    """The exact recipes, once each, by the systems that have them."""
    owners: dict[str, list[str]] = {}
    for cell in cells:
        text = cell.made.get("recipe")
        if text:
            owners.setdefault(text, []).append(cell.label)
    found: dict[str, str] = {}
    for text, labels in owners.items():
        names = list(dict.fromkeys(labels))
        name = joined(names if len(names) <= MANY else [*names[: MANY - 1], f"{len(names) - MANY + 1} more"])
        found[name if name not in found else f"{name} ({len(found) + 1})"] = text
    return found


def changed(found: dict[str, str]) -> Table | None:
    """The keys in which recipes differ, a column for each recipe; None where there is nothing to compare."""
    if len(found) < 2:
        return None
    trees = {name: _dotted(parse(text)) for name, text in found.items()}
    keys = list(dict.fromkeys(key for tree in trees.values() for key in tree))
    rows = [
        [plain(key), *(plain(_said(tree.get(key, ""))) for tree in trees.values())]
        for key in keys
        if len({_said(tree.get(key, "")) for tree in trees.values()}) > 1
    ]
    return Table("Where the recipes differ", ["key", *trees], rows)


def _said(value: Any) -> str:
    return "–" if value == "" else "none" if value is None else str(value)


def _dotted(tree: Any, path: str = "") -> dict[str, Any]:
    if not isinstance(tree, dict):
        return {path: tree}
    return {
        key: value
        for name, node in tree.items()
        for key, value in _dotted(node, f"{path}.{name}" if path else str(name)).items()
    }
