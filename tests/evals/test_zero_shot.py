"""Choice by likelihood: shared noise, the same ranking for a seed, and the harness end to end on small files."""

from __future__ import annotations

import json
import lzma
import math
import os
import shutil
import subprocess
import sys
from functools import partial
from importlib import import_module
from pathlib import Path
from random import Random
from typing import Any

import pytest

from scdd.cli.main import main
from scdd.core import UserError
from scdd.evals.measure import benchmarks
from scdd.evals.measure.model import EvalModel, open_model
from scdd.evals.measure.store import MeasureContext, Store
from scdd.evals.measure.zero_shot import Answer, Question, answers, framed, measure_zero_shot
from scdd.recipe.load import parse

QUESTIONS = [
    Question("a/0", ("The river runs to the sea.", "The river runs to the fox.", "The river runs over.")),
    Question("a/1", ("The dog", "The falcon flies")),
]


def test_answers_follow_from_seed_and_key(scdd: EvalModel) -> None:
    whole = answers(scdd, QUESTIONS, looks=4)
    assert whole == answers(scdd, QUESTIONS, looks=4)
    alone = answers(scdd, QUESTIONS[1:], looks=4, batch_size=1)
    for a, b in zip(whole[1], alone[0], strict=True):
        assert a.score == pytest.approx(b.score, rel=1e-4)
    assert whole != answers(scdd, QUESTIONS, looks=4, seed=1)


def test_answers_share_their_noise(scdd: EvalModel) -> None:
    """Two equal texts of one question get the very same score; of two questions, others."""
    text = "The quick brown fox"
    same = answers(scdd, [Question("q/0", (text, text))], looks=4)[0]
    assert same[0].score == pytest.approx(same[1].score, rel=1e-5)
    apart = [answers(scdd, [Question(f"q/{i}", (text,))], looks=4)[0][0].score for i in (0, 1)]
    assert apart[0] != pytest.approx(apart[1], rel=1e-3)


def test_the_error_is_monte_carlos(scdd: EvalModel) -> None:
    """Over seeds, the scores scatter as much as their errors say."""
    question = [Question("q/0", ("The river runs to the sea.",))]
    found = [answers(scdd, question, looks=10, seed=seed)[0][0] for seed in range(40)]
    mean = sum(a.score for a in found) / 40
    scatter = (sum((a.score - mean) ** 2 for a in found) / 39) ** 0.5
    said = (sum(a.error**2 for a in found) / 40) ** 0.5
    assert 0.6 < scatter / said < 1.7


def test_long_questions_lose_their_beginning(scdd: EvalModel) -> None:
    rows = framed(scdd, ("x" * 100 + " sea", "x" * 100 + " the river"))
    assert max(map(len, rows)) == scdd.lm.context
    assert rows[0][1:20] == rows[1][1:20], "aligned"
    with pytest.raises(UserError, match="leave the task out"):
        framed(scdd, ("a", "x" * 100))


def test_task_files_and_documents() -> None:
    names = {path.stem for path in benchmarks.TASKS.glob("*.yaml")}
    assert names == set(benchmarks.NAMES)
    for name in names:
        text = (benchmarks.TASKS / f"{name}.yaml").read_text().replace("!function ", "")
        task = parse(text)
        assert task["task"] == benchmarks.PREFIX + name
        assert task["dataset_kwargs"] == {"name": name}


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two questions of each task, in the files' own form."""
    for name in benchmarks.NAMES:
        if name == "winogrande":
            one = {
                "context_options": ["The fox met the dog; the fox", "The fox met the dog; the dog"],
                "continuation": "runs.",
                "gold": 1,
            }
        else:
            one = {"query": "Question: where does the river run?", "choices": ["to the sea", "to the fox"], "gold": 0}
        (tmp_path / f"{name}.jsonl").write_text(f"{json.dumps(one)}\n{json.dumps({**one, 'gold': 0})}\n")
    monkeypatch.setenv(benchmarks.VARIABLE, str(tmp_path))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return tmp_path


