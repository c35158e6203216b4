"""Tables of made records: unlike things stand apart, and are called what they are."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from scdd.reproduce import tables
from scdd.reproduce.checkout import commit
from scdd.reproduce.load import load_claims
from scdd.reproduce.records import Record
from scdd.reproduce.report import _claims, _provenance, _samples
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


def test_provenance_is_told_by_commit() -> None:
    """Numbers of one version and two commits are of two kinds of code; old records have none."""
    made = {"device": "cpu", "versions": {"scdd": "0.1.0"}}
    commits = [{}, {"commit": "aa"}, {"commit": "aa"}, {"commit": "bb-dirty"}]
    told = "\n".join(_provenance([Record({"kind": "likelihood"}, {}, {**made, **one}) for one in commits]))
    assert "- 1 parts on cpu; scdd 0.1.0\n" in told
    assert "- 2 parts on cpu; scdd 0.1.0, commit aa\n" in told
    assert "- 1 parts on cpu; scdd 0.1.0, commit bb-dirty\n" in told


def test_the_commit_is_that_of_the_checkout_that_holds_the_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def git(*words: str) -> str:
        names = ("-c", "user.name=a", "-c", "user.email=a@b.c")
        return subprocess.run(["git", *names, *words], cwd=tmp_path, capture_output=True, text=True, check=True).stdout

    own, other = tmp_path / "own", tmp_path / "installed"
    for folder in (own, other):
        folder.mkdir()
        (folder / "code.py").write_text("1\n")
    git("init", "-q")
    git("add", "own")
    git("commit", "-q", "-m", "one")
    head = git("rev-parse", "HEAD").strip()
    assert commit(own) == head
    assert commit(other) is None, "not tracked: of somebody else's checkout"
    commit.cache_clear()
    (own / "code.py").write_text("2\n")
    assert commit(own) == f"{head}-dirty"
    commit.cache_clear()
    monkeypatch.setenv("PATH", "")
    assert commit(own) is None, "no git, and no failure"
    commit.cache_clear()


def test_notes_of_claims_are_shown() -> None:
    [claim] = [one for one in load_claims() if one.name == "noise-costs-likelihood"]
    made = [record("likelihood", s, i, 0, {"nats": 3.0 + i / 10}, convention="authors") for s in "ab" for i in range(2)]
    shown = "\n".join(_claims(findings(made, [claim], {"x": {"MDLM": "b", "SCDD": "a"}})))
    assert claim.note in shown


def test_means_say_how_many_runs_came_to_no_number() -> None:
    assert tables.over_seeds([2.0, float("nan"), 2.0]) == "2.000 ± 0 (1 of 3 not finite)"
    assert tables.over_seeds([float("inf")]) == "– (1 of 1 not finite)"
    assert tables.over_seeds([2.0, None]) == "2.000"
