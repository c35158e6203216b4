"""Repairs are scored as the definitions say, and measured on pairs from files and on errors made in clean text."""

from __future__ import annotations

import itertools
import json
import math
from collections import Counter
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from scdd.cli.main import main
from scdd.core.errors import UserError
from scdd.evals.measure.edit_kinds import KINDS, kind_of
from scdd.evals.measure.edit_scores import (
    Compared,
    Counts,
    WordEdit,
    by_kind,
    compared,
    corpus_gleu,
    distance,
    edits,
    f_score,
    gleu,
    gleu_counts,
    harmed,
    scores,
)  # fmt: skip
from scdd.evals.measure.model import EvalModel
from scdd.evals.measure.pairs import make_pairs, read_pairs
from scdd.evals.measure.repair import RepairSpec, measure_repair
from scdd.evals.measure.store import MeasureContext, Store
from scdd.lm.edits import grammar
from scdd.lm.edits.lexicon import english
from tests import tiny


@cache
def levenshtein(a: tuple[str, ...], b: tuple[str, ...]) -> int:
    if not a or not b:
        return len(a) + len(b)
    return min(levenshtein(a[1:], b) + 1, levenshtein(a, b[1:]) + 1, levenshtein(a[1:], b[1:]) + (a[0] != b[0]))


def test_distances_and_edits_are_those_of_the_definition() -> None:
    rng = Random(0)
    texts = [tuple(rng.choices("abc", k=rng.randrange(0, 6))) for _ in range(40)]
    for a, b in itertools.product(texts, texts):
        assert distance(a, b) == levenshtein(a, b)
        made = edits(a, b)
        assert sum(max(each.end - each.start, len(each.new)) for each in made) == levenshtein(a, b)
        out: list[str] = []
        place = 0
        for each in made:
            assert each.start >= place
            out += [*a[place : each.start], *each.new]
            place = each.end
        assert tuple(out + list(a[place:])) == b


def brute_gleu(source: list[str], repaired: list[str], reference: list[str]) -> float:
    """GLEU of one sentence, n-gram by n-gram."""
    logs = []
    for n in range(1, 5):
        grams = [
            [tuple(words[i : i + n]) for i in range(len(words) - n + 1)] for words in (source, repaired, reference)
        ]
        matched = 0
        for gram in set(grams[1]):
            matched += min(grams[1].count(gram), grams[2].count(gram))
            if gram not in grams[2]:
                matched -= min(grams[1].count(gram), grams[0].count(gram))
        if matched <= 0 or not grams[1]:
            return 0.0
        logs.append(math.log(matched / len(grams[1])))
    return math.exp(min(0.0, 1 - len(reference) / len(repaired)) + sum(logs) / 4)


def test_gleu() -> None:
    rng = Random(1)
    positive = 0
    for _ in range(200):
        reference = rng.choices("abcdef", k=9)
        source, repaired = (
            [rng.choice("abcdef") if rng.random() < share else word for word in reference] for share in (0.4, 0.15)
        )
        expected = brute_gleu(source, repaired, reference)
        assert gleu(gleu_counts(source, repaired, reference)) == pytest.approx(expected)
        positive += expected > 0
    assert positive > 50
    words = ["the", "river", "runs", "to", "the", "sea"]
    tables = [[gleu_counts(words, words, words), gleu_counts(words, words, words[:-1])]] * 3
    assert 0.5 < corpus_gleu(tables)["value"] < 1.0
    assert corpus_gleu([[tables[0][0]]] * 3) == {"value": 1.0, "error": 0.0}
    alone = corpus_gleu(tables[:1])
    assert 0.5 < alone["value"] < 1.0
    assert math.isnan(alone["error"]), "a sentence alone says nothing of others"


def drawn_table(rng: np.random.Generator, references: int, apart: float) -> list[list[float]]:
    """A sentence's counts against its references, which are as far apart as `apart` says."""
    length, own, table = int(rng.integers(8, 30)), rng.normal(0, 0.5), []
    for _ in range(references):
        good = 1 / (1 + math.exp(-(1.0 + own + rng.normal(0, apart))))
        totals = [length + 1 - n for n in (1, 2, 3, 4)]
        matches = [int(rng.binomial(total, good ** (n**0.5))) for n, total in enumerate(totals, 1)]
        counts = itertools.chain.from_iterable(zip(matches, totals, strict=True))
        table.append([length, length + int(rng.integers(-2, 3)), *map(float, counts)])
    return table


