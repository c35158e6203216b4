"""One side of a claim: what a plan measures of a system, and the values that came out, by budget and seed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from scdd.reproduce.claims import ENTROPIES, KINDS, LOGARITHMIC, Arm, entropy_of, value_of
from scdd.reproduce.parts import Part
from scdd.reproduce.records import Record

UNDONE, NONE = "planned, not measured", "no number"


class Planned(NamedTuple):
    """A measurement that a plan has."""

    system: str
    kind: str
    convention: str
    tuned: bool
    place: int
    seed: int
    against: str = ""
    """Whom a judge compares it with."""


def plan_of(parts: Iterable[Part]) -> frozenset[Planned]:
    """The measurements of these parts that claims are about."""
    return frozenset(
        Planned(
            one.system, one.kind, one.convention, one.tuned, place_of(one), one.seed, one.settings.get("against", "")
        )
        for one in parts
        if _papers(one.name)
    )


def place_of(one: Record | Part) -> int:
    """The budget or count of a measurement; 0 where it has none."""
    return int(one.settings.get("nfe") or one.settings.get("count") or 0)


def _papers(name: str) -> bool:
    """Whether a recovery is the paper's, which is the first of its ways to repair; all else is."""
    return "-repair-" not in name or name.endswith("-repair-0")


class Fault(NamedTuple):
    """What keeps a test from showing that a claim holds."""

    what: str
    places: tuple[int, ...]
    seeds: tuple[int, ...]
    """None of them: all."""
    why: str


class Twice(Exception):
    """Two numbers for one thing, and nobody says which is meant."""


@dataclass(frozen=True)
class Side:
    """What is expected of a system, and what there is."""

    value: str
    system: str
    planned: Mapping[int, frozenset[int]]
    """Seeds by place (a budget, a count, 0 for neither)."""
    values: Mapping[int, Mapping[int, float]]
    """By place, by seed; logarithms where these are compared."""
    spoilt: Mapping[int, Mapping[int, str]]
    """Measurements that came to no number, and why not: a run that diverged is no run less."""
    entropies: Mapping[int, Sequence[float | None]]
    """Of the texts that a perplexity is of, one a run; None where it was not recorded."""

    @property
    def name(self) -> str:
        """For messages."""
        return f"{self.value} of {self.system}"

    @property
    def places(self) -> set[int]:
        """Wherever something is planned or measured."""
        return {*self.planned, *self.values, *self.spoilt}

    @property
    def empty(self) -> bool:
        """Whether its measurements do not have this value at all."""
        return not self.values and all(why == NONE for spoilt in self.spoilt.values() for why in spoilt.values())

    def at(self, place: int) -> Mapping[int, float]:
        """The values there, by seed; none where one is spoilt, since the others are no fair sample then."""
        return {} if place in self.spoilt else self.values.get(place, {})

    def faults(self, place: int) -> list[Fault]:
        """What is planned there and not measured, or measured and no number."""
        known, spoilt = self.values.get(place, {}), self.spoilt.get(place, {})
        absent = sorted(self.planned.get(place, frozenset()) - {*known, *spoilt})
        found = [Fault(self.name, (place,), (seed,), why) for seed, why in sorted(spoilt.items())]
        if absent:
            found.append(Fault(self.name, (place,), tuple(absent) if known or spoilt else (), UNDONE))
        return found


def expected(plan: Iterable[Planned], like: Planned) -> dict[int, frozenset[int]]:
    """The seeds that a plan has for each place, of measurements that are like this one but for place and seed."""
    found: dict[int, set[int]] = {}
    for one in plan:
        if one._replace(place=like.place, seed=like.seed) == like:
            found.setdefault(one.place, set()).add(one.seed)
    return {place: frozenset(seeds) for place, seeds in found.items()}


def side_of(
    records: Sequence[Record], system: str, arm: Arm, planned: Mapping[int, frozenset[int]], against: str = ""
) -> Side:
    """One side of a claim; refused where a run has two numbers that differ at one place."""
    values: dict[int, dict[int, float]] = {}
    spoilt: dict[int, dict[int, str]] = {}
    entropies: dict[int, list[float | None]] = {}
    for one in records:
        if one.kind != KINDS[arm.value] or one.system != system or not _papers(one.name):
            continue
        if against and one.result.get("against") != against:
            continue
        value = value_of(arm.value, one.result)
        if value is None or not math.isfinite(value) or (arm.value in LOGARITHMIC and value <= 0):
            why = NONE if value is None else "not positive" if math.isfinite(value) else "not finite"
            spoilt.setdefault(place_of(one), {})[one.seed] = why
            continue
        value = math.log(value) if arm.value in LOGARITHMIC else value
        if arm.value in ENTROPIES:
            entropies.setdefault(place_of(one), []).append(entropy_of(arm.value, one.result))
        if values.setdefault(place_of(one), {}).setdefault(one.seed, value) != value:
            at = f" at {place_of(one)}" if place_of(one) else ""
            raise Twice(f"{arm.value} of {system}, seed {one.seed}, was measured twice{at}, with different results")
    return Side(arm.value, system, planned, values, spoilt, entropies)
