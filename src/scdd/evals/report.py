"""One self-contained page (and its Markdown twin) from finished cells: tables, figures, samples, and what made each number."""

from __future__ import annotations

import html
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from scdd.core.errors import UserError
from scdd.evals import plots
from scdd.evals.cells import Cell, read_cells, versions
from scdd.evals.compare import entropy_table, generation_table, likelihood_table
from scdd.evals.frontier import frontier_table
from scdd.evals.paper import ASSETS
from scdd.evals.summaries import correction_table, judge_table, mauve_table, recovery_table, zero_shot_table
from scdd.evals.tables import Table, plain
from scdd.training.log import METRICS

Section = tuple[str, list[Table], list[str]]
"""A heading, its tables, its figures."""


def gather(runs: Sequence[str | Path]) -> list[Cell]:
    """Cells of all runs; each run folder's own name replaces a label that several share."""
    found: list[Cell] = []
    for run in runs:
        if not Path(run).is_dir():
            raise UserError(f"{run} is not a folder: give run folders, or folders that `scdd eval` wrote to.")
        found += read_cells(run)
    curves = training_curves(runs)
    if not found and not curves:
        raise UserError(
            f"{', '.join(map(str, runs))} holds no measurements: run `scdd eval …` with --out there first."
        )
    return found


def training_curves(runs: Sequence[str | Path]) -> dict[str, list[tuple[int, float, float]]]:
    """Validation curves of the run folders among `runs`."""
    curves = {}
    for run in runs:
        path = Path(run) / METRICS
        if not path.is_file():
            continue
        lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
        curve = [
            (line["step"], line["valid_nelbo"], line.get("valid_error", 0.0))
            for line in lines
            if "valid_nelbo" in line
        ]
        if curve:
            curves[Path(run).name] = curve
    return curves


def sections(cells: Sequence[Cell], corpus: str = "OWT") -> list[Section]:
    """Everything that the cells can tell, in the paper's order."""
    by: dict[str, list[Cell]] = {}
    for cell in cells:
        by.setdefault(cell.kind, []).append(cell)
    made: list[Section] = []
    for kind, build in BUILDERS.items():
        if by.get(kind):
            made.append(build(by[kind], corpus))
    return made


def _likelihood(cells: Sequence[Cell], corpus: str) -> Section:
    texts: dict[str, dict[str, Cell]] = {}
    for cell in cells:
        shown = (
            cell.label
            if cell.settings.get("convention") != "reference"
            else f"{cell.label} (reference convention)"
        )
        if cell.settings.get("steps") is not None:
            shown += f", T = {cell.settings['steps']}"
        texts.setdefault(cell.settings["text"], {})[shown] = cell
    return "Likelihood", [likelihood_table(row, corpus) for row in texts.values()], []


def _generation(cells: Sequence[Cell], corpus: str) -> Section:
    """The paper's tables; where a system has several ways at one budget, a frontier as well."""
    ways = by_way(cells)
    tables = [generation_table(ways, corpus), entropy_table(ways, corpus)]
    figures = [plots.generation_plot(ways)]
    several = [cell for cell in cells if sum(_budget(cell) == _budget(other) for other in cells) > 1]
    if several:
        tables.append(frontier_table(several))
        figures.append(plots.frontier_plot(several))
    return "Generation", tables, figures


def by_way(cells: Sequence[Cell]) -> dict[str, dict[int, Cell]]:
    """A line for each system, and for each of its ways of sampling where it has several at one budget."""
    found: dict[str, dict[int, Cell]] = {}
    for cell in sorted(cells, key=lambda cell: cell.settings["nfe"]):
        ambiguous = any(other is not cell and _budget(other) == _budget(cell) for other in cells)
        filters = cell.result["filters"]
        name = (
            f"{cell.label}, T {filters['temperature']:g}, top-p {filters['top_p']:g}"
            if ambiguous
            else cell.label
        )
        found.setdefault(name, {}).setdefault(cell.settings["nfe"], cell)
    return found


def _budget(cell: Cell) -> tuple[str, int]:
    return cell.label, cell.settings["nfe"]


def _mauve(cells: Sequence[Cell], corpus: str) -> Section:
    return "MAUVE", [mauve_table(cells)], []


def _correction(cells: Sequence[Cell], corpus: str) -> Section:
    chosen: dict[str, Cell] = {}
    for cell in sorted(
        cells, key=lambda cell: "judge" in cell.result
    ):  # a judged cell says all that another does
        chosen[json.dumps([cell.label, {k: v for k, v in cell.settings.items() if k != "judge"}])] = cell
    kept = list(chosen.values())
    figures = [plots.correction_plot(kept), plots.cumulative_plot(kept)]
    return "Self-correction", [correction_table(kept)], figures


def _recovery(cells: Sequence[Cell], corpus: str) -> Section:
    several = len({cell.settings["count"] for cell in cells}) > 1
    return "Recovery", [recovery_table(cells)], [plots.recovery_plot(cells)] if several else []


def _typos(cells: Sequence[Cell], corpus: str) -> Section:
    return "Typing errors", [recovery_table(cells)], []


def _zero_shot(cells: Sequence[Cell], corpus: str) -> Section:
    return "Zero-shot", [zero_shot_table(cells)], []


