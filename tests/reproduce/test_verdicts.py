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
from scdd.reproduce.report import _claims, _row
from scdd.reproduce.sides import Planned
from scdd.reproduce.verdicts import FAILS, HOLDS, UNDECIDED, UNMEASURED, Finding, findings

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


def plan(kind: str = "generation") -> set[Planned]:
    """What `runs` measures, or the same of another kind."""
    return {Planned(s, kind, "ours", False, n, seed) for s in "ab" for n in (8, 32, 128) for seed in range(3)}


def place(one: Record) -> int:
    return int(one.settings["nfe"])


def verdict(records: Sequence[Record], planned: set[Planned]) -> str:
    [one] = findings(records, [better()], ROLES, planned)
    return one.verdict


def cells(one: Finding) -> list[str]:
    """Its row of the report."""
    return [entry.text for entry in _row(one)]


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


def test_runs_that_do_not_differ_at_one_budget_are_named() -> None:
    """No spread is no certainty: counts coincide. The claim has no p then, where one against it would look like one of 1."""
    made = [one for one in runs([0.7, 0.7, 0.7]) if place(one) != 32]
    made += [drawn(s, i, 32, p) for s, p in (("a", 70.0), ("b", 100.0)) for i in range(3)]
    [one] = findings(made, [better()], ROLES)
    assert one.verdict == UNDECIDED
    assert cells(one)[-3:] == ["–", "–", "undecided: the runs do not differ at 32 steps, which is no spread to test by"]
    worse = [Record(one.part, {**one.result, "ppl": 1e4 / one.result["ppl"]}, one.made) for one in made]
    [one] = findings(worse, [better()], ROLES)
    assert one.verdict == FAILS, "the contrary is shown at the other budgets"
    assert "–" not in cells(one)[-3:]


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


def test_texts_without_an_entropy_are_not_taken_for_varied() -> None:
    bare = [Record(one.part, {"ppl": one.result["ppl"]}, one.made) for one in runs([0.7, 0.7, 0.7])]
    [one] = findings(bare, [better()], ROLES)
    assert one.verdict == UNDECIDED
    assert "no entropy is recorded" in cells(one)[-1]
    assert "‡" not in "".join(cells(one))


def corrected(entropy: float | None) -> list[Record]:
    """Corrections that halve the perplexity, of texts with this entropy where the others have 5 nats."""
    known = {} if entropy is None else {"entropy_after": {"value": entropy}, "entropy_uncorrected": {"value": 5.0}}
    return [
        record(
            "correction", "a", i, 8, {"ppl_after": {"ppl": p}, "ppl_uncorrected": {"ppl": (2 + i / 50) * p}, **known}
        )
        for i, p in enumerate((10.0, 12.0, 14.0))
    ]


def test_corrections_are_no_quality_where_they_repeat() -> None:
    """Where entropies are recorded; elsewhere the report says that it was not checked."""
    arms = {"first": Arm(system="SCDD", value="ppl_after"), "second": Arm(system="SCDD", value="ppl_uncorrected")}
    helps, note = better(**arms), "no entropy of these texts is recorded"
    for entropy, expected, noted in ((5.0, HOLDS, False), (4.0, UNDECIDED, False), (None, HOLDS, True)):
        found = findings(corrected(entropy), [helps], ROLES)
        assert [one.verdict for one in found] == [expected]
        assert (note in "".join(_claims(found))) is noted


