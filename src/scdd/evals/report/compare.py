"""Several systems at equal numbers of network evaluations, in the paper's tables, its own numbers beside ours.

In each column the best value is bold where it differs significantly (5 %) from the second best, by a test of two independent
ratios. Systems that share weights share random numbers, too, and their texts resemble each other; the test then errs on the
side of caution.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median_high
from typing import Any

from scdd.core.errors import UserError
from scdd.evals.measure import stats
from scdd.evals.measure.store import Measurement
from scdd.evals.report.names import distinct_names, listed, own_tokens, text_of
from scdd.evals.report.paper import paper, paper_of, papers_corpus, printed
from scdd.evals.report.tables import NONE, Entry, Table, any_bold, any_paper, entries, stars, with_error

Grid = dict[str, dict[int, Measurement]]
"""Generation measurements by system, by network evaluations."""
ODD = "†"  # took another number of evaluations than its column says
DEGENERATE = "‡"  # repeats itself, which language models take for fluency
FAR = 0.5  # nats of entropy below the column's median: e^−0.5 = 60 % of the others' variety


def by_budget(measurements: Sequence[Measurement]) -> Grid:
    """A line for each system, and for each of its ways of sampling where it has several at one budget."""
    grid: Grid = {}
    names = distinct_names(measurements, lambda one: one.settings["nfe"])
    for one, name in zip(measurements, names, strict=True):
        grid.setdefault(name, {})[one.settings["nfe"]] = one
    return grid


def generation_table(grid: Grid, corpus: str = "OWT", among: str = "") -> Table:
    """`tab:genppl-comparison`; `among` tells it from other tables of its kind."""
    budgets = _budgets(grid)
    best = {n: best_of({label: row[n] for label, row in grid.items() if fair(grid, label, n)}) for n in budgets}

    def entry(label: str, n: int, one: Measurement) -> Entry:
        shown = with_error(one.result["ppl"], one.result["error"]) + _mark(one, n)
        shown += DEGENERATE if label in degenerate(grid, n) else ""
        return Entry(shown, best[n] == label, printed("tab:genppl-comparison", paper_of(one), corpus, n))

    rows = _rows(grid, entry)
    references = listed(one.result["judge"] for row in grid.values() for one in row.values())
    beside = _beside(rows, corpus, " under GPT-2 large")
    notes = [f"Lower is better; {_drawn(grid)}, judged by {references}.{beside}"]
    if any_bold(rows):
        notes.append("Bold: the best of its column, significantly better than the second (p < 0.05).")
    notes += _unequal(grid)
    repetitive = [label for label in grid if any(label in degenerate(grid, n) for n in budgets)]
    if repetitive:
        notes.append(
            f"{DEGENERATE} {listed(repetitive)}: an entropy more than {FAR:g} nats below the median of the column. Repetition "
            "lowers perplexity, so these texts are left out of the comparison."
        )
    return Table(f"Generative perplexity by network evaluations{among}", ["system", *map(str, budgets)], rows, notes)


def entropy_table(grid: Grid, corpus: str = "OWT", among: str = "") -> Table:
    """`tab:entropy-comparison`."""

    def entry(label: str, n: int, one: Measurement) -> Entry:
        entropy = one.result["diversity"]["entropy"]
        shown = with_error(entropy["value"], entropy["error"]) + _mark(one, n)
        return Entry(shown, paper=printed("tab:entropy-comparison", paper_of(one), corpus, n))

    rows = _rows(grid, entry)
    about = f"Of each text's tokens in nats, a sanity check: repetition lowers it; {_drawn(grid)}."
    own = own_tokens([one for row in grid.values() for one in row.values()])
    notes = [about + _beside(rows, corpus, ", of other lengths"), *_unequal(grid), *own]
    title = f"Unigram entropy by network evaluations{among}"
    return Table(title, ["system", *map(str, _budgets(grid))], rows, notes)


def _budgets(grid: Grid) -> list[int]:
    return sorted({n for row in grid.values() for n in row})


def _rows(grid: Grid, entry: Callable[[str, int, Measurement], Entry]) -> list[list[Entry]]:
    """A row a system, an entry a budget."""
    budgets = _budgets(grid)
    return [
        entries(label, *(entry(label, n, row[n]) if n in row else NONE for n in budgets)) for label, row in grid.items()
    ]


def _drawn(grid: Grid) -> str:
    """How many texts of which length a table is about."""
    every = [one for row in grid.values() for one in row.values()]
    counts = _range([one.settings["num"] for one in every])
    return f"{counts} texts of up to {max(one.result['length'] for one in every)} tokens for each number"


def _range(values: list[int]) -> str:
    low, high = min(values), max(values)
    return str(low) if low == high else f"{low} to {high}"


def _beside(rows: list[list[Entry]], corpus: str, how: str) -> str:
    """What the brackets are, where there are any."""
    return f" [ ] is the paper's value on {corpus}{how}." if any_paper(rows) else ""


def best_of(row: dict[str, Measurement]) -> str | None:
    """The label with the lowest Gen PPL, if it is significantly lower than the next; None otherwise, or if alone."""
    ordered = sorted(row, key=lambda label: row[label].result["ppl"])
    significant = len(ordered) > 1 and _difference(row[ordered[0]], row[ordered[1]]) < 0.05
    return ordered[0] if significant else None


def _difference(one: Measurement, other: Measurement) -> float:
    """p of two equal perplexities."""
    a, b = one.result, other.result
    return stats.difference((a["nats"], a["tokens"]), (b["nats"], b["tokens"]))


def degenerate(grid: Grid, nfe: int) -> set[str]:
    """Systems whose texts at this budget are far less varied than is usual there: Gen PPL is no measure of those."""
    entropies = {label: row[nfe].result["diversity"]["entropy"]["value"] for label, row in grid.items() if nfe in row}
    usual = median_high(entropies.values()) if entropies else 0.0
    return {label for label, value in entropies.items() if value < usual - FAR}


def fair(grid: Grid, label: str, nfe: int) -> bool:
    """Whether a system has a number at this budget that others may be held against."""
    row = grid[label]
    return nfe in row and _equal(row[nfe], nfe) and label not in degenerate(grid, nfe)


def _equal(one: Measurement, nfe: int) -> bool:
    """Whether the samples really took `nfe` evaluations."""
    return bool(one.result["nfe"]["value"] == nfe)


def _mark(one: Measurement, nfe: int) -> str:
    return "" if _equal(one, nfe) else ODD


def _unequal(grid: Grid) -> list[str]:
    """A note on each system that really took another number of evaluations than its columns say."""
    notes = []
    for label, row in grid.items():
        odd = {n: f"{one.result['nfe']['value']:g}" for n, one in sorted(row.items()) if not _equal(one, n)}
        if odd:
            same = len(set(odd.values())) == 1
            took = listed(odd.values()) if same else listed(f"{n}: {count}" for n, count in odd.items())
            notes.append(
                f"{ODD} {label} took other numbers of evaluations than the columns say ({took}) and is left out of the "
                "comparison."
            )
    return notes


def check_names(names: Sequence[str], measurements: Sequence[Measurement]) -> None:
    """Refuse a name that has generated nothing."""
    known = list(dict.fromkeys(one.label for one in measurements if one.kind == "generation"))
    for name in names:
        if name not in known:
            cure = f"choose one of {', '.join(known)}" if known else "no system has generated anything here"
            raise UserError(f"There is no system {name} to set against the others: {cure}.")


def against_table(grid: Grid, name: str, among: str = "") -> Table:
    """By how much `name` differs from every other system; bold where it is significantly better."""
    budgets = [n for n in sorted(grid[name]) if fair(grid, name, n)]

    def entry(label: str, n: int) -> Entry:
        if not fair(grid, label, n):
            return NONE
        mine, other = grid[name][n], grid[label][n]
        p, ratio = _difference(mine, other), mine.result["ppl"] / other.result["ppl"]
        change = f"{100 * (ratio - 1):+.1f} %".replace("-", "−")
        return Entry(change + stars(p), p < 0.05 and ratio < 1)

    others = [label for label in grid if label != name and any(fair(grid, label, n) for n in budgets)]
    rows = [entries(label, *(entry(label, n) for n in budgets)) for label in others]
    notes = [
        f"{name}: by how much its perplexity is above (+) or below (−) the other's at equal network evaluations. Two-sided test "
        "of two ratios over independent texts: * p < 0.05, ** p < 0.01; bold: significantly lower. How much results vary "
        "from one training run to the next is not in it."
    ]
    title = f"Generative perplexity of {name} against the others{among}"
    return Table(title, ["against", *map(str, budgets)], rows, notes)


def likelihood_table(named: dict[str, Measurement], corpus: str | None = "OWT") -> Table:
    """`tab:valppl`. Systems of the same weights and process share a number, and a row.

    Without a corpus, that of each model's recipe, if it is one of the paper's.
    """
    known = paper()["tab:valppl"]
    shared: dict[str, list[str]] = {}
    for label, one in named.items():
        shared.setdefault(one.hash, []).append(label)
    named = {listed(labels): named[labels[0]] for labels in shared.values()}
    winner = _best_bound(named)
    rows = []
    for label, one in named.items():
        nelbo, papers = one.result, known["rows"].get(paper_of(one) or "")
        chosen = corpus or papers_corpus(one)
        printed = papers[known["columns"].index(chosen)] if papers and chosen else None
        beside, bits = None if printed is None else f"{printed:.2f}", nelbo["bits_per_byte"]
        ppl = Entry(with_error(nelbo["ppl"], nelbo["ppl_error"]), label == winner, beside)
        nats, spread = with_error(nelbo["nats"], nelbo["error"]), with_error(nelbo["ppl"], nelbo["ppl_spread"])
        told = "–" if bits is None else f"{bits:.4f}"
        rows.append(entries(label, ppl, nats, told, spread, _convention(one.settings)))
    texts = listed(text_of(one) for one in named.values())
    sequences, tokens = (_range([one.result[k] for one in named.values()]) for k in ("sequences", "tokens"))
    bound = any(one.settings.get("convention") == "exact" for one in named.values())
    what = "exp(NELBO per token), the whole bound" if bound else "exp(nats per token)"
    notes = [
        f"{texts}: {sequences} rows, {tokens} tokens. PPL = {what}; ± is the Monte-Carlo error "
        "of this text's number, and in the column “corpus” the error if the text is a sample."
        f"{_beside(rows, corpus or 'the corpus of its recipe', ', another text' if corpus else '')}"
    ]
    if any_bold(rows):
        notes.append("Bold: the best bound, significantly better than the second (p < 0.05).")
    notes += [NO_BOUND[way] for way in NO_BOUND if any(one.settings.get("convention") == way for one in named.values())]
    if any(_exact(one.settings) for one in named.values()):
        notes.append("An autoregressive number is exact, no bound, and [BOS] is given.")
    head = ["system", "PPL", "nats per token", "bits per byte", "PPL ± corpus", "estimate"]
    return Table(f"Likelihood of {texts}", head, rows, notes)


NO_BOUND = {
    "authors": "“authors”: what the code behind the paper reports. It is no bound: the step to clean text is never drawn and the "
    "constants are dropped, so a perfect model would have more than PPL 1 (docs/evaluation.md).",
    "reference": "“reference”: an earlier rendering of the authors' number, with other times near t = 1 and without γ. It is no bound either.",
}
"""What the numbers are that are not the bound, by the convention in their settings."""


def _best_bound(named: dict[str, Measurement]) -> str | None:
    """The lowest whole bound, if it is significantly lower than the next."""
    bounds = [label for label, one in named.items() if one.settings.get("convention") == "exact"]
    ordered = sorted(bounds, key=lambda label: named[label].result["nats"])
    if len(ordered) < 2:
        return None
    first, second = (named[label].result for label in ordered[:2])
    noise = (first["error"] ** 2 + second["error"] ** 2) ** 0.5
    return ordered[0] if second["nats"] - first["nats"] > 1.96 * noise else None


def _exact(settings: dict[str, Any]) -> bool:
    """Whether it is an autoregressive model's number, which nobody had to estimate."""
    return settings.get("looks") is None


def _convention(settings: dict[str, Any]) -> str:
    if _exact(settings):
        return "autoregressive, exact"
    grid = "continuous time" if settings["steps"] is None else f"T = {settings['steps']}"
    return f"{settings['convention']}, {grid}, {settings['looks']} looks"