@pytest.mark.parametrize(("references", "apart"), [(1, 1.0), (2, 1.5), (4, 1.0), (8, 2.0)])
def test_the_error_of_gleu_is_the_spread_of_gleu(references: int, apart: float) -> None:
    """Over corpora; with several references the choice among them, which the mean has averaged away, is not in it."""
    rng = np.random.default_rng(7)
    found = [corpus_gleu([drawn_table(rng, references, apart) for _ in range(60)], i, 60) for i in range(160)]
    spread = np.std([one["value"] for one in found], ddof=1)
    said = np.mean([one["error"] for one in found])
    assert 0.8 < said / spread < 1.2


def test_edits_are_counted_against_the_kindest_reference() -> None:
    source, one, two = ["a", "b", "c", "d", "e"], ["a", "X", "c", "d", "e"], ["a", "b", "c", "Y", "Z"]
    repaired = ["a", "X", "c", "Q", "e"]
    assert compared(source, repaired, [one, two]).counts == Counts(1, 1, 0)
    assert compared(source, repaired, [two]).counts == Counts(0, 2, 1)
    assert compared(source, source, [one, source]).counts == Counts(0, 0, 0)
    precision, recall = 1 / 2, 1.0
    assert f_score(1, 1, 0) == pytest.approx(1.25 * precision * recall / (0.25 * precision + recall))
    assert harmed(source, repaired, one) == (1, 4)
    assert harmed(source, [*source, "f"], source) == (1, 5)


@pytest.mark.parametrize(
    ("old", "new", "kind"),
    [
        ("becouse", "because", "spelling"),
        ("becouse,", "because", "spelling"),
        ("goo", "good", "spelling"),
        ("originals", "original", "form or confusion"),
        ("goes", "went", "form or confusion"),
        ("in", "on", "small word"),
        ("", "the", "missing"),
        ("of", "", "too much"),
        ("sea", "the sea", "missing"),
        ("the the sea", "the sea", "too much"),
        ("sea", "sea,", "marks"),
        ("", ",", "marks"),
        ("london", "London", "case"),
        ("alot", "a lot", "together or apart"),
        ("use that", "that use", "order"),
        ("piano", "river", "other word"),
        ("piano", "it to", "several words"),
    ],
)
def test_kinds_of_mistakes(old: str, new: str, kind: str) -> None:
    assert kind in KINDS
    assert kind_of(old.split(), new.split(), english()) == kind


def test_edits_by_kind_are_all_edits() -> None:
    source, mended, meant = (
        text.split() for text in ("Teh river run to sea", "The river runs at sea", "The river runs to the sea")
    )
    found = compared(source, mended, [meant])
    assert by_kind([source], [found]) == {
        "spelling": {"right": 1, "wrong": 0, "missed": 0},
        "form or confusion": {"right": 0, "wrong": 0, "missed": 1},
        "missing": {"right": 0, "wrong": 0, "missed": 1},
        "several words": {"right": 0, "wrong": 1, "missed": 0},  # "runs at": what touches is one edit
    }
    assert by_kind([source], [Compared({WordEdit(0, 1, ("The",))}, set(), set())])["spelling"]["right"] == 1