@pytest.mark.parametrize("value", [math.nan, math.inf, 0.0, None])
def test_a_run_that_came_to_no_number_is_not_a_run_less(value: float | None) -> None:
    """Two of three would show it; the third, which diverged, says that nothing is shown, and is named."""
    made = runs([0.7, 0.7, 0.7])
    spoilt = next(one for one in made if (one.system, one.seed, place(one)) == ("a", 1, 32))
    rest = [one for one in made if one is not spoilt]
    assert told(rest, better()) == [HOLDS]
    lost = Record(spoilt.part, {**spoilt.result, "ppl": value}, spoilt.made)
    [one] = findings([*rest, lost], [better()], ROLES)
    assert (one.verdict, math.isnan(one.p_for)) == (UNDECIDED, True)
    why = {0.0: "not positive", None: "no number"}.get(value, "not finite")
    assert f"gen_ppl of a at 32, seed 1: {why}" in cells(one)[-1]
    assert "– (32 steps)" in cells(one)[3], "what is left of it is no difference"
    every = [Record(one.part, {**one.result, "ppl": math.nan}, one.made) if one.system == "a" else one for one in made]
    assert told(every, better()) == [UNDECIDED], "measured, and nothing to be said"


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
    planned = plan("generation") | plan("correction")
    alone, other = (findings(runs([0.9, 0.9, 0.9]), claims, ROLES, each) for each in (set[Planned](), planned))
    assert [one.missing != "" for one in other] == [False, True]
    assert math.isnan(other[1].adjusted)
    assert alone[0].adjusted == alone[0].p
    assert other[0].adjusted == pytest.approx(2 * alone[0].p)
    elsewhere = {one._replace(convention="authors") for one in planned}
    assert findings(runs([0.9, 0.9, 0.9]), claims, ROLES, elsewhere)[0].adjusted == alone[0].p


def test_a_claim_does_not_hold_before_all_that_is_planned_is_there() -> None:
    """A budget or a run that is missing could have spoken against it; what is there still can."""
    made = runs([0.7, 0.7, 0.7])
    assert verdict(made, plan()) == HOLDS
    for lost, named in (
        ([one for one in made if (one.system, place(one)) == ("b", 128)], "gen_ppl of b at 128: planned, not measured"),
        (
            [one for one in made if (one.system, one.seed) == ("a", 1)],
            "gen_ppl of a at 8, 32, 128, seed 1: planned, not",
        ),
    ):
        rest = [one for one in made if one not in lost]
        [one] = findings(rest, [better()], ROLES, plan())
        assert (one.verdict, math.isnan(one.p_for)) == (UNDECIDED, True)
        assert named in cells(one)[-1]
    worse = [one for one in runs([0.7, 1.3, 0.7]) if (one.system, place(one)) != ("b", 128)]
    [one] = findings(worse, [better()], ROLES, plan())
    assert one.verdict == FAILS
    assert "gen_ppl of b at 128: planned, not measured" in cells(one)[-1]
    assert one.p_against == pytest.approx(3 * min(t.difference.p_above() for t in one.trials if t.first and t.second))


def test_a_trend_is_of_the_budgets_that_are_planned() -> None:
    """Without the most steps there is no trend, rather than one of fewer; and one budget is no trend to wait for."""
    trend = better(over="few-many")
    rest = [one for one in runs([0.5, 0.7, 0.9]) if (one.system, place(one)) != ("b", 128)]
    [one] = findings(rest, [trend], ROLES, plan())
    assert (one.verdict, one.missing) == (UNMEASURED, "gen_ppl of b at 128: planned, not measured")
    assert one.planned
    alone = [one for one in runs([0.9, 0.9, 0.9]) if place(one) == 8]
    level, single = findings(alone, [better(), trend], ROLES, {one for one in plan() if one.place == 8})
    assert single.missing == "gen_ppl of a and gen_ppl of b at one budget alone (8)"
    assert not single.planned
    assert level.adjusted == level.p, "what cannot be tested is no claim of the family"


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
    [one] = findings(made, [better()], ROLES)
    assert (one.verdict, cells(one)[4]) == (HOLDS, "3, paired")
    apart = [drawn(s, i, 8, pair[k]) for i, pair in enumerate(wild) for k, s in enumerate("ab")]
    [one] = findings(apart, [better()], ROLES)
    assert (one.verdict, cells(one)[4]) == (UNDECIDED, "3 and 3")
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
