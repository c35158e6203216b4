"""Several systems at equal numbers of network evaluations, in the paper's tables, its own numbers beside ours.

In each column the best value is bold where it differs significantly (5 %) from the second best, by a test of two independent
ratios. Systems that share weights share random numbers, too, and their texts resemble each other; the test then errs on the
side of caution.
"""

from __future__ import annotations

from statistics import median_high
from typing import Any

from scdd.evals import stats
from scdd.evals.cells import Measurement
from scdd.evals.names import joined, paper_of, text_of
from scdd.evals.paper import paper, printed
from scdd.evals.tables import Entry, Table, plain, with_error

Grid = dict[str, dict[int, Measurement]]
"""By label, by network evaluations."""
ODD = "†"  # took another number of evaluations than its column says
HOLLOW = "‡"  # repeats itself, which judges take for fluency
FAR = 0.5  # nats of entropy below the column's median: e^−0.5 = 60 % of the others' variety


def generation_table(cells: Grid, corpus: str = "OWT", among: str = "") -> Table:
    """`tab:genppl-comparison`; `among` tells it from other tables of its kind."""
    columns = sorted({n for row in cells.values() for n in row})
    empty = {n: hollow(cells, n) for n in columns}
    best = {
        n: best_of({label: row[n] for label, row in cells.items() if fair(cells, label, n)}) for n in columns
    }
    rows = []
    for label, row in cells.items():
        entries = [plain(label)]
        for n in columns:
            if n not in row:
                entries.append(plain("–"))
                continue
            found = row[n].result
            beside = printed("tab:genppl-comparison", paper_of(row[n]), corpus, n)
            shown = with_error(found["ppl"], found["error"]) + _mark(row[n], n)
            shown += HOLLOW if label in empty[n] else ""
            entries.append(Entry(shown, best[n] == label, beside))
        rows.append(entries)
    notes = [
        f"Lower is better; {drawn(cells)}, judged by {judges(cells)}.{_beside(rows, corpus, ' under GPT-2 large')}",
        *_bold(rows, "Bold: the best of its column, significantly better than the second (p < 0.05)."),
        *unequal(cells),
        *_repetitive(cells, empty),
    ]
    title = f"Generative perplexity by network evaluations{among}"
    return Table(title, ["system", *map(str, columns)], rows, notes)


def drawn(cells: Grid) -> str:
    """How many texts of which length a table is about."""
    every = [cell for row in cells.values() for cell in row.values()]
    counts = _range([cell.settings["num"] for cell in every])
    return f"{counts} texts of up to {max(cell.result['length'] for cell in every)} tokens for each number"


def _range(values: list[int]) -> str:
    low, high = min(values), max(values)
    return str(low) if low == high else f"{low} to {high}"


def judges(cells: Grid) -> str:
    """Who judged."""
    return joined([cell.result["judge"] for row in cells.values() for cell in row.values()])


def _beside(rows: list[list[Entry]], corpus: str, how: str) -> str:
    """What the brackets are, where there are any."""
    any_of = any(entry.paper for row in rows for entry in row)
    return f" [ ] is the paper's value on {corpus}{how}." if any_of else ""


def _bold(rows: list[list[Entry]], note: str) -> list[str]:
    return [note] if any(entry.bold for row in rows for entry in row) else []


def entropy_table(cells: Grid, corpus: str = "OWT", among: str = "") -> Table:
    """`tab:entropy-comparison`."""
    columns = sorted({n for row in cells.values() for n in row})
    rows = []
    for label, row in cells.items():
        entries = [plain(label)]
        for n in columns:
            if n not in row:
                entries.append(plain("–"))
                continue
            found = row[n].result["diversity"]["entropy"]
            beside = printed("tab:entropy-comparison", paper_of(row[n]), corpus, n)
            shown = with_error(found["value"], found["error"]) + _mark(row[n], n)
            entries.append(Entry(shown, paper=beside))
        rows.append(entries)
    notes = [
        f"Of each text's tokens in nats, a sanity check: repetition lowers it; {drawn(cells)}."
        f"{_beside(rows, corpus, ', of other lengths')}",
        *unequal(cells),
    ]
    title = f"Unigram entropy by network evaluations{among}"
    return Table(title, ["system", *map(str, columns)], rows, notes)


