"""One self-contained page (and its Markdown twin) from finished cells: tables, figures, samples, and what made each number."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from pathlib import Path

from scdd import __version__
from scdd.core.errors import UserError
from scdd.evals import origin, plots
from scdd.evals.against import against_table, check_names
from scdd.evals.cells import Measurement, read_cells
from scdd.evals.compare import entropy_table, generation_table, likelihood_table
from scdd.evals.frontier import frontier_table
from scdd.evals.names import text_of, told_apart
from scdd.evals.paper import ASSETS
from scdd.evals.summaries import correction_table, judge_table, mauve_table, recovery_table, zero_shot_table
from scdd.evals.tables import Table, escaped
from scdd.training.log import METRICS

Section = tuple[str, list[Table], list[str]]
"""A heading, its tables, its figures."""


def gather(runs: Sequence[str | Path]) -> list[Measurement]:
    """Cells of all runs in the order of the runs and of their dates, each once for every system that shares it."""
    found: dict[tuple[str, str], Measurement] = {}
    for run in runs:
        if not Path(run).is_dir():
            raise UserError(f"{run} is not a folder: give run folders, or folders that `scdd eval` wrote to.")
        for cell in sorted(read_cells(run), key=lambda cell: str(cell.made["date"])):
            found.setdefault((cell.kind, cell.hash), cell)
    if not found and not training_curves(runs):
        raise UserError(
            f"{', '.join(map(str, runs))} holds no measurements: run `scdd eval …` with --out there first."
        )
    return [replace(cell, label=label) for cell in found.values() for label in cell.labels]


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


def sections(cells: Sequence[Measurement], corpus: str = "OWT", against: Sequence[str] = ()) -> list[Section]:
    """Everything that the cells can tell, in the paper's order; systems in `against` beside each other one."""
    check_names(against, cells)
    by: dict[str, list[Measurement]] = {}
    for cell in cells:
        by.setdefault(cell.kind, []).append(cell)
    made: list[Section] = []
    for kind, build in BUILDERS.items():
        if by.get(kind):
            made.append(build(by[kind], corpus))
            if kind == "generation":
                made[-1][1].extend(_against(by[kind], against))
    return made


def _against(cells: Sequence[Measurement], names: Sequence[str]) -> list[Table]:
    """Every way of a named system beside all others of its judge and length."""
    return [
        against_table(ways, name, among)
        for some, among in _judged(cells)
        for ways in [by_way(some)]
        for name, row in ways.items()
        if next(iter(row.values())).label in names
    ]


def _likelihood(cells: Sequence[Measurement], corpus: str) -> Section:
    tables = []
    for some in _grouped(cells, lambda cell: cell.settings["text"]):
        names = told_apart(some, lambda cell: None)
        tables.append(likelihood_table(dict(zip(names, some, strict=True)), corpus))
    return "Likelihood", tables, []


def _grouped(cells: Sequence[Measurement], key: Callable[[Measurement], Hashable]) -> list[list[Measurement]]:
    """Cells of one key together, in the order in which keys come."""
    found: dict[Hashable, list[Measurement]] = {}
    for cell in cells:
        found.setdefault(key(cell), []).append(cell)
    return list(found.values())


def _generation(cells: Sequence[Measurement], corpus: str) -> Section:
    """The paper's tables for every judge and length; where a system has several ways at one budget, a frontier as well."""
    tables, figures = [], []
    for some, among in _judged(cells):
        ways = by_way(some)
        tables += [generation_table(ways, corpus, among), entropy_table(ways, corpus, among)]
        figures += [plots.generation_plot(ways, among)] if len(some) > 1 else []
        several = [cell for cell in some if sum(_budget(cell) == _budget(other) for other in some) > 1]
        if several:
            tables.append(frontier_table(several, among))
            figures.append(plots.frontier_plot(several, among))
    return "Generation", tables, figures


def _judged(cells: Sequence[Measurement]) -> list[tuple[list[Measurement], str]]:
    """Cells of one judge and length together, and what tells them from other such groups."""
    groups = _grouped(cells, lambda cell: (json.dumps(cell.settings["judge"]), _room(cell)))
    return [
        (some, f": {some[0].result['judge']}, context {_room(some[0])}" if len(groups) > 1 else "")
        for some in groups
    ]


