"""`scdd eval … --ray`: the same numbers, in the same store, none measured twice."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import typer

from scdd.cli import eval as verbs
from scdd.cli.cluster import RayCommand
from scdd.cli.main import main
from scdd.evals.measure.generation import measure_generation, measure_samples
from scdd.evals.measure.model import open_model
from scdd.evals.measure.reference_lm import open_reference_lm
from scdd.evals.measure.specs import SamplingSpec
from scdd.evals.measure.store import MeasureContext, Store
from scdd.evals.measure.tasks import JudgeSource, Plan
from tests import tiny

AR = ("process.kind=ar", "objective.kind=ar", "sampling.sampler.kind=ar")


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    (folder / "text.txt").write_text(tiny.TEXT * 8, encoding="utf-8")
    return {
        "scdd": tiny.checkpoint(folder / "scdd"),
        "ar": tiny.checkpoint(folder / "ar", *AR, causal=True),
        "text": folder / "text.txt",
    }


def run(capsys: pytest.CaptureFixture[str], *command: str) -> list[dict[str, Any]]:
    assert main([*command, "--json"]) == 0, capsys.readouterr().err
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def bare(cells: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Without when, and for how long, it was measured."""
    varies = ("date", "seconds")
    return [{**cell, "made": {k: v for k, v in cell["made"].items() if k not in varies}} for cell in cells]


class Counting:
    """An executor of this process that counts."""

    def __init__(self) -> None:
        self.done = 0

    def map(self, function: Any, items: Any) -> Any:
        for item in items:
            self.done += 1
            yield function(item)


@pytest.mark.usefixtures("ray_address")
@pytest.mark.dist
@pytest.mark.slow
def test_compare_on_ray_is_compare(
    tmp_path: Path, checkpoints: dict[str, Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    systems = [f"ours={checkpoints['scdd']}", f"again={checkpoints['scdd']},top_p=0.9"]
    compared = ("--judge", str(checkpoints["ar"]), "--steps", "2,4", "--num", "4", "--looks", "2", "--device", "cpu")
    command = ("eval", "compare", *systems, *compared, "--text", str(checkpoints["text"]), "--out")
    local = run(capsys, *command, str(tmp_path / "local"))
    there = run(capsys, *command, str(tmp_path / "ray"), "--ray")
    assert bare(there) == bare(local)
    assert len(there) == 6
    files = [sorted(path.name for path in (tmp_path / place / "cells").iterdir()) for place in ("local", "ray")]
    assert files[0] == files[1], "samples among them"

    kept = {path: path.read_bytes() for path in (tmp_path / "ray").rglob("*.json")}
    monkeypatch.setattr("scdd.cluster.pool.RayPool.map", lambda *_: pytest.fail("measured again"))
    assert bare(run(capsys, *command, str(tmp_path / "ray"), "--ray")) == bare(
        run(capsys, *command, str(tmp_path / "ray"))
    )
    assert kept.keys() == set((tmp_path / "ray").rglob("*.json"))


def test_what_is_shared_is_made_once_and_what_is_there_is_taken_along(
    tmp_path: Path, checkpoints: dict[str, Path]
) -> None:
    model = open_model(checkpoints["scdd"], device="cpu")
    judge = open_reference_lm(str(checkpoints["ar"]))
    store = Store(tmp_path / "there")
    specs = [SamplingSpec(2, 2), SamplingSpec(2, 3)]
    measure_samples(MeasureContext(store), model, specs[1])
    plan, executor = Plan(store), Counting()
    plan.judges.append((judge, JudgeSource(str(checkpoints["ar"]), 8)))
    for spec in specs:
        plan.add(measure_samples, model, spec)
        plan.add(measure_generation, model, spec, judge)
    assert sorted(len(task.calls) for task in plan.tasks.values()) == [1, 2], (
        "samples and those that need them together"
    )
    assert sorted(len(task.known) for task in plan.tasks.values()) == [0, 1]
    assert sum(plan.run(executor)) == 3
    assert executor.done == 2
    assert [one.kind for one in plan.results()] == ["samples", "generation"] * 2
    context = MeasureContext(Store(tmp_path / "here"))
    alone = [measure_generation(context, model, spec, judge).result for spec in specs]
    assert [one.result for one in plan.results()[1::2]] == alone
    assert all(one.path is not None and one.path.is_file() for one in plan.results())


def test_every_verb_that_knows_ray_takes_it_without_an_address() -> None:
    commands = typer.main.get_command(verbs.app).commands  # type: ignore[attr-defined]
    on_ray = {name: type(command) for name, command in commands.items() if "ray" in {p.name for p in command.params}}
    assert on_ray == dict.fromkeys(set(commands) - {"judge"}, RayCommand)


def test_repair_on_ray_is_repair(
    tmp_path: Path, checkpoints: dict[str, Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = Counting()
    monkeypatch.setattr("scdd.cli.eval_session.pool_at", lambda *_, **__: pool)
    made = ("--text", str(checkpoints["text"]), "--made", "typos,slips", "--num", "2", "--device", "cpu")
    command = ("eval", "repair", "--model", str(checkpoints["scdd"]), *made, "--out")
    local = run(capsys, *command, str(tmp_path / "local"))
    assert pool.done == 0
    there = run(capsys, *command, str(tmp_path / "ray"), "--ray")
    assert (bare(there), len(there), pool.done) == (bare(local), 2, 2)