def likelihood_table(cells: dict[str, Measurement], corpus: str = "OWT") -> Table:
    """`tab:valppl`. Systems of the same weights and process share a number, and a row."""
    known = paper()["tab:valppl"]
    place = known["columns"].index(corpus)
    shared: dict[str, list[str]] = {}
    for label, cell in cells.items():
        shared.setdefault(cell.hash, []).append(label)
    cells = {joined(labels): cells[labels[0]] for labels in shared.values()}
    bounds = [label for label, cell in cells.items() if cell.settings.get("convention") == "exact"]
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
        beside = known["rows"].get(paper_of(cell) or "", [None, None])[place]
        how = "autoregressive, exact" if cell.settings.get("looks") is None else _convention(cell.settings)
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
                plain(how),
            ]
        )
    exact = any(cell.settings.get("looks") is None for cell in cells.values())
    texts = joined([text_of(cell) for cell in cells.values()])
    sizes = (
        f"{_range([cell.result['sequences'] for cell in cells.values()])} rows, "
        f"{_range([cell.result['tokens'] for cell in cells.values()])} tokens"
    )
    notes = [
        f"{texts}: {sizes}. PPL = exp(NELBO per token), the whole bound; ± is the Monte-Carlo error of this text's number, "
        f"and in the column “corpus” the error if the text is a sample.{_beside(rows, corpus, ', another text')}",
        *_bold(rows, "Bold: the best bound, significantly better than the second (p < 0.05)."),
        *(["An autoregressive number is exact, no bound, and [BOS] is given."] if exact else []),
    ]
    head = ["system", "PPL", "nats per token", "bits per byte", "PPL ± corpus", "estimate"]
    return Table(f"Likelihood of {texts}", head, rows, notes)


def _convention(settings: dict[str, Any]) -> str:
    grid = "continuous time" if settings["steps"] is None else f"T = {settings['steps']}"
    return f"{settings['convention']}, {grid}, {settings['looks']} looks"


def best_of(cells: dict[str, Measurement]) -> str | None:
    """The label with the lowest Gen PPL, if it is significantly lower than the next; None otherwise, or if alone."""
    ordered = sorted(cells, key=lambda label: cells[label].result["ppl"])
    if len(ordered) < 2:
        return None
    first, second = (cells[label].result for label in ordered[:2])
    p = stats.difference((first["nats"], first["tokens"]), (second["nats"], second["tokens"]))
    return ordered[0] if p < 0.05 else None


def hollow(cells: Grid, nfe: int) -> set[str]:
    """Systems whose texts at this budget are far less varied than is usual there: Gen PPL is no measure of those."""
    found = {
        label: row[nfe].result["diversity"]["entropy"]["value"] for label, row in cells.items() if nfe in row
    }
    usual = median_high(found.values()) if found else 0.0
    return {label for label, value in found.items() if value < usual - FAR}


def fair(cells: Grid, label: str, nfe: int) -> bool:
    """Whether a system has a number at this budget that others may be held against."""
    row = cells[label]
    return nfe in row and equal(row[nfe], nfe) and label not in hollow(cells, nfe)


def _repetitive(cells: Grid, empty: dict[int, set[str]]) -> list[str]:
    """A note on them."""
    names = [label for label in cells if any(label in some for some in empty.values())]
    if not names:
        return []
    return [
        f"{HOLLOW} {joined(names)}: an entropy more than {FAR:g} nats below the median of the column. Repetition lowers perplexity, "
        "so these texts are left out of the comparison."
    ]


def _mark(cell: Measurement, nfe: int) -> str:
    return "" if equal(cell, nfe) else ODD


def equal(cell: Measurement, nfe: int) -> bool:
    """Whether the samples really took `nfe` evaluations."""
    return bool(cell.result["nfe"]["value"] == nfe)


def unequal(cells: Grid) -> list[str]:
    """A note on each system that really took another number of evaluations than its columns say."""
    found = []
    for label, row in cells.items():
        odd = {n: f"{cell.result['nfe']['value']:g}" for n, cell in sorted(row.items()) if not equal(cell, n)}
        if odd:
            same = len(set(odd.values())) == 1
            said = joined(list(odd.values())) if same else joined([f"{n}: {took}" for n, took in odd.items()])
            found.append(
                f"{ODD} {label} took other numbers of evaluations than the columns say ({said}) and is left out of the "
                "comparison."
            )
    return found
