"""docs/results.md cannot rot: every number below its line is what its measurements say today."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from types import ModuleType

import pytest

from scdd.cli.main import main
from scdd.evals.report.sections import gather
from scdd.reproduce.expand import all_parts
from scdd.reproduce.load import load_claims, load_scale
from scdd.reproduce.records import Records
from scdd.reproduce.sides import plan_of
from scdd.reproduce.verdicts import HOLDS, UNDECIDED, findings
from tests import shown
from tests.docs import pages

ROOT = Path(__file__).parents[1]
SMALL = ROOT / "docs" / "results" / "small"


@pytest.fixture(scope="module")
def results() -> ModuleType:
    return pages.tool("results")


def test_the_page_is_what_the_measurements_say(results: ModuleType) -> None:
    written = results.PAGE.read_text(encoding="utf-8").split(results.LINE)
    assert len(written) == 2
    on_the_page, measured = (shown.tables(text) for text in (written[1], results.report()))
    assert len(measured) > 5
    assert on_the_page == measured, "run python tools/results.py"


def test_every_system_has_every_budget(results: ModuleType) -> None:
    found = {(c.label, c.settings["nfe"]) for c in gather(results.RUNS) if c.kind == "generation"}
    systems = "MDLM", "ReMDM-cap", "ReMDM-conf", "P2-Self", "GIDD+", "SCDD on GIDD+", "SCDD", "SCDD greedy"
    assert found >= {(system, nfe) for system in systems for nfe in results.BUDGETS}


@pytest.mark.parametrize("where", ["results.md above its line", "README.md"])
def test_numbers_that_are_told_were_measured(results: ModuleType, where: str) -> None:
    head, below = results.PAGE.read_text(encoding="utf-8").split(results.LINE)
    if where == "README.md":
        head = (ROOT / where).read_text(encoding="utf-8").split("**Compare.**")[1].split("**Measure.**")[0]
    said = set(re.findall(r"\d+\.?\d* ± \d+\.?\d*", head))
    assert len(said) > 10, "claims are told with their numbers"
    measured = below + (SMALL / "report.md").read_text(encoding="utf-8")
    assert {number for number in said if number not in measured} == set()


def test_the_small_scales_table_is_its_reports(results: ModuleType) -> None:
    """Row by row, column by column."""
    systems = (
        "SCDD elbo 0.2",
        "SCDD elbo 0.1",
        "SCDD gidd+ 0.2",
        "GIDD+ 0.2",
        "SCDD scdd+ 0.2",
        "MDLM elbo",
        "MDLM gidd+",
    )
    report, generated = (
        (SMALL / "report.md").read_text(encoding="utf-8"),
        "Generative perplexity by network evaluations",
    )
    columns = [("Likelihood: bounds, convention ours", "PPL")]
    columns += [(f"{generated}: convention {who}", nfe) for who in ("ours", "authors") for nfe in ("32", "128")]

    def cell(heading: str, column: str, system: str) -> str:
        lines = report.split(f"### {heading}\n\n")[1].split("\n\n")[0].splitlines()
        names, *rows = ([each.strip() for each in line.strip("|").split("|")] for line in lines if line.startswith("|"))
        return next((row for row in rows if row[0] == system), ["–"] * len(names))[names.index(column)]

    said = results.PAGE.read_text(encoding="utf-8").split("| loss, process |")[1].split("\n\n")[0].splitlines()[2:]
    found = [[each.strip() for each in line.strip("|").split("|")][1:] for line in said]
    assert found == [[cell(*column, system) for column in columns] for system in systems]


def test_the_verdicts_are_the_reports() -> None:
    """All of them, on the page as in the report that the records make."""
    page, report = (
        (SMALL.parents[1] / name).read_text(encoding="utf-8") for name in ("results.md", "results/small/report.md")
    )
    table = report.split("### All verdicts\n\n")[1].split("\n\n")[0]
    assert len(table.splitlines()) > 15
    assert table in page, "copy the table of all verdicts from the report to the page"


def test_the_small_scales_report_is_made_of_its_published_numbers(tmp_path: Path) -> None:
    """The command that the page names, on the records alone."""
    shutil.copy(SMALL / "records.jsonl", tmp_path)
    assert main(["reproduce", "small", "--out", str(tmp_path), "--report"]) == 0
    for name in ("report.md", "records.jsonl"):
        assert (tmp_path / name).read_text(encoding="utf-8") == (SMALL / name).read_text(encoding="utf-8")


def test_a_number_that_is_missing_makes_no_claim_true(tmp_path: Path) -> None:
    """Without MDLM's runs at 1,024 evaluations, which vary most, “below MDLM at every number of steps” would look shown."""
    lines = (SMALL / "records.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    kept = [line for line in lines if not re.search(r"generation/MDLM gidd\+/seed-\d/ours/nfe-1024", line)]
    assert len(kept) == len(lines) - 3
    (tmp_path / "records.jsonl").write_text("".join(kept), encoding="utf-8")
    assert main(["reproduce", "small", "--out", str(tmp_path), "--report"]) == 0
    family = (tmp_path / "report.md").read_text(encoding="utf-8").split("### SCDD's own weights; convention ours\n")[1]
    row = next(line for line in family.splitlines() if "lower than MDLM's at every number" in line)
    assert row.endswith("| undecided: gen_ppl of MDLM gidd+ at 1024: planned, not measured |")
    assert "8 less 128" not in family.split("###")[0]


def test_what_is_said_of_leaving_out_a_budget_is_so() -> None:
    """“Below MDLM at every number of steps” in ours, as it would be without 1,024 evaluations."""
    scale, page = load_scale("small"), (SMALL.parents[1] / "results.md").read_text(encoding="utf-8")
    plan = {one for one in plan_of(all_parts(scale, SMALL)) if one.place != 1024}
    records = [one for one in Records(SMALL).read().values() if one.settings.get("nfe") != 1024]
    found = findings(records, load_claims(), scale.comparisons, plan)
    said = {one.family.comparison: one for one in found
            if one.claim.name == "better-than-mdlm" and one.family[1:] == ("ours", False)}  # fmt: skip
    plus, own = said["the same loss weights"], said["SCDD's own weights"]
    assert (plus.verdict, own.verdict) == (UNDECIDED, HOLDS)
    assert f"without that budget it would be undecided as well (p {plus.p:.3f}, {plus.adjusted:.3f} corrected)" in page
    assert f"without that budget the claim would hold ({own.adjusted:.3f} corrected)" in page


def test_what_is_said_of_tuning_is_so() -> None:
    """Who was given which grid, and whose η is at the edge of what was tried."""
    tuned = [one for one in Records(SMALL).read().values() if one.kind == "tune"]
    grids = {one.system: one.result["chosen"]["grid"] for one in tuned}
    noisy = {name for name in grids if name.startswith(("SCDD", "GIDD+"))}
    assert {name for name, grid in grids.items() if grid == "quadratic"} == {*noisy, "MDLM gidd+"}
    etas = {one.system: (one.result["chosen"]["eta"], max(one.settings["own"]["eta"]))
            for one in tuned if one.system.startswith("ReMDM") and "eta" in one.settings["own"]}  # fmt: skip
    assert len(etas) == 3
    assert {*etas.values()} == {(0.04, 0.04)}


def test_runs_were_of_one_budget(results: ModuleType) -> None:
    logs = [(run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()[-1] for run in results.RUNS]
    assert {re.search(r'"step": (\d+)', line)[1] for line in logs} == {"10106"}  # type: ignore[index]