def by_way(cells: Sequence[Measurement]) -> dict[str, dict[int, Measurement]]:
    """A line for each system, and for each of its ways of sampling where it has several at one budget."""
    found: dict[str, dict[int, Measurement]] = {}
    for cell, name in zip(cells, told_apart(cells, lambda cell: cell.settings["nfe"]), strict=True):
        found.setdefault(name, {})[cell.settings["nfe"]] = cell
    return found


def _room(cell: Measurement) -> int:
    """How long texts may become; an autoregressive one has no closing frame, and a token more."""
    asked = cell.settings
    return int(asked["length"] + 2 if asked.get("length") else asked["model"]["context"])


def _budget(cell: Measurement) -> tuple[str, int]:
    return cell.label, cell.settings["nfe"]


def _mauve(cells: Sequence[Measurement], corpus: str) -> Section:
    return "MAUVE", [mauve_table(cells)], []


def _correction(cells: Sequence[Measurement], corpus: str) -> Section:
    chosen: dict[str, Measurement] = {}
    for cell in sorted(
        cells, key=lambda cell: "judge" in cell.result
    ):  # a judged cell says all that another does
        chosen[json.dumps([cell.label, {k: v for k, v in cell.settings.items() if k != "judge"}])] = cell
    kept = list(chosen.values())
    figures = [plots.correction_plot(kept), plots.cumulative_plot(kept)]
    return "Self-correction", [correction_table(kept)], figures


def _recovery(cells: Sequence[Measurement], corpus: str) -> Section:
    tables, figures = [], []
    groups = _grouped(cells, lambda cell: cell.settings["text"])
    for some in groups:
        among = f": {text_of(some[0])}, {some[0].result['rows']} rows" if len(groups) > 1 else ""
        tables.append(recovery_table(some, among=among))
        if len({cell.settings["count"] for cell in some}) > 1:
            figures.append(plots.recovery_plot(some, among))
    return "Recovery", tables, figures


def _typos(cells: Sequence[Measurement], corpus: str) -> Section:
    return "Typing errors", _recovery(cells, corpus)[1], []


def _zero_shot(cells: Sequence[Measurement], corpus: str) -> Section:
    return "Zero-shot", [zero_shot_table(cells)], []


def _judge(cells: Sequence[Measurement], corpus: str) -> Section:
    return "LLM as judge", [judge_table(some) for some in judged_pairs(cells)], []


def judged_pairs(cells: Sequence[Measurement]) -> list[list[Measurement]]:
    """The budgets of one comparison together: two systems, one judge, one way of noising."""

    def pair(cell: Measurement) -> Hashable:
        asked = cell.settings
        other = (asked["judge"], asked["t"], asked["top_p"], asked["seed"], cell.result["texts"])
        return tuple(cell.result["systems"]), json.dumps(other), text_of(cell)

    return _grouped(cells, pair)


BUILDERS: dict[str, Callable[[Sequence[Measurement], str], Section]] = {
    "likelihood": _likelihood,
    "generation": _generation,
    "mauve": _mauve,
    "correction": _correction,
    "recovery": _recovery,
    "typos": _typos,
    "zero-shot": _zero_shot,
    "judge": _judge,
}


def samples(cells: Sequence[Measurement]) -> list[tuple[str, list[tuple[str, str]]]]:
    """A few texts of each system at its largest budget, each under a caption, and a few repairs."""
    best: dict[str, Measurement] = {}
    for cell in cells:
        if cell.kind == "generation":
            held = best.get(cell.label)
            if held is None or cell.settings["nfe"] > held.settings["nfe"]:
                best[cell.label] = cell
    shown = [
        (f"{label}, {cell.settings['nfe']} evaluations", [("", text) for text in cell.result["samples"][:2]])
        for label, cell in best.items()
    ]
    for some in _grouped(
        [cell for cell in cells if cell.kind in ("recovery", "typos") and cell.result.get("samples")],
        lambda cell: (cell.label, cell.kind),
    ):
        one = some[0].result["samples"][0]
        what = "typing errors" if some[0].kind == "typos" else "random tokens"
        title = f"{some[0].label}: {some[0].settings['count']} {what}"
        shown.append((title, [("before", one["corrupted"]), ("after", one["repaired"])]))
    for some in judged_pairs([cell for cell in cells if cell.kind == "judge"]):
        cell = max(some, key=lambda cell: int(cell.settings["nfe"]))
        first, second = cell.result["systems"]
        for i, pair in enumerate(cell.result["samples"], 1):
            title = f"Noised text {i} mended in {cell.settings['nfe']} evaluations"
            shown.append((title, [(first, pair["first"]), (second, pair["second"])]))
    return shown


