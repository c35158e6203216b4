"""Quality against diversity over steps × temperature × top-p, at equal network evaluations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from scdd.evals.measure.store import Measurement
from scdd.evals.report.tables import Entry, Table, entries, with_error


class Point(NamedTuple):
    """One way of sampling: perplexity (lower is better) and entropy (higher is more diverse)."""

    label: str
    nfe: int
    temperature: float
    top_p: float
    ppl: float
    entropy: float

    @classmethod
    def of(cls, one: Measurement) -> Point:
        """A generation measurement as a point."""
        result, filters = one.result, one.result["filters"]
        sampling = round(result["nfe"]["value"]), filters["temperature"], filters["top_p"]
        return cls(one.label, *sampling, result["ppl"], result["diversity"]["entropy"]["value"])

    def beats(self, other: Point) -> bool:
        """Whether it is better in one respect and no worse in the other, at as many evaluations."""
        as_good = self.ppl <= other.ppl and self.entropy >= other.entropy
        return self.nfe == other.nfe and as_good and (self.ppl, self.entropy) != (other.ppl, other.entropy)


def pareto(points: Sequence[Point]) -> set[Point]:
    """Points that no other of the same number of evaluations beats."""
    return {point for point in points if not any(other.beats(point) for other in points)}


def frontier_table(measurements: Sequence[Measurement], among: str = "") -> Table:
    """Every point; bold is on the frontier of its number of evaluations."""
    pairs = [(Point.of(one), one.result) for one in measurements]
    best = pareto([point for point, _ in pairs])
    rows = []
    for p, result in sorted(pairs, key=lambda pair: (pair[0].nfe, pair[0].ppl)):
        on, diversity = p in best, result["diversity"]
        row = (
            Entry(with_error(p.ppl, result["error"]), on),
            f"{result['low']:.4g} – {result['high']:.4g}",
            Entry(with_error(p.entropy, diversity["entropy"]["error"]), on),
            f"{diversity['distinct_2']['value']:.3f}",
            f"{diversity['repetition']['value']:.3f}",
        )
        rows.append(entries(p.label, p.nfe, f"{p.temperature:g}", f"{p.top_p:g}", *row))
    head = ["system", "evaluations", "temperature", "top-p", "Gen PPL", "95 % interval", "entropy"]
    notes = ["Bold: no other way of the same number of evaluations is both better judged and more diverse."]
    return Table(f"Quality and diversity{among}", [*head, "distinct-2", "repetition"], rows, notes)