def test_scores_by_hand() -> None:
    sources = ["a b c d", "e f g h", "i j k l"]
    repaired = ["a X c d", "e f g Z", "i j k l"]
    references = [["a X c d", "a Y c d"], ["e f g h"], ["i M k l"]]
    found = scores(sources, repaired, references)
    assert (found["before"], found["after"], found["better"], found["worse"]) == (2, 2, 1, 1)
    assert found["change"]["value"] == 0.0
    assert found["precision"]["value"] == found["recall"]["value"] == 0.5
    assert {name: sum(n[name] for n in found["kinds"].values()) for name in ("right", "wrong", "missed")} == {
        "right": 1, "wrong": 1, "missed": 1,
    }  # fmt: skip
    assert found["clean_touched"]["value"] == 1.0
    assert found["clean"] == 1
    assert found["harmed"]["value"] == pytest.approx(1 / 10)
    assert found["recall"]["low"] <= 0.5 <= found["recall"]["high"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "pairs"
    place.mkdir()
    (place / "src.txt").write_text("Teh river runs.\nThe sea .\n\n", encoding="utf-8")
    (place / "ref0.txt").write_text("The river runs.\nThe sea .\n\n", encoding="utf-8")
    (place / "ref1.txt").write_text("The river ran.\nA sea .\n\n", encoding="utf-8")
    return place


def test_pairs_are_read_and_checked(folder: Path) -> None:
    pairs = read_pairs(str(folder))
    assert pairs.sources == ("Teh river runs.", "The sea .")
    assert pairs.references[0] == ("The river runs.", "The river ran.")
    assert len(pairs.some(1, 0)) == 1
    (folder / "ref1.txt").write_text("one line\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"ref1\.txt has 1 lines and src\.txt 3"):
        read_pairs(str(folder))
    (folder / "src.txt").write_bytes(b"\xff\n")
    with pytest.raises(UserError, match="not UTF-8"):
        read_pairs(str(folder))
    (folder / "src.txt").unlink()
    with pytest.raises(UserError, match=r"no src\.txt"):
        read_pairs(str(folder))


def test_errors_are_made_in_clean_text(text: Path) -> None:
    for kind in ("typos", "slips"):
        pairs = make_pairs([str(text)], kind, 0.2, 6, 0)  # type: ignore[arg-type]
        assert pairs == make_pairs([str(text)], kind, 0.2, 6, 0)  # type: ignore[arg-type]
        assert any(source != reference for source, (reference,) in zip(pairs.sources, pairs.references, strict=True))
        assert all(reference in tiny.TEXT * 8 for (reference,) in pairs.references)


def test_other_candidates_are_another_measurement(
    scdd: EvalModel, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An answer that was kept before a list of words changed is none of the new list's."""
    context, pairs = MeasureContext(Store(tmp_path / "out")), read_pairs(str(folder))
    edit, one_pass = (RepairSpec({"mode": mode}) for mode in ("edit", "pass"))
    before = [measure_repair(context, scdd, pairs, spec).hash for spec in (edit, one_pass)]
    monkeypatch.setattr(grammar, "SETS", (*grammar.SETS, ("colour", "color")))
    after = [measure_repair(context, scdd, pairs, spec).hash for spec in (edit, one_pass)]
    assert after[0] != before[0]
    assert after[1] == before[1], "one pass has no candidates"


def test_a_measurement(scdd: EvalModel, folder: Path, tmp_path: Path) -> None:
    context, pairs = MeasureContext(Store(tmp_path / "out")), read_pairs(str(folder))
    found = {mode: measure_repair(context, scdd, pairs, RepairSpec({"mode": mode})) for mode in ("edit", "pass")}
    assert found["edit"].hash != found["pass"].hash
    again = measure_repair(context, scdd, pairs, RepairSpec({"mode": "edit"}))
    assert again.result == found["edit"].result
    repaired = [scdd.lm.correct(text, mode="pass").text for text in pairs.sources]
    expected = scores(pairs.sources, repaired, pairs.references)
    assert {k: v for k, v in found["pass"].result.items() if k in expected} == json.loads(json.dumps(expected))
    with pytest.raises(UserError, match="strength"):
        measure_repair(context, scdd, pairs, RepairSpec({"strength": 2.0}))


def test_the_verb(
    folder: Path, text: Path, checkpoints: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, out = f"--model={checkpoints['scdd']}", ["--out", str(tmp_path / "out")]
    command = [
        "eval",
        "repair",
        model,
        "--pairs",
        f"mine={folder}",
        "--text",
        str(text),
        "--num",
        "2",
        "--mode",
        "pass",
        *out,
    ]
    assert main([*command, "--json"]) == 0
    cells: list[dict[str, Any]] = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert Counter(cell["kind"] for cell in cells) == {"repair": 2}
    assert cells[0]["made"]["text"] == "mine"
    assert main(command) == 0
    shown = capsys.readouterr().out
    assert "| mine, 2 | pass |" in shown
    kinds = cells[0]["result"]["kinds"]
    assert kinds["spelling"]["right"] + kinds["spelling"]["missed"] > 0
    for kind, n in kinds.items():
        assert f"| {kind} | {n['right']} | {n['wrong']} | {n['missed']} |" in shown
    for wrong, why in ((["--made", "lies"], "--made lies"), (["--mode", "cut"], "mode"), ([], "needs sentences")):
        rest = command if wrong else ["eval", "repair", model, *out]
        assert main([*rest, *wrong]) == 2
        assert why in capsys.readouterr().err
