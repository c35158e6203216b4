"""`scdd reproduce toy` from end to end: every kind of part, and a report that says no more than was shown."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from scdd.cli.main import main
from scdd.evals.report.tables import with_error
from scdd.reproduce.checkout import commit
from scdd.reproduce.load import load_claims, load_scale
from scdd.reproduce.records import Records
from scdd.reproduce.verdicts import FAILS, HOLDS, LEVEL, UNDECIDED, findings
from tests.evals.test_judge import Model, server

pytest.importorskip("scipy")
pytest.importorskip("openai")
judge = server  # a fixture


@pytest.mark.dist
@pytest.mark.timeout(300)  # a quarter of a minute on a quiet machine of two cores; those of CI are shared
def test_toy(judge: tuple[Model, str], tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    command = ["reproduce", "toy", "--out", str(out), "--llm", "local", "--base-url", judge[1]]
    assert main([*command, "--dry-run"]) == 0
    plan = capfd.readouterr().out
    assert "train/prism/seed-1" in plan
    assert "core-hours" in plan
    assert "24 questions to the LLM judge" in plan
    assert not out.exists()
    assert main(command) == 0
    told = capfd.readouterr()
    assert "failed" not in told.err
    assert "left" not in told.err
    records = Records(out).read()
    kinds = {"data", "train", "tune", "likelihood", "generation", "correction", "recovery", "zero-shot", "judge"}
    assert {one.kind for one in records.values()} == kinds
    assert {one.seed for one in records.values() if one.kind == "likelihood"} == {0, 1}
    assert {one.convention for one in records.values() if one.kind == "recovery"} == {"ours", "authors"}
    assert {one.made.get("commit") for one in records.values()} == {commit()}
    asked = len(judge[0].seen)
    assert asked == 2 * 12, "two seeds, four texts, two grades and one winner each"

    text, page = ((out / f"report.{kind}").read_text() for kind in ("md", "html"))
    for heading in (
        "Likelihood",
        "Generation by steps",
        "Self-correction",
        "Recovery with damage",
        "Zero-shot",
        "LLM as judge",
        "Tuning",
    ):
        assert f"\n## {heading}\n" in text
    for way in ("convention ours", "convention authors", "convention ours, tuned"):
        assert f"Generative perplexity by network evaluations: {way}\n" in text
    assert "## What is missing" in text
    assert "no system stands for SCDD peak 0.75" in text
    assert not re.search(r'(src|href)="https?:', page), "it asks for nothing from outside"
    nats = [one.result["nats"] for one in records.values() if one.name.startswith("measure/likelihood/GIDD+/")]
    spread = abs(nats[0] - nats[1]) / 2
    assert f"| GIDD+ | {with_error(sum(nats) / 2, spread)} |" in text

    found = findings(records.values(), load_claims(), load_scale("toy").comparisons)
    for one in found:
        if one.verdict in (HOLDS, FAILS):
            assert one.adjusted < LEVEL, "nothing is said that was not shown"
    assert sum(one.verdict == UNDECIDED for one in found) > len(found) / 3

    made = {path: path.stat().st_mtime_ns for path in out.rglob("*.json")}
    assert main(command) == 0
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*.json")} == made, "nothing was done again"
    assert len(judge[0].seen) == asked
    assert (out / "report.md").read_text() == text
    published = tmp_path / "published"
    published.mkdir()
    shutil.copy(out / "records.jsonl", published)
    assert main(["reproduce", "toy", "--out", str(published), "--report", "--llm", "any"]) == 0
    assert (published / "report.md").read_text() == text, "the report is made of the published numbers alone"
    lines = [json.loads(line) for line in (out / "records.jsonl").read_text().splitlines()]
    assert len(lines) == len(records)
