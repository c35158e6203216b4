"""What the measurements say of each claim: holds, does not hold, undecided, or not measured.

A claim about every budget holds only if it is shown at each of them, so its p is the largest of theirs; it fails if the contrary
is shown at one of them, with p the smallest times their number. The claim's own p is twice the smaller of the two, and Holm's
rule corrects for the number of claims in a family: one comparison under one convention. What is planned counts there whether it has been
measured or not, so that what is missing makes nothing else true; nor can a claim hold of which a planned budget or run is missing, though
what is there may speak against it. Seeds are the unit throughout.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from scdd.evals.measure.seeds import Difference, holm, paired, permutation, sign_flips, welch
from scdd.reproduce.claims import ENTROPIES, KINDS, LOGARITHMIC, Claim
from scdd.reproduce.records import Record
from scdd.reproduce.sides import UNDONE, Fault, Planned, Side, Twice, expected, side_of

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
    places: tuple[int, ...]
    """Its budgets: one, or the fewest and the most."""
    first: Mapping[int, float]
    second: Mapping[int, float] | None
    difference: Difference
    exact: float
    """Two-sided p of the exact permutation test."""
    fair: bool = True
    """False where texts are too unlike for their perplexities to be compared."""
    checked: bool = True
    """Whether the entropies are recorded that tell so."""
    paired: bool = False
    """Whether values of one run were compared with each other."""
    faults: tuple[Fault, ...] = ()
    """What is planned there and not measured, or measured and no number."""


@dataclass(frozen=True)
class Finding:
    """A claim and what became of it."""

    claim: Claim
    family: Family
    systems: tuple[str, str]
    trials: tuple[Trial, ...] = ()
    missing: str = ""
    planned: bool = False
    """Whether the plan has what would test it, so that it counts among the claims of its family."""
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


def findings(
    records: Iterable[Record],
    claims: Sequence[Claim],
    comparisons: Mapping[str, Mapping[str, str]],
    plan: Collection[Planned] = (),
) -> list[Finding]:
    """Every claim in every family that has any measurement, corrected within its family.

    Without a plan what was measured counts as all that should be.
    """
    kept = [one for one in records if one.kind not in ("data", "train", "tune")]
    ways = sorted({(one.convention, one.tuned) for one in kept}, key=lambda way: (way[1], way[0] != "ours"))
    found: list[Finding] = []
    for comparison, roles in comparisons.items():
        for convention, tuned in ways:
            family = Family(comparison, convention, tuned)
            group = [one for one in kept if (one.convention, one.tuned) == (convention, tuned)]
            kinds = {one.kind for one in group}
            kinds |= {one.kind for one in plan if (one.convention, one.tuned) == (convention, tuned)}
            plain = (convention, tuned) == ("ours", False)
            asked = [claim for claim in claims if claim.kind in kinds or plain]
            tested = [examine(claim, family, roles, group, plan) for claim in asked]
            adjusted = holm([1.0 if math.isnan(one.p) and one.planned else one.p for one in tested])
            corrected = zip(tested, adjusted, strict=True)
            found += [replace(one, adjusted=math.nan if math.isnan(one.p) else p) for one, p in corrected]
    return found


def examine(
    claim: Claim, family: Family, roles: Mapping[str, str], records: Sequence[Record], plan: Collection[Planned] = ()
) -> Finding:
    """One claim, not yet corrected for the others."""
    arms = [claim.first, *([claim.second] if claim.second else [])]
    names = [roles.get(arm.system or "", "") for arm in arms]
    base = Finding(claim, family, (names[0], names[1] if len(names) > 1 else ""))
    for arm, name in zip(arms, names, strict=True):
        if not name:
            return replace(base, missing=f"no system stands for {arm.system}")
    against = roles.get("GIDD+", "") if claim.kind == "judge" else ""
    like = [Planned(name, KINDS[arm.value], family.convention, family.tuned, 0, 0, against)
            for arm, name in zip(arms, names, strict=True)]  # fmt: skip
    seeds = [expected(plan, one) for one in like]
    base = replace(base, planned=len(set.intersection(*map(set, seeds))) >= (2 if claim.over == "few-many" else 1))
    try:
        sides = [side_of(records, *each, against) for each in zip(names, arms, seeds, strict=True)]
    except Twice as error:
        return replace(base, missing=str(error))
    trials = _trials(claim, sides, claim.same_weights or _of_one_run(names, records))
    missing = _untestable(sides, trials)
    if missing:
        return replace(base, missing=missing)
    if claim.first.value in ENTROPIES and claim.second is not None:
        trials = [_guarded(claim, one, sides) for one in trials]
    p_for, p_against = _combined(claim, trials)
    return replace(base, trials=tuple(trials), p_for=p_for, p_against=p_against)


def _untestable(sides: Sequence[Side], trials: Sequence[Trial]) -> str:
    """Why there is no test at all; empty where there is one."""
    for side in sides:
        if side.empty:
            return f"no {side.name}"
    if not trials:
        names, common = " and ".join(side.name for side in sides), set.intersection(*(side.places for side in sides))
        return f"{names} at one budget alone ({common.pop()})" if common else f"no {names} at a common budget"
    faults = [fault for one in trials for fault in one.faults]
    if all(math.isnan(one.difference.value) for one in trials) and all(fault.why == UNDONE for fault in faults):
        return "; ".join(dict.fromkeys(map(told, faults)))
    return ""


def told(fault: Fault) -> str:
    """A fault in words."""
    places = ", ".join(str(place) for place in fault.places if place)
    seeds = ", ".join(map(str, fault.seeds))
    at = f" at {places}" if places else ""
    return f"{fault.what}{at}{f', seed {seeds}' if seeds else ''}: {fault.why}"


def _of_one_run(names: Sequence[str], records: Sequence[Record]) -> bool:
    """Whether two systems have the same network for each seed: of one training, or of two that came to the same bits."""
    own = [one for one in records if one.system in names]
    if len({one.training for one in own}) == 1:
        return True
    runs = [{(one.seed, one.made.get("weights")) for one in own if one.system == name} for name in names]
    return all(found == runs[0] for found in runs) and not any(weights is None for _, weights in runs[0])


def _trials(claim: Claim, sides: Sequence[Side], same_weights: bool) -> list[Trial]:
    """A test for each place that both sides have, or should have."""
    places = sorted(set.intersection(*(side.places for side in sides)))
    if claim.over == "few-many":
        if len(places) < 2:
            return []
        few, many = places[0], places[-1]
        values = [{seed: at - side.at(many)[seed] for seed, at in side.at(few).items() if seed in side.at(many)}
                  for side in sides]  # fmt: skip
        return [_trial(claim, f"{few} less {many}", sides, (few, many), values, same_weights)]
    unit = {"recovery": "K = {}"}.get(claim.kind, "{} steps")
    return [
        _trial(claim, unit.format(at) if at else "", sides, (at,), [side.at(at) for side in sides], same_weights)
        for at in places
    ]


def _trial(
    claim: Claim,
    place: str,
    sides: Sequence[Side],
    places: tuple[int, ...],
    values: Sequence[Mapping[int, float]],
    same_weights: bool,
) -> Trial:
    first, second = values[0], values[1] if len(values) > 1 else None
    faults = tuple(fault for side in sides for at in places for fault in side.faults(at))
    if second is None:
        assert claim.than is not None
        a = list(first.values())
        b = [math.log(claim.than) if claim.first.value in LOGARITHMIC else claim.than] * len(a)
    elif same_weights:  # two numbers of one run: paired
        shared = [seed for seed in first if seed in second]
        a, b = [first[seed] for seed in shared], [second[seed] for seed in shared]
    else:
        a, b = list(first.values()), list(second.values())
        return Trial(place, places, first, second, welch(a, b), permutation(a, b), faults=faults)
    same = second is not None
    return Trial(place, places, first, second, paired(a, b), sign_flips(a, b), paired=same, faults=faults)


def _guarded(claim: Claim, trial: Trial, sides: Sequence[Side]) -> Trial:
    """With what entropies say of it: generated texts always have one, so that without it nothing can be said of them."""
    alike = _alike(trial, sides)
    if alike is None:
        return replace(trial, checked=False, fair=claim.first.value != "gen_ppl")
    return replace(trial, fair=alike)


def _alike(trial: Trial, sides: Sequence[Side]) -> bool | None:
    """Whether at each of its budgets the texts of lower perplexity are about as varied as the others; else they repeat.

    None where an entropy is not recorded.
    """
    for place in trial.places:
        pairs = []
        for side in sides:
            entropies = [each for each in side.entropies.get(place, ()) if each is not None]
            if len(entropies) < len(side.entropies.get(place, ())):
                return None
            if side.at(place):
                pairs.append((_mean(side.at(place).values()), _mean(entropies)))
        (_, lower), (_, other) = min(pairs, default=(0.0, 0.0)), max(pairs, default=(0.0, 0.0))
        if lower < other - FAR:
            return False
    return True


def _mean(values: Collection[float]) -> float:
    return sum(values) / len(values)


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
        p_for, p_against = inside, min(1.0, 2 * min(d.p_above(claim.margin), d.p_below(-claim.margin)))
    else:
        below, above = d.p_below(), d.p_above()
        p_for, p_against = (below, above) if claim.expect == "lower" else (above, below)
    # of runs that are still to come nobody knows that they would agree
    return math.nan if trial.faults else p_for, p_against
