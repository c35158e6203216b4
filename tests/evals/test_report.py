"""Reports that can be published: every number has a name of its own, a text, a system, and what made it."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from scdd.cli.main import main
from scdd.evals.measure.model import EvalModel
from scdd.evals.measure.store import Measurement, Store, read_measurements
from scdd.evals.measure.texts import split_name
from scdd.evals.report import plots, provenance
from scdd.evals.report.compare import by_budget, generation_table, likelihood_table
from scdd.evals.report.names import distinct_names, text_of
from scdd.evals.report.page import quoted
from scdd.evals.report.paper import paper_of
from scdd.evals.report.sections import gather
from scdd.evals.report.summaries import zero_shot_table
from scdd.evals.report.tables import Entry, Table, escaped
from tests import shown, tiny

VERSIONS = {"scdd": "1", "torch": "2"}
MADE = {"versions": VERSIONS, "device": "cpu", "seconds": 1.0, "date": "2026", "recipe": None, "paper": None}


def generated(label: str, nfe: int = 8, took: float | None = None, **asked: Any) -> Measurement:
    settings = {"model": {"weights": "w", "context": 40, "process": "SCDD(x)"}, "nfe": nfe, "num": 4, "seed": 0}
    filters = {"temperature": 1.0, "top_p": 0.9, "top_k": None}
    result = {
        **{"ppl": 9.0, "error": 1.0, "low": 8.0, "high": 10.0, "nats": [2.0], "tokens": [1.0], "judge": "j"},
        **{"nfe": {"value": nfe if took is None else took}, "length": 38, "sampler": "ancestral", "final": "x"},
        **{"filters": filters, "diversity": {"entropy": {"value": 1.0, "error": 0.1}}, "samples": ["a text"]},
    }
    return Measurement("generation", label, {**settings, "judge": "j", **asked}, result, dict(MADE))


def bound(label: str, nats: float, **asked: Any) -> Measurement:
    result = {"nats": nats, "error": 0.01, "ppl": 2.0, "ppl_error": 0.1, "ppl_spread": 0.2}
    result |= {"bits_per_byte": 1.0, "sequences": 3, "tokens": 9}
    settings = {"model": {"weights": label}, "text": "0123456789abcdef", **asked}
    return Measurement("likelihood", label, settings, result, dict(MADE))


LOOKS = {"steps": None, "looks": 2, "convention": "exact", "seed": 0}


def test_a_cell_keeps_its_names_beside_its_hash(tmp_path: Path, scdd: EvalModel) -> None:
    def never() -> dict[str, Any]:
        raise AssertionError("it is there")

    first = Store(tmp_path).measurement("kind", scdd, {"a": 1}, lambda: {"value": 1})
    assert first.path is not None
    plain = first.path.read_text()
    assert "text" not in json.loads(plain)["made"]
    store = Store(tmp_path)
    for label in ("one", "two"):
        found = store.measurement("kind", replace(scdd, label=label), {"a": 1}, never, "a text")
        assert (found.label, found.hash) == (label, first.hash)
    held = read_measurements(tmp_path)[0]
    assert (held.labels, held.made["text"]) == (["one", "two"], "a text"), "new names replace the old"
    assert [cell.label for cell in gather([tmp_path])] == ["one", "two"]
    kept = first.path.read_text()
    Store(tmp_path).measurement("kind", replace(scdd, label="two"), {"a": 1}, never, "a text")
    assert first.path.read_text() == kept
    Store(tmp_path).measurement("kind", scdd, {"a": 1}, never)
    assert read_measurements(tmp_path)[0].labels == [scdd.label]


def test_texts_have_names(tmp_path: Path) -> None:
    path = tmp_path / "a=b.txt"
    path.write_text("text")
    assert split_name(str(path)) == ("a=b.txt", str(path)), "a file that exists is no name"
    assert split_name("wiki valid=some/where.jsonl") == ("wiki valid", "some/where.jsonl")
    assert split_name("some/where.jsonl") == ("where.jsonl", "some/where.jsonl")
    assert split_name("hf:owner/name") == ("hf:owner/name", "hf:owner/name")
    assert text_of(bound("a", 1.0)) == "text 01234567"


def test_prepared_texts_are_named_by_what_is_held_out(tmp_path: Path) -> None:
    for name in ("train", "test"):
        (tmp_path / f"{name}.txt").write_text(tiny.TEXT * 30)
    folder = tmp_path / "shards"
    command = ["prepare", str(tmp_path / "train.txt"), "--valid", str(tmp_path / "test.txt"), "--out", str(folder)]
    assert main([*command, "--train-tokenizer", "300", "--workers", "1"]) == 0
    assert split_name(str(folder)) == ("shards (test.txt)", str(folder))


def test_no_two_numbers_share_a_name() -> None:
    cells = [generated("a"), generated("a", temperature=0.7), generated("a", 16), generated("b")]
    cells[1].result["filters"]["temperature"] = 0.7
    assert distinct_names(cells, lambda cell: cell.settings["nfe"]) == [
        "a, temperature 1",
        "a, temperature 0.7",
        "a, temperature 1",
        "b",
    ]
    assert {name: list(row) for name, row in by_budget(cells).items()} == {
        "a, temperature 1": [8, 16],
        "a, temperature 0.7": [8],
        "b": [8],
    }
    counts = by_budget([generated("a"), generated("a", num=99)])
    assert list(counts) == ["a, texts 4", "a, texts 99"]
    same = by_budget([generated("a"), generated("a", top_p=0.9)])
    assert len(same) == 2, "equal in effect, and still two cells"


def test_systems_of_the_same_weights_share_a_row() -> None:
    one, other = bound("mdlm", 1.0, **LOOKS), bound("scdd", 2.0, **LOOKS)
    exact = bound("ar", 0.5)
    table = likelihood_table({"mdlm": one, "remdm": one, "scdd": other, "ar": exact})
    assert [row[0].text for row in table.rows] == ["mdlm, remdm", "scdd", "ar"]
    assert [row[1].bold for row in table.rows] == [True, False, False], "an exact number is no bound"
    assert "text 01234567" in table.title
    assert any("3 rows, 9 tokens" in note for note in table.notes)


def test_ones_own_text_has_no_rival_in_the_paper() -> None:
    """A perplexity belongs to its text: the paper's stands beside its own recipes, or where its corpus is asked for."""

    def beside(recipe: str, corpus: str | None) -> tuple[str | None, str]:
        made = {**MADE, "paper": "SCDD (p_u=0.2)", "recipe": f"{{name: {recipe}, process: {{kind: scdd}}}}"}
        table = likelihood_table({"a": replace(bound("a", 1.0, **LOOKS), made=made)}, corpus)
        return table.rows[0][1].paper, table.notes[0]

    assert beside("mine", None)[0] is None
    assert "paper" not in beside("mine", None)[1]
    assert beside("owt-of-mine", None)[0] is None
    assert beside("mine", "OWT")[0] == beside("owt-scdd-0.2", None)[0] == "32.49"
    assert beside("lm1b-scdd-0.2", None)[0] == beside("mine", "LM1B")[0] != "32.49"
    assert beside("wikitext103-scdd-0.2", None)[0] is None


