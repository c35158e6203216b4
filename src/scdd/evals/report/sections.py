"""What a report holds: measurements gathered from folders, the tables and figures that they can tell, and a few texts."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from scdd.core.errors import UserError
from scdd.evals.measure.store import Measurement, read_measurements
from scdd.evals.report import compare, plots, summaries
from scdd.evals.report.names import SHORT, distinct_names, grouped, text_of
from scdd.evals.report.tables import Table
from scdd.training.log import read_metrics


class Section(NamedTuple):
    """A heading, its tables, its figures."""

    name: str
    tables: list[Table]
    figures: Sequence[plots.Figure] = ()


def gather(runs: Sequence[str | Path]) -> list[Measurement]:
    """Measurements of all runs in the order of the runs and of their dates, each once for every system that shares it."""
    different: dict[tuple[str, str], Measurement] = {}
    for run in runs:
        if not Path(run).is_dir():
            raise UserError(f"{run} is not a folder: give run folders, or folders that `scdd eval` wrote to.")
        for one in sorted(read_measurements(run), key=lambda one: str(one.made["date"])):
            different.setdefault((one.kind, one.hash), one)
    if not different and not training_curves(runs):
        raise UserError(f"{', '.join(map(str, runs))} holds no measurements: let `scdd eval …` write there first.")
    return [replace(one, label=label) for one in different.values() for label in one.labels]


def training_curves(runs: Sequence[str | Path]) -> dict[str, list[tuple[int, float, float]]]:
    """Validation curves of the run folders among `runs`."""
    curves = {}
    for run in map(Path, runs):
        lines = [line for line in read_metrics(run) if isinstance(line.get("valid_nelbo"), int | float)]
        curve = [(line["step"], line["valid_nelbo"], line.get("valid_error", 0.0)) for line in lines]
        if curve:
            curves[run.name] = curve
    return curves


def sections(
    measurements: Sequence[Measurement], corpus: str | None = "OWT", against: Sequence[str] = ()
) -> list[Section]:
    """Everything that the measurements can tell, in the paper's order; systems in `against` beside each other one.

    `corpus` says which of the paper's numbers stand beside ours. None: those of likelihood only beside models of the
    paper's own recipes, since another text has another perplexity; those of samples on OWT.
    """
    compare.check_names(against, measurements)
    by_kind = grouped(measurements, lambda one: one.kind)
    builders: dict[str, Callable[[list[Measurement]], Section]] = {
        "likelihood": lambda group: _likelihood(group, corpus),
        "generation": lambda group: _generation(group, corpus or "OWT", against),
        "mauve": lambda group: Section("MAUVE", [summaries.mauve_table(group)]),
        "correction": _correction,
        "recovery": _recovery,
        "typos": lambda group: Section("Typing errors", _recovery(group).tables),
        "repair": _repair,
        "zero-shot": lambda group: Section("Zero-shot", [summaries.zero_shot_table(group)]),
        "judge": lambda group: Section("LLM as judge", [summaries.judge_table(pair) for pair in judged_pairs(group)]),
    }
    return [build(by_kind[kind]) for kind, build in builders.items() if kind in by_kind]


def _likelihood(measurements: Sequence[Measurement], corpus: str | None) -> Section:
    tables = []
    for group in grouped(measurements, lambda one: one.settings["text"]).values():
        names = distinct_names(group, lambda one: None)
        tables.append(compare.likelihood_table(dict(zip(names, group, strict=True)), corpus))
    return Section("Likelihood", tables)


def _generation(measurements: Sequence[Measurement], corpus: str, against: Sequence[str]) -> Section:
    """The paper's tables for every reference LM and length; a frontier where a system has several ways at one budget."""
    tables: list[Table] = []
    comparisons: list[Table] = []
    figures: list[plots.Figure] = []
    groups = grouped(measurements, lambda one: (json.dumps(one.settings["judge"]), _room(one)))
    names = Counter(
        name for _, name in {(json.dumps(one.settings["judge"]), one.result["judge"]) for one in measurements}
    )
    for (_, room), group in groups.items():
        among = f": {_judge(group[0], names)}, context {room}" if len(groups) > 1 else ""
        grid = compare.by_budget(group)
        tables += [compare.generation_table(grid, corpus, among), compare.entropy_table(grid, corpus, among)]
        figures += [plots.generation_plot(grid, among)] if len(group) > 1 else []
        ways = grouped(group, lambda one: (one.label, one.settings["nfe"]))
        several = [one for one in group if len(ways[one.label, one.settings["nfe"]]) > 1]
        if several:
            tables.append(summaries.frontier_table(several, among))
            figures.append(plots.frontier_plot(several, among))
        chosen = [name for name, row in grid.items() if next(iter(row.values())).label in against]
        comparisons += [compare.against_table(grid, name, among) for name in chosen]
    return Section("Generation", [*tables, *comparisons], figures)


