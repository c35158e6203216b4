"""What the measurements say of each claim: holds, does not hold, undecided, or not measured.

A claim about every budget holds only if it is shown at each of them, so its p is the largest of theirs; it fails if the contrary
is shown at one of them, with p the smallest times their number. The claim's own p is twice the smaller of the two, and Holm's
rule corrects for the number of claims in a family: one comparison under one convention. What is planned counts there whether it has been
measured or not, so that what is missing makes nothing else true. Seeds are the unit throughout.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from scdd.evals.measure.seeds import Difference, holm, paired, permutation, sign_flips, welch
from scdd.reproduce.claims import KINDS, LOGARITHMIC, Arm, Claim, value_of
from scdd.reproduce.records import Record

LEVEL = 0.05
FAR = 0.5  # nats of entropy between two systems, beyond which perplexities are of unlike texts
HOLDS, FAILS, UNDECIDED, UNMEASURED = "holds", "does not hold", "undecided", "not measured"


class Family(NamedTuple):
    """Claims that are corrected for each other."""

    comparison: str
    convention: str
    tuned: bool

    @property
    def name(self) -> str:
        """For headings."""
        tuned = ", each system tuned" if self.tuned else ""
        return f"{self.comparison}; convention {self.convention}{tuned}"


@dataclass(frozen=True)
class Trial:
    """One test: the values of both sides by seed, at one budget or count."""

    place: str
    first: Mapping[int, float]
    second: Mapping[int, float] | None
    difference: Difference
    exact: float
    """Two-sided p of the exact permutation test."""
    fair: bool = True
    """False where texts are too unlike for their perplexities to be compared."""


@dataclass(frozen=True)
class Finding:
    """A claim and what became of it."""

    claim: Claim
    family: Family
    systems: tuple[str, str]
    trials: tuple[Trial, ...] = ()
    missing: str = ""
    p_for: float = math.nan
    p_against: float = math.nan
    adjusted: float = math.nan

    @property
    def p(self) -> float:
        """Two-sided, before Holm's correction."""
        known = [p for p in (self.p_for, self.p_against) if not math.isnan(p)]
        return min(1.0, 2 * min(known)) if known else math.nan

    @property
    def verdict(self) -> str:
        """What can be said."""
        if self.missing:
            return UNMEASURED
        if math.isnan(self.adjusted) or self.adjusted >= LEVEL:
            return UNDECIDED
        return FAILS if math.isnan(self.p_for) or self.p_against < self.p_for else HOLDS


class Planned(NamedTuple):
    """What a plan measures of a system."""

    system: str
    kind: str
    convention: str
    tuned: bool


def findings(
    records: Iterable[Record],
    claims: Sequence[Claim],
    comparisons: Mapping[str, Mapping[str, str]],
    plan: Container[Planned] = (),
) -> list[Finding]:
    """Every claim in every family that has any measurement, corrected within its family."""
    kept = [one for one in records if one.kind not in ("data", "train", "tune")]
    ways = sorted({(one.convention, one.tuned) for one in kept}, key=lambda way: (way[1], way[0] != "ours"))
    found: list[Finding] = []
    for comparison, roles in comparisons.items():
        for convention, tuned in ways:
            family = Family(comparison, convention, tuned)
            group = [one for one in kept if (one.convention, one.tuned) == (convention, tuned)]
            kinds = {one.kind for one in group}
            plain = (convention, tuned) == ("ours", False)
            asked = [claim for claim in claims if claim.kind in kinds or plain]
            tested = [examine(claim, family, roles, group) for claim in asked]
            adjusted = holm([1.0 if math.isnan(one.p) and _planned(one, plan) else one.p for one in tested])
            corrected = zip(tested, adjusted, strict=True)
            found += [replace(one, adjusted=math.nan if math.isnan(one.p) else p) for one, p in corrected]
    return found


def _planned(one: Finding, plan: Container[Planned]) -> bool:
    """Whether both sides of a claim are to be measured."""
    arms = [one.claim.first, *([one.claim.second] if one.claim.second else [])]
    sides = zip(arms, one.systems, strict=False)
    return all(Planned(name, KINDS[arm.value], one.family.convention, one.family.tuned) in plan for arm, name in sides)


def examine(claim: Claim, family: Family, roles: Mapping[str, str], records: Sequence[Record]) -> Finding:
    """One claim, not yet corrected for the others."""
    arms = [claim.first, *([claim.second] if claim.second else [])]
    names = [roles.get(arm.system or "", "") for arm in arms]
    base = Finding(claim, family, (names[0], names[1] if len(names) > 1 else ""))
    for arm, name in zip(arms, names, strict=True):
        if not name:
            return replace(base, missing=f"no system stands for {arm.system}")
    try:
        tables = [_table(records, name, arm, roles.get("GIDD+") if claim.kind == "judge" else None)
                  for arm, name in zip(arms, names, strict=True)]  # fmt: skip
    except Twice as error:
        return replace(base, missing=str(error))
    for arm, name, table in zip(arms, names, tables, strict=True):
        if not table:
            return replace(base, missing=f"no {arm.value} of {name}")
    same = claim.same_weights or _of_one_run(names, records)
    trials = _trials(claim, tables, same)
    if not trials:
        return replace(base, missing=f"no {claim.first.value} of {names[0]} and {names[-1]} at a common budget")
    if claim.first.value == "gen_ppl" and claim.second is not None:
        trials = [replace(one, fair=_alike(one, names, records)) for one in trials]
    p_for, p_against = _combined(claim, trials)
    return replace(base, trials=tuple(trials), p_for=p_for, p_against=p_against)


