"""Several systems at equal numbers of network evaluations, in the paper's tables, its own numbers beside ours.

In each column the best value is bold where it differs significantly (5 %) from the second best: texts of two systems are
independent draws, so the test is that of two independent ratios.
"""

from __future__ import annotations

from typing import Any

from scdd.evals import stats
from scdd.evals.cells import Cell
from scdd.evals.paper import paper, printed
from scdd.evals.tables import Entry, Table, plain, with_error

Grid = dict[str, dict[int, Cell]]
"""By label, by network evaluations."""


def generation_table(cells: Grid, corpus: str = "OWT") -> Table:
    """`tab:genppl-comparison`."""
    columns = sorted({n for row in cells.values() for n in row})
    best = {
        n: best_of({label: row[n] for label, row in cells.items() if n in row and equal(row[n], n)})
        for n in columns
    }
    rows = []
    for label, row in cells.items():
        entries = [plain(label)]
        for n in columns:
            if n not in row:
                entries.append(plain("–"))
                continue
            found = row[n].result
            beside = printed("tab:genppl-comparison", row[n].made["paper"], corpus, n)
            entries.append(Entry(with_error(found["ppl"], found["error"]), best[n] == label, beside))
        rows.append(entries)
    judges = sorted({cell.result["judge"] for row in cells.values() for cell in row.values()})
    notes = [
        f"Lower is better; judge {', '.join(judges)}; [ ] is the paper's value on {corpus} under GPT-2 large.",
        "Bold: the best of its column, significantly better than the second (p < 0.05).",
        *unequal(cells),
    ]
    return Table("Generative perplexity by network evaluations", ["system", *map(str, columns)], rows, notes)


def entropy_table(cells: Grid, corpus: str = "OWT") -> Table:
    """`tab:entropy-comparison`, with repetition where there is room for it in the report."""
    columns = sorted({n for row in cells.values() for n in row})
    rows = []
    for label, row in cells.items():
        entries = [plain(label)]
        for n in columns:
            if n not in row:
                entries.append(plain("–"))
                continue
            found = row[n].result["diversity"]["entropy"]
            beside = printed("tab:entropy-comparison", row[n].made["paper"], corpus, n)
            entries.append(Entry(with_error(found["value"], found["error"]), paper=beside))
        rows.append(entries)
    notes = [
        f"Unigram entropy of each text in nats, a sanity check; [ ] is the paper's on {corpus}, of other lengths."
    ]
    return Table("Unigram entropy by network evaluations", ["system", *map(str, columns)], rows, notes)


def likelihood_table(cells: dict[str, Cell], corpus: str = "OWT") -> Table:
    """`tab:valppl`."""
    known = paper()["tab:valppl"]
    place = known["columns"].index(corpus)
    bounds = [label for label, cell in cells.items() if cell.settings.get("convention") != "reference"]
    ordered = sorted(bounds, key=lambda label: cells[label].result["nats"])
    winner = None
    if len(ordered) > 1:
        first, second = (cells[label].result for label in ordered[:2])
        gap = second["nats"] - first["nats"]
        noise = (first["error"] ** 2 + second["error"] ** 2) ** 0.5
        winner = ordered[0] if gap > 1.96 * noise else None
    rows = []
    for label, cell in cells.items():
        found = cell.result
        beside = known["rows"].get(cell.made["paper"] or "", [None, None])[place]
        exact = "autoregressive, exact" if cell.settings.get("looks") is None else _convention(cell.settings)
        rows.append(
            [
                plain(label),
                Entry(
                    with_error(found["ppl"], found["ppl_error"]),
                    label == winner,
                    None if beside is None else f"{beside:.2f}",
                ),
                plain(with_error(found["nats"], found["error"])),
                plain("–" if found["bits_per_byte"] is None else f"{found['bits_per_byte']:.4f}"),
                plain(with_error(found["ppl"], found["ppl_spread"])),
                plain(exact),
            ]
        )
    notes = [
        "PPL = exp(NELBO per token), the whole bound; ± is the Monte-Carlo error of this text's number, and in the column "
        f"“corpus” the error if the text is a sample. [ ] is the paper's value on {corpus}, another text.",
    ]
    head = ["system", "PPL", "nats per token", "bits per byte", "PPL ± corpus", "estimate"]
    return Table("Likelihood", head, rows, notes)


def _convention(settings: dict[str, Any]) -> str:
    grid = "continuous time" if settings["steps"] is None else f"T = {settings['steps']}"
    return f"{settings['convention']}, {grid}, {settings['looks']} looks"


def best_of(cells: dict[str, Cell]) -> str | None:
    """The label with the lowest Gen PPL, if it is significantly lower than the next; None otherwise, or if alone."""
    ordered = sorted(cells, key=lambda label: cells[label].result["ppl"])
    if len(ordered) < 2:
        return None
    first, second = (cells[label].result for label in ordered[:2])
    p = stats.difference((first["nats"], first["tokens"]), (second["nats"], second["tokens"]))
    return ordered[0] if p < 0.05 else None


def equal(cell: Cell, nfe: int) -> bool:
    """Whether the samples really took `nfe` evaluations."""
    return bool(cell.result["nfe"]["value"] == nfe)


def unequal(cells: Grid) -> list[str]:
    """A note for each cell that really took another number of evaluations than its column says."""
    found = []
    for label, row in cells.items():
        odd = [f"{n}: {cell.result['nfe']['value']:.1f}" for n, cell in row.items() if not equal(cell, n)]
        if odd:
            found.append(
                f"{label} took other numbers of evaluations ({', '.join(odd)}) and is left out of the comparison."
            )
    return found
