"""Tables of made records: unlike things stand apart, and are called what they are."""

from __future__ import annotations

from typing import Any

from scdd.reproduce import tables
from scdd.reproduce.load import load_claims
from scdd.reproduce.report import _claims, _samples
from scdd.reproduce.verdicts import findings
from tests.reproduce.test_verdicts import record


def likelihood(convention: str) -> str:
    rows = [
        record("likelihood", system, 0, 0, {"nats": 3.0, "ppl": 20.0, "text": "t"}, convention=convention)
        for system in "ab"
    ]
    return "\n".join(one.markdown() for one in tables.likelihood_tables(rows, f"convention {convention}"))


def test_what_the_authors_report_is_not_called_a_bound() -> None:
    assert "Likelihood: bounds, convention ours" in likelihood("ours")
    theirs = likelihood("authors")
    assert "Likelihood: as reported, convention authors" in theirs
    assert "no bounds" in theirs


def judged(model: str, rate: float) -> Any:
    result = {"against": "b", "model": model, "wins": {"rate": rate, "ties": 0}}
    return record("judge", "a", 0, 32, result, convention="authors")


def test_judges_are_not_averaged_and_their_convention_is_named() -> None:
    [table] = tables.BY_KIND["judge"]([judged("one", 0.5), judged("two", 0.75)], "convention authors")
    shown = table.markdown()
    assert "LLM as judge: convention authors" in shown
    assert "| one | 50" in shown
    assert "| two | 75" in shown


def test_a_text_says_how_many_evaluations_it_took() -> None:
    result = {"ppl": 9.0, "sample": "text", "nfe": {"value": 23.25}}
    assert "### a, 23.25 evaluations" in "\n".join(_samples([record("generation", "a", 0, 2, result)]))


def test_notes_of_claims_are_shown() -> None:
    [claim] = [one for one in load_claims() if one.name == "noise-costs-likelihood"]
    made = [record("likelihood", s, i, 0, {"nats": 3.0 + i / 10}, convention="authors") for s in "ab" for i in range(2)]
    shown = "\n".join(_claims(findings(made, [claim], {"x": {"MDLM": "b", "SCDD": "a"}})))
    assert claim.note in shown