def _judge(one: Measurement, names: Counter[str]) -> str:
    """The reference LM's name, and its weights where several folders or files have that name."""
    name, known = one.result["judge"], one.settings["judge"]
    several = names[name] > 1 and isinstance(known, dict) and set(known) == {"weights"}
    return f"{name} #{known['weights'][:SHORT]}" if several else str(name)


def _room(one: Measurement) -> int:
    """How long texts may become; an autoregressive one has no closing frame, and a token more."""
    asked = one.settings
    return int(asked["length"] + 2 if asked.get("length") else asked["model"]["context"])


def _correction(measurements: Sequence[Measurement]) -> Section:
    chosen: dict[str, Measurement] = {}
    # one with a reference LM says all that another does
    for one in sorted(measurements, key=lambda one: "judge" in one.result):
        chosen[json.dumps([one.label, {k: v for k, v in one.settings.items() if k != "judge"}])] = one
    kept = list(chosen.values())
    figures = [plots.correction_plot(kept), plots.cumulative_plot(kept)]
    return Section("Self-correction", [summaries.correction_table(kept)], figures)


def _recovery(measurements: Sequence[Measurement]) -> Section:
    tables, figures = [], []
    groups = grouped(measurements, lambda one: one.settings["text"])
    for group in groups.values():
        among = f": {text_of(group[0])}, {group[0].result['rows']} rows" if len(groups) > 1 else ""
        tables.append(summaries.recovery_table(group, among))
        if len({one.settings["count"] for one in group}) > 1:
            figures.append(plots.recovery_plot(group, among))
    return Section("Recovery", tables, figures)


def judged_pairs(measurements: Sequence[Measurement]) -> list[list[Measurement]]:
    """The budgets of one comparison together: two systems, one judge, one way of noising."""

    def pair(one: Measurement) -> Hashable:
        settings = [one.settings[name] for name in ("judge", "t", "top_p", "seed")]
        return tuple(one.result["systems"]), json.dumps(settings), one.result["texts"], text_of(one)

    return list(grouped(measurements, pair).values())


def _repair(measurements: Sequence[Measurement]) -> Section:
    known = [one for one in measurements if "kinds" in one.result]  # older measurements have none
    tables = [summaries.repair_table(measurements), *([summaries.repair_kinds_table(known)] if known else [])]
    return Section("Repair", tables)


def samples(measurements: Sequence[Measurement]) -> list[tuple[str, list[tuple[str, str]]]]:
    """A few texts of each system at its largest budget, each under a caption, and a few repairs."""
    by_kind = grouped(measurements, lambda one: one.kind)
    shown = []
    for label, group in grouped(by_kind.get("generation", []), lambda one: one.label).items():
        best = max(group, key=lambda one: int(one.settings["nfe"]))
        texts = [("", text) for text in best.result["samples"][:2]]
        shown.append((f"{label}, {best.settings['nfe']} evaluations", texts))
    repairs = [one for one in measurements if one.kind in ("recovery", "typos", "repair") and one.result.get("samples")]
    for (label, kind), group in grouped(repairs, lambda one: (one.label, one.kind)).items():
        repair = group[0].result["samples"][0]
        what = "typing errors" if kind == "typos" else "random tokens"
        texts = [("before", repair["corrupted"]), ("after", repair["repaired"])]
        about = text_of(group[0]) if kind == "repair" else f"{group[0].settings['count']} {what}"
        shown.append((f"{label}: {about}", texts))
    for group in judged_pairs(by_kind.get("judge", [])):
        best = max(group, key=lambda one: int(one.settings["nfe"]))
        first, second = best.result["systems"]
        for i, pair in enumerate(best.result["samples"], 1):
            title = f"Noised text {i} mended in {best.settings['nfe']} evaluations"
            shown.append((title, [(first, pair["first"]), (second, pair["second"])]))
    return shown
