"""Quality against diversity over steps × temperature × top-p, at equal network evaluations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from scdd.evals.cells import Measurement
from scdd.evals.tables import Entry, Table, plain, with_error


class Point(NamedTuple):
    """One way of sampling: perplexity (lower is better) and entropy (higher is more diverse)."""

    label: str
    nfe: int
    temperature: float
    top_p: float
    ppl: float
    entropy: float


def points(cells: Sequence[Measurement]) -> list[Point]:
    """Generation cells as points, in order."""
    found = []
    for cell in cells:
        result, filters = cell.result, cell.result["filters"]
        found.append(
            Point(
                cell.label,
                round(result["nfe"]["value"]),
                filters["temperature"],
                filters["top_p"],
                result["ppl"],
                result["diversity"]["entropy"]["value"],
            )
        )
    return found


def pareto(some: Sequence[Point]) -> set[Point]:
    """Points that no other of the same number of evaluations beats in both respects."""
    return {
        p
        for p in some
        if not any(
            q.nfe == p.nfe
            and q.ppl <= p.ppl
            and q.entropy >= p.entropy
            and (q.ppl, q.entropy) != (p.ppl, p.entropy)
            for q in some
        )
    }


def frontier_table(cells: Sequence[Measurement], among: str = "") -> Table:
    """Every point; bold is on the frontier of its number of evaluations."""
    some = points(cells)
    best = pareto(some)
    rows = []
    for cell, p in sorted(zip(cells, some, strict=True), key=lambda pair: (pair[1].nfe, pair[1].ppl)):
        found, on = cell.result, p in best
        entropy, repetition = found["diversity"]["entropy"], found["diversity"]["repetition"]
        rows.append(
            [
                plain(p.label),
                plain(str(p.nfe)),
                plain(f"{p.temperature:g}"),
                plain(f"{p.top_p:g}"),
                Entry(with_error(p.ppl, found["error"]), on),
                plain(f"{found['low']:.4g} – {found['high']:.4g}"),
                Entry(with_error(p.entropy, entropy["error"]), on),
                plain(f"{found['diversity']['distinct_2']['value']:.3f}"),
                plain(f"{repetition['value']:.3f}"),
            ]
        )
    head = [
        *("system", "evaluations", "temperature", "top-p", "Gen PPL", "95 % interval", "entropy"),
        *("distinct-2", "repetition"),
    ]
    notes = ["Bold: no other way of the same number of evaluations is both better judged and more diverse."]
    return Table(f"Quality and diversity{among}", head, rows, notes)
