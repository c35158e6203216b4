"""What made the numbers of a report: systems, environments, recipes, and the measurement behind each number.

What all have in common is said once: an environment has a letter, and a recipe is told by what it changes in the first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from scdd.evals.measure.store import Measurement, digest
from scdd.evals.report.names import SHORT, grouped, listed
from scdd.evals.report.paper import PLAIN_GRID
from scdd.evals.report.tables import Table, entries
from scdd.recipe.load import parse

MANY = 4  # names in a heading
INTERMEDIATE = ("samples", "denoised")  # texts that other measurements are about
HIDDEN = ("model", "text", "human", "first", "second", "against")


def systems(measurements: Sequence[Measurement]) -> Table:
    """Which weights each system is, and how it samples where it samples."""
    rows = []
    for label, group in grouped(measurements, lambda one: one.label).items():
        models = [one.settings.get("model", {}) for one in group]
        weights = listed(str(model.get("weights"))[:12] for model in models)
        steps = listed(str(model.get("step", "–")) for model in models)
        sampling = listed(filter(None, map(_sampling, group))) or "–"
        rows.append(entries(label, weights, steps, listed(map(_process, models)), sampling))
    return Table("Systems", ["system", "weights, SHA-256", "step", "process", "sampling"], rows)


def _process(model: dict[str, Any]) -> str:
    """The process without its vocabulary, which is the same everywhere."""
    process = str(model.get("process"))
    head, vocab, tail = process.partition("Vocab(")
    return "autoregressive" if process == "None" else head + tail.partition("), ")[2] if vocab else process


def _sampling(one: Measurement) -> str:
    """How texts were drawn; what was asked for alone, where the result does not say what that came to."""
    settings, result = one.settings, one.result
    if one.kind == "denoised":
        own = ("sampler", "final", "grid", "top_p", "top_k", "temperature", "nucleus", "last_pass", "convention")
        chosen = {name: settings[name] for name in own if settings.get(name) is not None}
        return "; ".join(f"{name} {value}".replace("_", "-") for name, value in chosen.items())
    if "filters" not in result:
        return ""
    filters, changes = result["filters"], settings.get("model", {}).get("changes", [])
    parts = {
        settings.get("sampler") or result["sampler"]: True,
        f"final {result['final']}": True,
        f"{settings.get('grid')} grid": settings.get("grid") not in PLAIN_GRID,
        f"top-p {filters['top_p']:g}": filters["top_p"] < 1,
        f"top-k {filters.get('top_k')}": filters.get("top_k"),
        f"temperature {filters['temperature']:g}": filters["temperature"] != 1,
        f"nucleus {settings.get('nucleus')}": settings.get("nucleus"),
        f"last pass {settings.get('last_pass')}": settings.get("last_pass"),
        f"convention {settings.get('convention')}": settings.get("convention"),
        f"seed {settings.get('seed')}": settings.get("seed"),
        **{f"with {change}": True for change in changes},
    }
    return "; ".join(part for part, told in parts.items() if told)


def environments(measurements: Sequence[Measurement]) -> dict[str, str]:
    """A letter for every set of versions and device, in the order in which they occur."""
    different = dict.fromkeys(map(_environment, measurements))
    return {name: chr(ord("A") + i) if i < 26 else f"Z{i - 25}" for i, name in enumerate(different)}


def _environment(one: Measurement) -> str:
    ranks = f" × {one.made['ranks']}" if one.made.get("ranks", 1) > 1 else ""
    versions = ", ".join(f"{name} {version}" for name, version in one.made["versions"].items())
    return f"{versions}; on {one.made['device']}{ranks}"


def numbers(measurements: Sequence[Measurement]) -> Table:
    """The file that holds each number, and what was asked; texts that were drawn for it count as its own."""
    letters = environments(measurements)
    drawn = {one.hash: one for one in measurements if one.kind in INTERMEDIATE}
    final = [one for one in measurements if one.kind not in INTERMEDIATE]
    rows = []
    for (kind, mark), group in grouped(final, lambda one: (one.kind, one.hash)).items():
        one = group[0]
        parts = [*(drawn[key] for key in _texts(one) if key in drawn), one]
        date, seconds = one.made["date"][:16].replace("T", " "), sum(part.made["seconds"] for part in parts)
        places = listed(letters[_environment(part)] for part in parts)
        labels = listed(each.label for each in group)
        rows.append(entries(labels, kind, mark, date, f"{seconds:.0f} s", places, _asked(one)))
    head = ["system", "kind", "cell", "date", "time", "made in", "settings"]
    notes = ["Cells are files, cells/KIND-CELL.json in the folder of the results; the time includes drawing the texts."]
    return Table("Behind every number", head, rows, notes)


def _texts(one: Measurement) -> list[str]:
    """The hashes of the measurements whose texts this one is about."""
    asked = {key: value for key, value in one.settings.items() if key not in ("judge", "human")}
    return [digest("samples", asked), *(str(asked[key]) for key in ("first", "second") if key in asked)]


def _asked(one: Measurement) -> str:
    settings = {key: value for key, value in one.settings.items() if key not in HIDDEN and value is not None}
    if isinstance(settings.get("judge"), dict):  # known by its weights, and not by its name
        settings["judge"] = f"weights {str(settings['judge'].get('weights'))[:SHORT]}"
    mark = one.settings.get("text") or one.settings.get("human")
    about = [f"text={one.made.get('text', '')}#{mark[:SHORT]}"] if mark else []
    return " ".join([*about, *(f"{key}={value}" for key, value in settings.items())])


def recipes(measurements: Sequence[Measurement]) -> dict[str, str]:
    """The exact recipes, once each, by the systems that have them."""
    with_recipe = [one for one in measurements if one.made.get("recipe")]
    named: dict[str, str] = {}
    for text, group in grouped(with_recipe, lambda one: str(one.made["recipe"])).items():
        names = list(dict.fromkeys(one.label for one in group))
        name = listed(names if len(names) <= MANY else [*names[: MANY - 1], f"{len(names) - MANY + 1} more"])
        named[name if name not in named else f"{name} ({len(named) + 1})"] = text
    return named


def changed(named: dict[str, str]) -> Table | None:
    """The keys in which recipes differ, a column for each recipe; None where there is nothing to compare."""
    if len(named) < 2:
        return None
    trees = {name: _dotted(parse(text)) for name, text in named.items()}
    keys = dict.fromkeys(key for tree in trees.values() for key in tree)
    values = {key: [_shown(tree.get(key, "")) for tree in trees.values()] for key in keys}
    rows = [entries(key, *row) for key, row in values.items() if len(set(row)) > 1]
    return Table("Where the recipes differ", ["key", *trees], rows)


def _shown(value: Any) -> str:
    return "–" if value == "" else "none" if value is None else str(value)


def _dotted(tree: Any, path: str = "") -> dict[str, Any]:
    if not isinstance(tree, dict):
        return {path: tree}
    return {
        key: value
        for name, node in tree.items()
        for key, value in _dotted(node, f"{path}.{name}" if path else str(name)).items()
    }