def _judge(cells: Sequence[Cell], corpus: str) -> Section:
    pairs: dict[tuple[str, ...], list[Cell]] = {}
    for cell in cells:
        pairs.setdefault(tuple(cell.result["systems"]), []).append(cell)
    return "LLM as judge", [judge_table(some) for some in pairs.values()], []


BUILDERS: dict[str, Callable[[Sequence[Cell], str], Section]] = {
    "likelihood": _likelihood,
    "generation": _generation,
    "mauve": _mauve,
    "correction": _correction,
    "recovery": _recovery,
    "typos": _typos,
    "zero-shot": _zero_shot,
    "judge": _judge,
}


def provenance(cells: Sequence[Cell]) -> Table:
    """Which cell holds which number, and what it was made with."""
    rows = [
        [
            plain(cell.label),
            plain(cell.kind),
            plain(cell.hash),
            plain(cell.made["date"]),
            plain(f"{cell.made['seconds']} s on {cell.made['device']}"),
            plain(" ".join(f"{name} {version}" for name, version in cell.made["versions"].items())),
            plain(_asked(cell.settings)),
        ]
        for cell in cells
    ]
    return Table(
        "Behind every number", ["system", "kind", "cell", "date", "made", "versions", "settings"], rows
    )


def _asked(settings: dict[str, Any]) -> str:
    shown = {key: value for key, value in settings.items() if key != "model" and value is not None}
    model = settings["model"]
    return f"weights {str(model.get('weights'))[:12]} {model.get('process')}; " + " ".join(
        f"{key}={value}" for key, value in shown.items()
    )


def recipes(cells: Sequence[Cell]) -> dict[str, str]:
    """The exact recipes, once each, by the label of the first system that has it."""
    found: dict[str, str] = {}
    for cell in cells:
        text = cell.made.get("recipe")
        if text and text not in found.values():
            found[cell.label if cell.label not in found else f"{cell.label} {cell.hash}"] = text
    return found


def samples(cells: Sequence[Cell]) -> list[tuple[str, list[str]]]:
    """A few texts of each system at its largest budget, and a few repairs."""
    best: dict[str, Cell] = {}
    for cell in cells:
        if cell.kind == "generation":
            held = best.get(cell.label)
            if held is None or cell.settings["nfe"] > held.settings["nfe"]:
                best[cell.label] = cell
    shown = [
        (f"{label}, {cell.settings['nfe']} evaluations", cell.result["samples"][:2])
        for label, cell in best.items()
    ]
    told: set[tuple[str, str]] = set()
    for cell in cells:
        if (
            cell.kind in ("recovery", "typos")
            and cell.result.get("samples")
            and (cell.label, cell.kind) not in told
        ):
            told.add((cell.label, cell.kind))
            one = cell.result["samples"][0]
            what = "typing errors" if cell.kind == "typos" else "random tokens"
            title = f"{cell.label}: {cell.settings['count']} {what}, before and after"
            shown.append((title, [one["corrupted"], one["repaired"]]))
    return shown


def markdown(title: str, runs: Sequence[str | Path], corpus: str = "OWT") -> str:
    """The report as Markdown: tables, samples, recipes."""
    cells = gather(runs)
    parts = [f"# {title}\n"]
    for name, tables, _ in sections(cells, corpus):
        parts += [f"## {name}\n", *(table.markdown() for table in tables)]
    for name, texts in samples(cells):
        parts += [f"## Sample: {name}\n", *("> " + text.replace("\n", "\n> ") + "\n" for text in texts)]
    if cells:
        parts.append(provenance(cells).markdown())
    for label, text in recipes(cells).items():
        parts.append(f"## Recipe of {label}\n\n```yaml\n{text}```\n")
    return "\n".join(parts)


def page(title: str, runs: Sequence[str | Path], corpus: str = "OWT") -> str:
    """The report as one HTML file that asks for nothing from outside."""
    cells = gather(runs)
    parts = []
    curves = training_curves(runs)
    if curves:
        parts.append(f"<h2>Training</h2><div class=figures>{plots.training_plot(curves)}</div>")
    for name, tables, figures in sections(cells, corpus):
        drawn = f"<div class=figures>{''.join(figures)}</div>" if figures else ""
        parts.append(f"<h2>{html.escape(name)}</h2>{''.join(table.html() for table in tables)}{drawn}")
    told = "".join(
        f"<h3>{html.escape(name)}</h3>"
        + "".join(f"<pre class=text>{html.escape(text)}</pre>" for text in texts)
        for name, texts in samples(cells)
    )
    if told:
        parts.append(f"<h2>Samples</h2>{told}")
    if cells:
        parts.append(f"<h2>Provenance</h2>{provenance(cells).html()}")
    for label, text in recipes(cells).items():
        parts.append(
            f"<details><summary>Recipe of {html.escape(label)}</summary><pre>{html.escape(text)}</pre></details>"
        )
    made = " · ".join(f"{name} {version}" for name, version in versions().items())
    template = (ASSETS / "report.html").read_text(encoding="utf-8")
    filled = {"title": html.escape(title), "made": html.escape(made), "body": "\n".join(parts)}
    for key, value in filled.items():
        template = template.replace("{{" + key + "}}", value)
    return template