def test_unequal_evaluations_are_marked() -> None:
    table = generation_table({"ar": {8: generated("ar", took=39)}, "a": {8: generated("a")}})
    assert table.rows[0][1].text.endswith("†")
    assert not table.rows[1][1].text.endswith("†")
    assert any(note.startswith("† ar") and "(39)" in note for note in table.notes)
    assert any("4 texts of up to 38 tokens" in note and "judged by j" in note for note in table.notes)


def test_the_papers_number_stands_beside_the_papers_system_only() -> None:
    made = {**MADE, "paper": "SCDD (p_u=0.2)", "recipe": "process: {kind: scdd}"}
    plain = replace(generated("a"), made=made)
    assert paper_of(plain) == "SCDD (p_u=0.2)"
    said = {"grid": "uniform", "final": "ancestral", "top_p": 0.9, "top_k": None, "temperature": 1.0}
    assert paper_of(replace(generated("a", **said), made=made)) == "SCDD (p_u=0.2)", "also if it is said aloud"
    for asked in ({"final": "greedy"}, {"grid": "cosine"}, {"temperature": 0.9}, {"top_p": 1.0}):
        assert paper_of(replace(generated("a", **asked), made=made)) is None
    assert paper_of(replace(plain, made={**made, "recipe": "process: {kind: gidd}"})) is None


def test_recipes_are_told_by_their_differences() -> None:
    recipe = "name: a\nmodel: {depth: 2}\ntraining: {steps: 5, betas: [0.9, 0.99]}\n"
    others = [recipe, recipe.replace("depth: 2", "depth: 3")]
    labels = ("one", "two", "three", "four", "five")
    cells = [replace(generated(label), made={**MADE, "recipe": others[0]}) for label in labels]
    cells.append(replace(generated("deep"), made={**MADE, "recipe": others[1]}))
    found = provenance.recipes(cells)
    assert list(found) == ["one, two, three, 2 more", "deep"]
    table = provenance.changed(found)
    assert table is not None
    assert [[entry.text for entry in row] for row in table.rows] == [["model.depth", "2", "3"]]
    assert provenance.changed({"one": recipe}) is None
    assert list(provenance.environments(cells).values()) == ["A"]
    elsewhere = replace(cells[0], made={**cells[0].made, "device": "gpu"})
    assert list(provenance.environments([*cells, elsewhere]).values()) == ["A", "B"]


