"""Verdicts on made records, whose truth is known: what is shown, what is not, and how often chance is taken for a result."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from scdd.reproduce.claims import KINDS, Arm, Claim, value_of
from scdd.reproduce.load import load_claims
from scdd.reproduce.records import Record
from scdd.reproduce.verdicts import FAILS, HOLDS, UNDECIDED, UNMEASURED, Planned, findings

pytest.importorskip("scipy")
ROLES = {"as in the paper": {"SCDD": "a", "MDLM": "b"}}


def record(kind: str, system: str, seed: int, place: int, result: Mapping[str, Any], **more: Any) -> Record:
    settings = {"count": place} if kind == "recovery" else {"nfe": place}
    about = {
        "convention": "ours",
        "tuned": False,
        "training": system,
        "id": f"{system} {seed} {place}",
        "name": "",
        **more,
    }
    made = {"weights": about.pop("weights", f"{about['training']} {seed}")}
    return Record({"kind": kind, "system": system, "seed": seed, "settings": settings, **about}, result, made)


def drawn(system: str, seed: int, nfe: int, ppl: float, entropy: float = 5.0, **more: Any) -> Record:
    result = {"ppl": ppl, "diversity": {"entropy": {"value": entropy}}}
    return record("generation", system, seed, nfe, result, **more)


def better(**more: Any) -> Claim:
    arms = {"first": Arm(system="SCDD", value="gen_ppl"), "second": Arm(system="MDLM", value="gen_ppl")}
    return Claim(**{"name": "better", "says": "a is better", "where": "here", "expect": "lower", **arms, **more})


def told(records: Sequence[Record], *claims: Claim) -> list[str]:
    return [one.verdict for one in findings(records, claims, ROLES)]


def runs(ratios: Sequence[float], spread: float = 0.01, seeds: int = 3) -> list[Record]:
    """b has 100 everywhere and a has these times as much, each with a little spread over seeds."""
    wobble = [1 + spread * (i - (seeds - 1) / 2) for i in range(seeds)]
    made = []
    for turn, (budget, ratio) in enumerate(zip((8, 32, 128), ratios, strict=True)):
        made += [drawn("a", (i + turn) % seeds, budget, 100 * ratio * w) for i, w in enumerate(wobble)]
        made += [drawn("b", i, budget, 100 * w) for i, w in enumerate(reversed(wobble))]
    return made


def test_every_budget_must_show_it() -> None:
    assert told(runs([0.7, 0.7, 0.7]), better()) == [HOLDS]
    assert told(runs([0.7, 0.7, 1.0]), better()) == [UNDECIDED], "one budget without a difference"
    assert told(runs([0.7, 0.7, 1.3]), better()) == [FAILS], "the contrary at one budget"
    assert told(runs([1.3, 1.3, 1.3]), better(expect="higher")) == [HOLDS]
    assert told(runs([0.7, 0.7, 0.7], spread=0.5), better()) == [UNDECIDED], "too much spread"
    assert told(runs([0.7, 0.7, 0.7], seeds=1), better()) == [UNDECIDED], "one run has no spread"
    assert told(runs([0.7, 0.7, 0.7], spread=0.0), better()) == [UNDECIDED], "nor have equal ones"


def test_close_means_shown_to_be_close() -> None:
    near = better(expect="close", margin=0.2)
    assert told(runs([1.02, 0.98, 1.0]), near) == [HOLDS]
    assert told(runs([1.02, 0.98, 1.5]), near) == [FAILS]
    assert told(runs([1.02, 0.98, 1.0], spread=0.5), near) == [UNDECIDED], "no difference seen is no equality shown"


def test_few_against_many() -> None:
    trend = better(over="few-many")
    [one] = findings(runs([0.5, 0.7, 0.9]), [trend], ROLES)
    assert one.verdict == HOLDS
    assert one.trials[0].difference.value == pytest.approx(math.log(0.5 / 0.9), abs=1e-3)
    assert told(runs([0.9, 0.7, 0.5]), trend) == [FAILS]


def test_repetition_is_no_quality() -> None:
    poor = [drawn("a", i, 8, 10.0 + i, entropy=2.0) for i in range(3)] + [drawn("b", i, 8, 100.0 + i) for i in range(3)]
    [one] = findings(poor, [better()], ROLES)
    assert one.verdict == UNDECIDED
    assert not one.trials[0].fair
    varied = [drawn("a", i, 8, 10.0 + i) for i in range(3)] + [
        drawn("b", i, 8, 100.0 + i, entropy=2.0) for i in range(3)
    ]
    assert told(varied, better()) == [HOLDS], "the worse ones may repeat themselves"


def test_a_trend_is_no_quality_either_where_one_end_repeats_itself() -> None:
    """a gains by steps, but only by repetition at the most of them: the mean over both ends would not show it."""
    helps = better(over="few-many", expect="higher")
    made = [drawn("a", i, 8, 100.0 + i) for i in range(3)] + [
        drawn("a", i, 128, 10.0 + 0.2 * i, entropy=4.2) for i in range(3)
    ]
    made += [drawn("b", i, n, 100.0 + (i + n) % 3) for i in range(3) for n in (8, 128)]
    [one] = findings(made, [helps], ROLES)
    assert (one.verdict, one.trials[0].fair) == (UNDECIDED, False)
    varied = [Record(one.part, {**one.result, "diversity": {"entropy": {"value": 5.0}}}, one.made) for one in made]
    assert told(varied, helps) == [HOLDS]


def test_families_do_not_mix() -> None:
    """Other conventions and tuned systems are claims of their own; what is lacking is named."""
    theirs = [
        Record({**one.part, "convention": "authors"}, {**one.result, "ppl": 10_000 / one.result["ppl"]}, {})
        for one in runs([0.7, 0.7, 0.7])
    ]
    likelihood = Claim(
        name="nelbo", says="b is likelier", where="there", expect="lower", over="any",
        first=Arm(system="MDLM", value="nelbo"), second=Arm(system="SCDD", value="nelbo"),
    )  # fmt: skip
    found = findings([*runs([0.7, 0.7, 0.7]), *theirs], [better(), likelihood], ROLES)
    assert [(one.family.convention, one.verdict) for one in found] == [
        ("ours", HOLDS),
        ("ours", UNMEASURED),
        ("authors", FAILS),
    ]
    assert found[1].missing == "no nelbo of b"


def test_what_is_planned_counts_before_it_is_measured() -> None:
    """A measurement that is missing makes no other claim true."""
    corrects = Arm(system="SCDD", value="correction_rate"), Arm(system="MDLM", value="correction_rate")
    claims = [better(), better(name="other", first=corrects[0], second=corrects[1])]
    planned = {Planned(system, kind, "ours", False) for system in "ab" for kind in ("generation", "correction")}
    alone, other = (findings(runs([0.9, 0.9, 0.9]), claims, ROLES, plan) for plan in (set[Planned](), planned))
    assert [one.missing != "" for one in other] == [False, True]
    assert math.isnan(other[1].adjusted)
    assert alone[0].adjusted == alone[0].p
    assert other[0].adjusted == pytest.approx(2 * alone[0].p)
    elsewhere = {one._replace(convention="authors") for one in planned}
    assert findings(runs([0.9, 0.9, 0.9]), claims, ROLES, elsewhere)[0].adjusted == alone[0].p


def test_one_system_is_paired_by_its_seeds() -> None:
    helped = Claim(
        name="helps", says="it helps", where="there", expect="lower",
        first=Arm(system="SCDD", value="ppl_after"), second=Arm(system="SCDD", value="ppl_uncorrected"),
    )  # fmt: skip
    wild = [
        record("correction", "a", i, 8, {"ppl_after": {"ppl": p}, "ppl_uncorrected": {"ppl": 2 * p * (1 + i / 100)}})
        for i, p in enumerate((10.0, 100.0, 1000.0))
    ]
    [one] = findings(wild, [helped], ROLES)
    assert one.verdict == HOLDS, "runs differ a hundredfold, and every one is helped alike"
    assert one.trials[0].exact == 0.25


def test_two_samplers_of_one_training_are_paired() -> None:
    wild = [(10.0, 11.0), (100.0, 112.0), (1000.0, 1110.0)]
    made = [drawn(s, i, 8, pair[k], training="mdlm") for i, pair in enumerate(wild) for k, s in enumerate("ab")]
    assert told(made, better()) == [HOLDS]
    apart = [drawn(s, i, 8, pair[k]) for i, pair in enumerate(wild) for k, s in enumerate("ab")]
    assert told(apart, better()) == [UNDECIDED]
    alike = [drawn(s, i, 8, pair[k], weights=f"bits {i}") for i, pair in enumerate(wild) for k, s in enumerate("ab")]
    assert told(alike, better()) == [HOLDS], "two trainings of one loss, to the same weights"


def test_two_numbers_for_one_thing_decide_nothing() -> None:
    made = runs([0.7, 0.7, 0.7])
    assert told([*made, made[0]], better()) == [HOLDS], "the same number twice is one"
    [one] = findings([*made, drawn("a", 0, 32, 5.0)], [better()], ROLES)
    assert (one.verdict, one.missing) == (
        UNMEASURED,
        "gen_ppl of a, seed 0, was measured twice at 32, with different results",
    )


def test_chance_is_seldom_taken_for_a_result() -> None:
    """Where nothing differs, at most one family in twenty has any verdict but undecided."""
    rng, rounds, wrong = np.random.default_rng(2), 200, 0
    varied = {"first": Arm(system="SCDD", value="entropy"), "second": Arm(system="MDLM", value="entropy")}
    claims = [better(), better(over="few-many"), better(**varied)]
    for _ in range(rounds):
        made = [
            drawn(s, i, n, float(np.exp(rng.normal())), 5 + 0.1 * rng.normal())
            for s in "ab" for i in range(3) for n in (8, 32)
        ]  # fmt: skip
        wrong += any(verdict != UNDECIDED for verdict in told(made, *claims))
    assert wrong <= 0.05 * rounds + 3 * math.sqrt(0.05 * 0.95 * rounds)


def test_the_papers_claims_are_read_and_have_their_values() -> None:
    claims = load_claims()
    assert len({claim.name for claim in claims}) == len(claims) > 15
    rate = {"value": 0.5}
    result = {
        **{
            "nats": 3.0,
            "ppl": 20.0,
            "diversity": {"entropy": {"value": 5.0}},
            "rate": 0.7,
            "excess": 0.1,
            "rate_per_step": 0.1,
        },
        **{"cumulative": [0.0, 0.25, 1.0], "ppl_after": {"ppl": 5.0}, "ppl_uncorrected": {"ppl": 6.0}, "touch": rate},
        **{"recovery": rate, "damage": {"value": 0.01}, "count": 20, "length": 220, "ppl_corrupted": {"ppl": 9.0}},
        **{"ppl_repaired": {"ppl": 8.0}, "tasks": {"x": {"acc": 0.2}, "y": {"acc": 0.4}}, "wins": {"rate": 0.6}},
    }
    values = {name: value_of(name, result) for name in KINDS}
    assert None not in values.values()
    assert values["mended"] == pytest.approx(0.5 * 20 - 0.01 * 200)
    assert values["early_share"] == 0.25
    assert values["accuracy"] == pytest.approx(0.3)
    assert value_of("gen_ppl", {}) is None
    assert value_of("win_rate", {"wins": {"rate": None}}) is None