def test_missing_files_name_the_cure(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(benchmarks.documents("piqa")) == 2
    (files / "piqa.jsonl").unlink()
    with pytest.raises(UserError, match=r"no piqa.jsonl"):
        benchmarks.documents("piqa")
    monkeypatch.delenv(benchmarks.VARIABLE)
    monkeypatch.delenv("SCDD_DATA", raising=False)
    with pytest.raises(UserError, match="or set SCDD_BENCHMARKS"):
        benchmarks.folder()


@pytest.mark.parametrize(
    ("name", "line", "what"),
    [
        ("piqa", "{", "Expecting"),
        ("piqa", "[1]", "no object"),
        ("piqa", '{"choices": ["a", "b"], "gold": 0}', "query is no text"),
        ("piqa", '{"query": "q", "choices": ["a"], "gold": 0}', "choices is no list of 2 to 64"),
        ("piqa", '{"query": "q", "choices": ["a", 3], "gold": 0}', "something other than texts"),
        ("piqa", '{"query": "q", "choices": ["a", ""], "gold": 0}', "something other than texts"),
        ("piqa", '{"query": "q", "choices": ["a", "b"], "gold": 2}', "gold is not a number from 0 to 1"),
        ("piqa", '{"query": "q", "choices": ["a", "b"], "gold": true}', "gold is not a number"),
        ("piqa", '{"query": "' + "q" * benchmarks.LONGEST_LINE + '"}', "longer than"),
        ("piqa", "[" * 200_000, "recursion"),
        ("winogrande", '{"query": "q", "choices": ["a", "b"], "gold": 0}', "make it an object of context_options"),
        ("winogrande", '{"continuation": "q", "context_options": "ab", "gold": 0}', "context_options is no list"),
    ],
)
def test_a_malformed_line_is_named(files: Path, name: str, line: str, what: str) -> None:
    path = files / f"{name}.jsonl"
    path.write_text(f"{path.read_text()}\n{line}\n")
    with pytest.raises(UserError, match=rf"{name}\.jsonl, line 4, is no question of {name} .*{what}"):
        benchmarks.documents(name)


def test_damaged_and_empty_files_are_refused(files: Path) -> None:
    whole = lzma.compress((files / "piqa.jsonl").read_bytes())
    (files / "piqa.jsonl").unlink()
    (files / "piqa.jsonl.xz").write_bytes(whole)
    assert len(benchmarks.choices("piqa")) == 2
    (files / "piqa.jsonl.xz").write_bytes(whole[:-20])
    with pytest.raises(UserError, match=r"piqa.jsonl.xz is damaged"):
        benchmarks.choices("piqa")
    (files / "boolq.jsonl").write_text("\n")
    with pytest.raises(UserError, match="has no question"):
        benchmarks.choices("boolq")


@pytest.mark.usefixtures("files")
def test_all_seven_tasks(tmp_path: Path, scdd: EvalModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without lm-eval, which a machine may lack."""
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    first, second = (MeasureContext(Store(tmp_path / name), 32) for name in "ab")
    found = measure_zero_shot(first, scdd, looks=2).result
    assert set(found["tasks"]) == set(benchmarks.NAMES)
    assert all(one["questions"] == 2 for one in found["tasks"].values())
    assert found["monte_carlo_error"] > 0
    again = measure_zero_shot(second, scdd, looks=2).result
    assert again == found, "the ranking is the seed's"
    for name, gold, texts in (
        ("piqa", (0, 0), [f"Question: where does the river run?\nAnswer: {c}" for c in ("to the sea", "to the fox")]),
        ("winogrande", (1, 0), [f"The fox met the dog; the {one} runs." for one in ("fox", "dog")]),
    ):
        asked = [Question(f"scdd_{name}/{i}", tuple(texts)) for i in (0, 1)]
        best = [max((0, 1), key=lambda i: row[i].score) for row in answers(scdd, asked, looks=2)]
        assert found["tasks"][name]["acc"] == sum(a == b for a, b in zip(best, gold, strict=True)) / 2
    with pytest.raises(UserError, match="need lm_eval"):
        measure_zero_shot(first, scdd, ["piqa"])
    with pytest.raises(UserError, match="at least 1"):
        measure_zero_shot(first, scdd, limit=0)
    with pytest.raises(UserError, match="batch size is 0"):
        MeasureContext(Store(tmp_path), 0)


def test_some_of_the_seven_come_from_the_folder(
    tmp_path: Path, files: Path, scdd: EvalModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`--tasks piqa --benchmarks DIR` went past DIR to the Hub."""
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    context = MeasureContext(Store(tmp_path / "out"), 32)
    alone = measure_zero_shot(context, scdd, ["piqa", "scdd_boolq"], str(files), looks=2).result["tasks"]
    every = measure_zero_shot(context, scdd, looks=2).result["tasks"]
    assert alone == {name: every[name] for name in ("piqa", "boolq")}, "the noise of a question is its own"
    with pytest.raises(UserError, match="tasks mmlu are none of the files'"):
        measure_zero_shot(context, scdd, ["piqa", "mmlu"], str(files))
    for looks in (0, 1, 3):
        with pytest.raises(UserError, match=f"looks is {looks}: give an even number"):
            measure_zero_shot(context, scdd, None, str(files), looks=looks)


def test_other_questions_are_another_measurement(
    tmp_path: Path, files: Path, checkpoints: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """`--benchmarks A` and then `--benchmarks B` gave A's accuracies again."""
    one, two, again = (tmp_path / name for name in ("one", "two", "again"))
    for place in (one, two, again):
        place.mkdir()
        shutil.copy(files / "piqa.jsonl", place)
    question = json.loads((files / "piqa.jsonl").read_text().splitlines()[0])
    (two / "piqa.jsonl").write_text(json.dumps({**question, "gold": 1}) + "\n")
    command = ["eval", "zero-shot", "--model", str(checkpoints["scdd"]), "--tasks", "piqa", "--looks", "2"]
    command += ["--out", str(tmp_path / "out")]

    def measured(place: Path, *more: str) -> dict[str, Any]:
        assert main([*command, "--benchmarks", str(place), "--json", *more]) == 0
        found: dict[str, Any] = json.loads(capsys.readouterr().out)
        return found

    a, b = measured(one), measured(two)
    assert a["hash"] != b["hash"]
    first, second = (one["result"]["tasks"]["piqa"] for one in (a, b))
    assert (first["questions"], second["questions"]) == (2, 1)
    assert first["error"] > 0, "two equal questions: all or none are right"
    assert math.isnan(second["error"])
    assert measured(again)["hash"] == a["hash"], "a folder that was moved is the same"
    assert measured(one, "--limit", "1")["hash"] != b["hash"]
    (one / "piqa.jsonl").write_text((two / "piqa.jsonl").read_text())
    assert measured(one)["hash"] == b["hash"]
    page = tmp_path / "page.html"
    assert main(["report", str(tmp_path / "out"), "--out", str(page)]) == 0
    rows = [line for line in page.with_suffix(".md").read_text().splitlines() if line.startswith("| scdd, ")]
    assert len({row.split("|")[1] for row in rows}) == 3, "three sets of questions, three names"
    assert "nan" not in "".join(rows)


WORDS = ("sea", "fox", "river", "lazy dog", "42", "{{brown}}", "quick\u00a0jump", " over", "the end. ")


def varied(name: str, rng: Random) -> dict[str, object]:
    """A question of any form that a file may have."""
    some = [f"{rng.choice(WORDS)} {i}" if rng.random() < 0.5 else rng.choice(WORDS) for i in range(rng.randint(2, 5))]
    gold = rng.randrange(len(some))
    if name == "winogrande":
        return {"context_options": some, "continuation": rng.choice(WORDS), "gold": gold}
    return {"query": f"{rng.choice(WORDS)}: where?" + rng.choice(("", " ", "\n")), "choices": some, "gold": gold}


@pytest.mark.parametrize(("kind", "limit"), [("scdd", None), ("ar", 3)])
def test_the_numbers_are_the_harnesss_own(
    files: Path, checkpoints: dict[str, Path], monkeypatch: pytest.MonkeyPatch, kind: str, limit: int | None
) -> None:
    """The same measurement through lm-eval and the task files: settings, hash and every digit."""
    tasks = pytest.importorskip("lm_eval.tasks")
    # The harness's own 14,000 task files take seconds to index; the next test leaves them in.
    monkeypatch.setattr(tasks, "TaskManager", partial(tasks.TaskManager, include_defaults=False))
    rng = Random(0)
    for name in benchmarks.NAMES:
        lines = [json.dumps(varied(name, rng)) for _ in range(5)]
        (files / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    model = open_model(checkpoints[kind], device="cpu")
    asked: list[object] = []

    def noted(model: EvalModel, questions: list[Question], *how: Any) -> list[list[Answer]]:
        scored = answers(model, questions, *how)
        asked.append((questions, scored))
        return scored

    for module in ("zero_shot", "lm_eval_model"):
        monkeypatch.setattr(import_module(f"scdd.evals.measure.{module}"), "answers", noted)
    ours, theirs = (MeasureContext(Store(files / name)) for name in ("ours", "theirs"))
    found = measure_zero_shot(ours, model, looks=4, limit=limit, seed=3)
    named = [benchmarks.PREFIX + name for name in benchmarks.NAMES]
    through = measure_zero_shot(theirs, model, named, looks=4, limit=limit, seed=3)
    assert asked[0] == asked[1], "other texts, keys or scores"
    assert found.settings == through.settings
    assert found.hash == through.hash
    assert found.result == through.result
    assert list(found.result["tasks"]) == list(through.result["tasks"])
    assert 0 < sum(one["acc"] for one in found.result["tasks"].values()) < 7, "or equality would say little"
    assert (found.result["monte_carlo_error"] == 0) == (kind == "ar")


def test_the_harness_knows_the_model(files: Path, checkpoints: dict[str, Path]) -> None:
    """`lm_eval --model scdd --model_args pretrained=…`, the real command."""
    pytest.importorskip("lm_eval")
    command = [
        *(
            sys.executable,
            "-m",
            "lm_eval",
            "--model",
            "scdd",
            "--model_args",
            f"pretrained={checkpoints['scdd']},looks=2",
        ),
        *("--tasks", str(benchmarks.TASKS), "--limit", "1", "--output_path", str(files / "out")),
    ]
    done = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}, timeout=240
    )
    assert done.returncode == 0, done.stderr[-2000:]
    for name in benchmarks.NAMES:
        assert benchmarks.PREFIX + name in done.stdout


@pytest.mark.data
@pytest.mark.slow
def test_the_real_files(data_folder: Path, tmp_path: Path, scdd: EvalModel) -> None:
    """Official sizes, and a question of each."""
    folder = str(data_folder / "benchmarks")
    context = MeasureContext(Store(tmp_path), 32)
    found = measure_zero_shot(context, scdd, None, folder, looks=2, limit=1).result
    assert set(found["tasks"]) == set(benchmarks.NAMES)
    sizes = [len(benchmarks.documents(name, folder)) for name in benchmarks.NAMES]
    assert sizes == [2376, 1172, 3270, 10042, 500, 1838, 1267]