def test_series_can_be_told_apart() -> None:
    looks = [plots.style(i) for i in range(100)]
    assert len({(look["color"], look["marker"]) for look in looks}) == 100


def test_markdown_leaves_texts_as_they_are() -> None:
    text = "ours 7.0 (6.0)** p < 0.05 p_u <b> a|b"
    assert "p < 0.05 p_u" in escaped(text), "what Markdown would not mistake stays readable"
    assert shown.blocks(quoted("", "# head\n\n1. one [a](b)\n- two")) == [
        ("blockquote p", "# head\n1. one [a](b)\n- two")
    ], "a quotation, without a heading, a list or a link in it"
    table = Table("t", ["", "number", "words"], [[Entry("a"), Entry("1**", bold=True), Entry(text)]])
    assert table.words() == [True, False, True]
    [[head, row]] = shown.tables(table.markdown())
    assert [field.text for field in head] == table.head
    assert [field.text for field in row] == ["a", "1**", text]
    assert [field.bold for field in row] == [False, True, False]
    assert [field.right for field in row] == [False, True, False]


def test_a_report_of_several_systems_and_texts(
    tmp_path: Path, text: Path, checkpoints: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    out, judge = str(tmp_path / "out"), str(checkpoints["ar"])
    other = tmp_path / "other.txt"
    other.write_text(tiny.TEXT * 5)
    systems = [
        f"MDLM={checkpoints['mdlm']}",
        f"ReMDM={checkpoints['mdlm']},sampler=remdm-cap",
        f"SCDD greedy={checkpoints['scdd']},final=greedy",
        f"AR={checkpoints['ar']}",
    ]
    how = ("--judge", judge, "--steps", "4,2", "--num", "3", "--looks", "2", "--out", out)
    for named in (f"first text={text}", str(other)):
        assert main(["eval", "compare", *systems, *how, "--text", named]) == 0
    page = tmp_path / "report.html"
    assert main(["report", out, "--out", str(page)]) == 0
    plain, shown = page.with_suffix(".md").read_text(), page.read_text()
    for made in (plain, shown):
        assert "Likelihood of first text" in made
        assert "Likelihood of other.txt" in made
    assert plain.count("| MDLM, ReMDM |") >= 2
    assert re.search(r"\| system \| 2 \| 4 \|", plain), "budgets in order"
    assert plain.count("### Generative perplexity") == 1, "a token more or less is no other length"
    row = next(line for line in plain.splitlines() if line.startswith("| AR |") and "†" in line)
    assert row.count("†") == 2
    assert plain.count("```yaml") == 1
    assert "### Where the recipes differ" in plain
    rows = plain[plain.index("### Generative perplexity") :]
    assert rows.index("| MDLM |") < rows.index("| ReMDM |") < rows.index("| SCDD greedy |") < rows.index("| AR |")
    assert shown.count("<details") == 3 + 1
    assert len(plain) < 14_000, "a page, not a dump"
    assert "against the others" not in plain
    assert main(["report", out, "--out", str(page), "--against", "SCDD greedy"]) == 0
    for made in (page.with_suffix(".md").read_text(), page.read_text()):
        assert "Generative perplexity of SCDD greedy against the others" in made


def answered(label: str, text: str, **tasks: float) -> Measurement:
    """Answers to some tasks, accuracies by name."""
    result = {"tasks": {name: {"acc": acc, "error": 0.01, "questions": 9} for name, acc in tasks.items()}}
    settings = {
        "model": {"weights": label},
        "tasks": sorted(tasks),
        "passes": 2,
        "limit": None,
        "seed": 0,
        "text": text,
    }
    return Measurement("zero-shot", label, settings, result, {**MADE, "text": "benchmarks"})


def test_answers_to_different_tasks_are_a_row_and_means_of_the_same_tasks_only() -> None:
    whole = answered("whole", "a" * 16, piqa=0.5, boolq=0.7)
    parts = [answered("parts", "b" * 16, piqa=0.4), answered("parts", "c" * 16, boolq=0.6)]
    twice = [answered("twice", "d" * 16, piqa=0.2), answered("twice", "e" * 16, piqa=0.3)]
    rows = [[entry.text for entry in row] for row in zero_shot_table([whole, *parts, *twice]).rows]
    assert [row[0] for row in rows] == ["whole", "parts", "twice, benchmarks #dddddddd", "twice, benchmarks #eeeeeeee"]
    assert [row[-1] for row in rows] == ["60.00", "50.00", "–", "–"]
    assert [row[2].split()[0] for row in rows] == ["50.0", "40.0", "20.0", "30.0"]
    other = replace(parts[1], settings={**parts[1].settings, "passes": 4})
    assert len(zero_shot_table([parts[0], other]).rows) == 2