def _of_one_run(names: Sequence[str], records: Sequence[Record]) -> bool:
    """Whether two systems have the same network for each seed: of one training, or of two that came to the same bits."""
    own = [one for one in records if one.system in names]
    if len({one.training for one in own}) == 1:
        return True
    runs = [{(one.seed, one.made.get("weights")) for one in own if one.system == name} for name in names]
    return all(found == runs[0] for found in runs) and not any(weights is None for _, weights in runs[0])


Table = dict[int, dict[int, float]]
"""Values by place (a budget, a count, 0 for neither), by seed."""


class Twice(Exception):
    """Two numbers for one thing, and nobody says which is meant."""


def _table(records: Sequence[Record], system: str, arm: Arm, against: str | None = None) -> Table:
    """The values of one side; refused where a run has two that differ at one place."""
    table: Table = {}
    for one in records:
        other_repair = "-repair-" in one.name and not one.name.endswith("-repair-0")  # the first one's is the paper's
        if one.kind != KINDS[arm.value] or one.system != system or other_repair:
            continue
        if against is not None and one.result.get("against") != against:
            continue
        value = value_of(arm.value, one.result)
        if value is None or not math.isfinite(value):
            continue
        if arm.value in LOGARITHMIC:
            if value <= 0:
                continue
            value = math.log(value)
        place = table.setdefault(place_of(one), {})
        if place.setdefault(one.seed, value) != value:
            at = f" at {place_of(one)}" if place_of(one) else ""
            raise Twice(f"{arm.value} of {system}, seed {one.seed}, was measured twice{at}, with different results")
    return table


def place_of(one: Record) -> int:
    """The budget or count of a measurement; 0 where it has none."""
    return int(one.settings.get("nfe") or one.settings.get("count") or 0)


def _trials(claim: Claim, tables: Sequence[Table], same_weights: bool) -> list[Trial]:
    places = sorted(set.intersection(*(set(table) for table in tables)))
    if claim.over == "few-many":
        if len(places) < 2:
            return []
        few, many = places[0], places[-1]
        values = [
            {seed: table[few][seed] - table[many][seed] for seed in table[few] if seed in table[many]}
            for table in tables
        ]
        return [_trial(claim, f"{few} less {many}", values, same_weights)]
    unit = {"recovery": "K = {}"}.get(claim.kind, "{} steps")
    return [
        _trial(claim, unit.format(place) if place else "", [table[place] for table in tables], same_weights)
        for place in places
    ]


def _trial(claim: Claim, place: str, values: Sequence[Mapping[int, float]], same_weights: bool) -> Trial:
    first = values[0]
    if claim.second is None:
        assert claim.than is not None
        a = list(first.values())
        b = [math.log(claim.than) if claim.first.value in LOGARITHMIC else claim.than] * len(a)
        return Trial(place, first, None, paired(a, b), sign_flips(a, b))
    second = values[1]
    if same_weights:  # two numbers of one run: paired
        shared = [seed for seed in first if seed in second]
        a, b = [first[seed] for seed in shared], [second[seed] for seed in shared]
        return Trial(place, first, second, paired(a, b), sign_flips(a, b))
    a, b = list(first.values()), list(second.values())
    return Trial(place, first, second, welch(a, b), permutation(a, b))


def _alike(trial: Trial, names: Sequence[str], records: Sequence[Record]) -> bool:
    """Whether at each of its budgets the texts of lower perplexity are about as varied as the others; else they repeat."""
    budgets = {int(word) for word in trial.place.split() if word.isdigit()}
    for budget in budgets:
        drawn = [one for one in records if one.kind == "generation" and place_of(one) == budget]
        texts = [[one.result for one in drawn if one.system == name] for name in names]
        (_, lower), (_, other) = sorted((_mean("gen_ppl", own), _mean("entropy", own)) for own in texts)
        if lower < other - FAR:
            return False
    return True


def _mean(name: str, results: Sequence[Mapping[str, Any]]) -> float:
    """Over runs, of logarithms where those are compared; NaN of nothing."""
    found = [value for one in results if (value := value_of(name, one)) is not None]
    if name in LOGARITHMIC:
        found = [math.log(value) for value in found if value > 0]
    return sum(found) / len(found) if found else math.nan


def _combined(claim: Claim, trials: Sequence[Trial]) -> tuple[float, float]:
    """(p that it holds at every place, p that it fails at some); NaN where no test could be made."""
    pairs = [_directed(claim, one) for one in trials]
    p_for = math.nan if any(math.isnan(p) for p, _ in pairs) else max(p for p, _ in pairs)
    against = [p for _, p in pairs if not math.isnan(p)]
    return p_for, min(1.0, len(trials) * min(against)) if against else math.nan


def _directed(claim: Claim, trial: Trial) -> tuple[float, float]:
    if not trial.fair:
        return math.nan, math.nan
    d = trial.difference
    if claim.expect == "close":
        inside = max(d.p_below(claim.margin), d.p_above(-claim.margin))
        return inside, min(1.0, 2 * min(d.p_above(claim.margin), d.p_below(-claim.margin)))
    below, above = d.p_below(), d.p_above()
    return (below, above) if claim.expect == "lower" else (above, below)