def markdown(title: str, runs: Sequence[str | Path], corpus: str = "OWT", against: Sequence[str] = ()) -> str:
    """The report as Markdown: tables, samples, recipes. Long lists are folded, where the reader's program can fold."""
    cells = gather(runs)
    parts = [f"# {escaped(title)}\n"]
    for name, tables, _ in sections(cells, corpus, against):
        parts += [f"## {name}\n", *(table.markdown() for table in tables)]
    told = samples(cells)
    parts += ["## Samples\n"] if told else []
    for name, texts in told:
        parts.append(f"### {escaped(name)}\n")
        parts += [quoted(caption, text) for caption, text in texts[: 2 if texts[0][0] else 1]]
    if cells:
        found = origin.recipes(cells)
        parts += ["## Provenance\n", origin.systems(cells).markdown()]
        parts += [f"{letter}: {escaped(said)}  " for said, letter in origin.environments(cells).items()]
        parts.append("")
        first = next(iter(found), None)
        differences = origin.changed(found)
        parts += [] if differences is None else [differences.markdown()]
        if first is not None:
            parts.append(folded(f"Recipe of {first}", f"```yaml\n{found[first]}```"))
        parts.append(folded("The cell behind every number", origin.numbers(cells).markdown()))
    return "\n".join(parts)


def quoted(caption: str, text: str) -> str:
    """A text as a quotation that Markdown leaves as it is, line by line."""
    lines = [
        re.sub(r"^(\d*)([-+>.)])|([\[\]#])", r"\1\\\2\3", escaped(line.strip())) for line in text.splitlines()
    ]
    shown = "  \n> ".join(line for line in lines if line)
    return (f"{escaped(caption)}:\n\n" if caption else "") + f"> {shown}\n"


def folded(summary: str, body: str) -> str:
    """A part that opens on a click."""
    return f"<details><summary>{html.escape(summary)}</summary>\n\n{body}\n</details>\n"


def page(title: str, runs: Sequence[str | Path], corpus: str = "OWT", against: Sequence[str] = ()) -> str:
    """The report as one HTML file that asks for nothing from outside."""
    cells = gather(runs)
    parts = []
    curves = training_curves(runs)
    if curves:
        parts.append(f"<h2>Training</h2><div class=figures>{plots.training_plot(curves)}</div>")
    for name, tables, figures in sections(cells, corpus, against):
        drawn = f"<div class=figures>{''.join(figures)}</div>" if figures else ""
        parts.append(f"<h2>{html.escape(name)}</h2>{''.join(table.html() for table in tables)}{drawn}")
    told = "".join(
        f"<h3>{html.escape(name)}</h3><div class=texts>"
        + "".join(
            f"<div>{f'<p class=note>{html.escape(caption)}</p>' if caption else ''}"
            f"<pre class=text>{html.escape(text.strip())}</pre></div>"
            for caption, text in texts
        )
        + "</div>"
        for name, texts in samples(cells)
    )
    if told:
        parts.append(f"<h2>Samples</h2>{told}")
    parts += _provenance(cells) if cells else []
    template = (ASSETS / "report.html").read_text(encoding="utf-8")
    made = f"Made by scdd report, scdd {__version__}."
    filled = {"title": html.escape(title), "made": html.escape(made), "body": "\n".join(parts)}
    for key, value in filled.items():
        template = template.replace("{{" + key + "}}", value)
    return template


def _provenance(cells: Sequence[Measurement]) -> list[str]:
    """What made the numbers: the systems in sight, the rest folded."""
    found = origin.recipes(cells)
    differences = origin.changed(found)
    parts = [f"<h2>Provenance</h2>{origin.systems(cells).html()}"]
    parts += [
        f"<p class=note>{letter}: {html.escape(said)}</p>"
        for said, letter in origin.environments(cells).items()
    ]
    parts += [] if differences is None else [differences.html()]
    parts += [
        f"<details><summary>Recipe of {html.escape(label)}</summary><pre>{html.escape(text)}</pre></details>"
        for label, text in found.items()
    ]
    behind = origin.numbers(cells).html()
    parts.append(
        f"<details class=provenance><summary>The cell behind every number</summary>{behind}</details>"
    )
    return parts
