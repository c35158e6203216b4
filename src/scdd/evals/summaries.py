"""Tables from finished cells, a function for each kind of measurement."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from scdd.evals.cells import Measurement
from scdd.evals.names import joined, paper_of, text_of, told_apart
from scdd.evals.paper import paper, printed
from scdd.evals.recovery import Repair, way_of
from scdd.evals.stats import stars
from scdd.evals.tables import Entry, Table, number, plain, with_error

PAPERS_REPAIRS = (Repair().name, Repair(nucleus=True).name)


def correction_table(cells: Sequence[Measurement]) -> Table:
    """`tab:correction_rate`, with the intrinsic rate and the excess that the paper leaves out."""
    judged = any("judge" in cell.result for cell in cells)
    rows = []
    for cell, name in _ordered(cells, lambda cell: cell.settings["nfe"]):
        found, nfe = cell.result, cell.settings["nfe"]
        beside = printed("tab:correction_rate", paper_of(cell), "OWT", nfe)
        entries = [
            plain(name),
            plain(str(nfe)),
            Entry(with_error(found["rate"], found["rate_error"]), paper=beside),
            plain(number(found["intrinsic"], 3)),
            plain(f"{found['excess']:+.3f}"),
            plain(number(found["rate_per_step"], 3)),
            plain(number(found["remasked"], 3)),
        ]
        rows.append([*entries, *(_worth(found) if judged else [])])
    head = ["system", "evaluations", "corrections a token", "intrinsic", "excess", "per step", "remasked"]
    notes = [
        "Intrinsic: what a perfect denoiser would do, since the process draws noise and takes it back; the excess is the "
        f"model's. {_texts(cells)}.",
    ]
    if any(entry.paper for row in rows for entry in row):
        notes.append("[ ] is the paper's measured rate on OWT.")
    if judged:
        head += ["PPL before", "PPL after", "gain, nats a token", "PPL without correction"]
        notes.append(
            "Before: every position as it first became visible. Without correction: visible tokens never change, masks are "
            "filled from x_θ alone. Gain by paired t-test, without correction by a test of two ratios: * p < 0.05, ** p < 0.01."
        )
    return Table("Self-correction", head, rows, notes)


def _ordered(
    cells: Sequence[Measurement], place: Callable[[Measurement], Any]
) -> list[tuple[Measurement, str]]:
    """Cells with their names: systems in the order in which they came, each by its place."""
    systems = list(dict.fromkeys(cell.label for cell in cells))
    named = list(zip(cells, told_apart(cells, place), strict=True))
    return sorted(named, key=lambda pair: (systems.index(pair[0].label), pair[1], place(pair[0])))


def _texts(cells: Sequence[Measurement]) -> str:
    """How many samples each number is over."""
    return f"{joined([str(cell.settings['num']) for cell in cells])} texts for each number"


def _worth(found: dict[str, Any]) -> list[Entry]:
    if "judge" not in found:
        return [plain("–")] * 4
    gain = found["benefit"]
    without = found.get("ppl_uncorrected")
    return [
        plain(_ppl(found["ppl_before"])),
        plain(_ppl(found["ppl_after"])),
        plain(with_error(gain["value"], gain["error"]) + stars(gain["p"])),
        plain("–" if without is None else _ppl(without) + stars(found["p_uncorrected"])),
    ]


def _ppl(found: dict[str, Any]) -> str:
    return with_error(found["ppl"], found["error"])


def recovery_table(cells: Sequence[Measurement], compared: bool = True, among: str = "") -> Table:
    """`tab:exact-recovery`, with the damage that the paper leaves out; typing errors have the same columns."""
    known = paper()["tab:exact-recovery"]["rows"]
    typing = bool(cells) and cells[0].kind == "typos"
    judged = any("judge" in cell.result for cell in cells)
    rows = []
    for cell, name in _ordered(cells, _repair_order):
        found, asked = cell.result, cell.settings
        papers = paper_of(cell) == "SCDD (p_u=0.2)" and way_of(asked) in PAPERS_REPAIRS
        values = known.get(asked["count"]) if compared and not typing and papers else None
        beside = [None] * 4 if values is None else [f"{value:g}" for value, _ in values]
        entries = [
            plain(name),
            plain(f"{found['errors']:.1f}" if typing else str(asked["count"])),
            plain(way_of(asked)),
            *(
                Entry(with_error(found[name]["value"], found[name]["error"]), paper=side)
                for name, side in (("touch", beside[0]), ("recovery", beside[1]), ("damage", None))
            ),
        ]
        if "judge" in found:
            sides = (("clean", None), ("corrupted", beside[2]), ("repaired", beside[3]))
            entries += [Entry(_ppl(found[f"ppl_{name}"]), paper=side) for name, side in sides]
        elif judged:
            entries += [plain("–")] * 3
        rows.append(entries)
    head = ["system", "errors a text" if typing else "K", "repair", "touched", "recovered", "damaged"]
    head += ["PPL clean", "PPL corrupted", "PPL repaired"] if judged else []
    unit = "words" if typing else "tokens"
    notes = [
        f"Touched and recovered: of the corrupted {unit}. Damaged: of all others. Errors are over texts, "
        f"{joined([str(cell.result['rows']) for cell in cells])} rows of {joined([text_of(cell) for cell in cells])}."
    ]
    if typing:
        notes.append("Errors are made as far as a text has words for them; a swapped pair counts as two.")
    if any(entry.paper for row in rows for entry in row):
        notes.append(
            "[ ] is the paper's value: SCDD (p_u=0.2) on OWT, judged by GPT-2 large, x_θ probably cut to its nucleus before the step."
        )
    if judged:
        notes.append(f"PPL under {joined([c.result['judge'] for c in cells if 'judge' in c.result])}.")
    title = "Recovery from typing errors" if typing else "Recovery of random tokens"
    return Table(title + among, head, rows, notes)


def _repair_order(cell: Measurement) -> tuple[Any, ...]:
    """By the way of repair, and the number of errors."""
    asked = cell.settings
    return asked.get("threshold") or 0.0, asked["last"], asked["steps"], asked["count"]


def zero_shot_table(cells: Sequence[Measurement]) -> Table:
    """`tab:benchmark_accuracy`: accuracies in percent with their errors over questions."""
    known = paper()["tab:benchmark_accuracy"]
    columns = [task for task in known["columns"][:-1] if any(task in cell.result["tasks"] for cell in cells)]
    more = sorted({task for cell in cells for task in cell.result["tasks"]} - set(columns))
    rows = []
    for cell in cells:
        found = cell.result["tasks"]
        values = known["rows"].get(paper_of(cell) or "")
        entries = [plain(cell.label)]
        for task in (*columns, *more):
            beside = f"{values[known['columns'].index(task)]:.2f}" if values and task in columns else None
            one = found.get(task)
            shown = "–" if one is None else with_error(100 * one["acc"], 100 * one["error"])
            entries.append(Entry(shown, paper=beside))
        mean = sum(one["acc"] for one in found.values()) / len(found)
        whole = f"{values[-1]:.2f}" if values and set(columns) == set(known["columns"][:-1]) else None
        rows.append([*entries, Entry(f"{100 * mean:.2f}", paper=whole)])
    notes = [
        "Percent of questions whose best-scored answer is right; [ ] is the paper's. ± is over the questions."
    ]
    return Table("Zero-shot accuracy", ["system", *columns, *more, "mean"], rows, notes)


def judge_table(cells: Sequence[Measurement]) -> Table:
    """`tab:matched_compact` and `tab:crossratio_compact`: first (second), with the paper's marks."""
    ordered = sorted(cells, key=lambda cell: cell.settings["nfe"])
    columns = [cell.settings["nfe"] for cell in ordered]
    rows = []
    for aspect in ("clarity", "grammaticality", "factuality", "style", "creativity"):
        entries = [plain(aspect)]
        for cell in ordered:
            found = cell.result["aspects"][aspect]
            better = found["p"] < 0.05 and found["first"] > found["second"]
            entries.append(Entry(f"{found['first']:.2f} ({found['second']:.2f}){stars(found['p'])}", better))
        rows.append(entries)
    wins = [plain("win rate")]
    for cell in ordered:
        found = cell.result["wins"]
        share = "–" if found["rate"] is None else f"{100 * found['rate']:.1f} %"
        sure = found["p"] is not None and found["p"] < 0.05 and found["rate"] > 0.5
        wins.append(Entry(f"{share}{stars(found['p'] if found['p'] is not None else 1.0)}", sure))
    rows.append(wins)
    counts = [plain("wins, losses, ties")]
    for cell in ordered:
        found = cell.result["wins"]
        counts.append(plain(f"{found['first']}, {found['second']}, {found['ties']}"))
    rows.append(counts)
    head = ordered[0]
    first, second = head.result["systems"]
    notes = [
        f"{first} ({second}), mean scores from 1 to 10 by {head.result['model']} on {head.result['texts']} texts of "
        f"{text_of(head)} noised to t = {head.settings['t']:g}, the same for both; columns are network evaluations.",
        f"Paired t-tests; binomial test of the wins of {first}, ties apart: * p < 0.05, ** p < 0.01. Bold: significantly "
        f"better than {second}.",
    ]
    return Table(f"LLM as judge: {first} against {second}", ["", *map(str, columns)], rows, notes)


def mauve_table(cells: Sequence[Measurement]) -> Table:
    """MAUVE by system and budget; the error is over the seeds of its clustering."""
    rows = [
        [
            plain(name),
            plain(str(cell.settings["nfe"])),
            plain(with_error(cell.result["value"], cell.result["error"])),
            plain(str(cell.settings["num"])),
            plain(text_of(cell)),
            plain(cell.result["features"]),
        ]
        for cell, name in _ordered(cells, _mauve_order)
    ]
    notes = [
        "1 is as human as the human texts; only numbers of equal texts and features can be compared. ± is over the seeds of "
        "the clustering alone. There is a cluster for ten texts: below some hundreds the number is coarse."
    ]
    return Table("MAUVE", ["system", "evaluations", "MAUVE", "texts", "against", "features"], rows, notes)


def _mauve_order(cell: Measurement) -> tuple[Any, ...]:
    return cell.settings["nfe"], text_of(cell), cell.result["features"]
