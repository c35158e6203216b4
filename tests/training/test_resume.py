"""Killed anywhere, a run goes on as if nothing had happened, bit for bit, on any number of ranks."""

from __future__ import annotations

import json
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from scdd.training.log import METRICS

from .conftest import Launch, curve, said, weights


def same(a: Path, b: Path) -> None:
    one, two = weights(a), weights(b)
    assert one.keys() == two.keys()
    for name in one:
        assert torch.equal(one[name], two[name]), name
    assert curve(a) == curve(b)


def tormented(launch: Launch, out: Path, kills: int, ranks: int, sets: list[str], calm: float, seed: int = 0) -> None:
    """Kill it again and again, at random times and inside checkpoint writes, then let it finish.

    `calm` is how long a run takes in peace here and now: times are drawn so that `kills` of them fit into it. A fast
    spell may still let it finish early, but not before it has been killed half as many times.
    """
    chance, done = random.Random(seed), 0
    while done < kills:
        at_work = (
            {"operation": chance.randint(1, 25)}
            if chance.random() < 0.6
            else {"after": chance.uniform(0.2, 0.8) * calm / kills}
        )
        codes = launch(out, ranks, sets, **at_work)
        done += any(code == -signal.SIGKILL for code in codes)
        if codes == [0] * ranks:
            break
    assert done >= kills / 2, f"it finished after {done} kills: give it more steps"
    assert launch(out, ranks, sets) == [0] * ranks


def in_peace(launch: Launch, out: Path, ranks: int, sets: list[str]) -> float:
    """Run it undisturbed; how many seconds that took."""
    start = time.perf_counter()
    assert launch(out, ranks, sets) == [0] * ranks
    return time.perf_counter() - start


def test_a_killed_run_ends_with_the_same_bits(launch: Launch, tmp_path: Path) -> None:
    sets = ["training.steps=120", "training.save_every=4"]  # saves fall between reports, so open sums are saved too
    calm = in_peace(launch, tmp_path / "calm", 1, sets)
    tormented(launch, tmp_path / "killed", kills=4, ranks=1, sets=sets, calm=calm)
    same(tmp_path / "calm", tmp_path / "killed")


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_ten_kills_end_with_the_same_bits(launch: Launch, tmp_path: Path, seed: int) -> None:
    sets = ["training.steps=240", "training.save_every=2"]
    calm = in_peace(launch, tmp_path / "calm", 1, sets)
    tormented(launch, tmp_path / "killed", kills=10, ranks=1, sets=sets, calm=calm, seed=seed)
    same(tmp_path / "calm", tmp_path / "killed")


@pytest.mark.slow
@pytest.mark.dist
def test_two_ranks_killed_ten_times_end_with_the_same_bits(launch: Launch, tmp_path: Path) -> None:
    sets = ["training.steps=240", "training.save_every=2", "training.parallel=ddp"]
    calm = in_peace(launch, tmp_path / "calm", 2, sets)
    tormented(launch, tmp_path / "killed", kills=10, ranks=2, sets=sets, calm=calm)
    same(tmp_path / "calm", tmp_path / "killed")


@pytest.mark.dist
def test_four_ranks_killed_end_with_the_same_bits(launch: Launch, tmp_path: Path) -> None:
    """More than two, so that the order of a sum matters."""
    sets = ["training.steps=12", "training.save_every=4", "training.parallel=ddp", "training.validate_every=12"]
    in_peace(launch, tmp_path / "calm", 4, sets)
    assert -signal.SIGKILL in launch(tmp_path / "killed", 4, sets, operation=25)
    assert list((tmp_path / "killed" / "checkpoints").glob("step-*")), "killed too early to tell"
    assert launch(tmp_path / "killed", 4, sets) == [0] * 4
    same(tmp_path / "calm", tmp_path / "killed")


@pytest.mark.parametrize("operation", [1, 4, 8])
def test_dying_inside_a_checkpoint_write_leaves_the_last_complete_one(
    launch: Launch, tmp_path: Path, operation: int
) -> None:
    out = tmp_path / "run"
    assert launch(out, sets=["training.steps=5"]) == [0]
    before = weights(out)
    assert launch(out, sets=["training.steps=10"], operation=operation + 3) == [-signal.SIGKILL]
    assert torch.equal(weights(out)["model.network.output.weight"], before["model.network.output.weight"]) or (
        sorted((out / "checkpoints").glob("step-*"))[-1].name == "step-00000010"
    )
    assert launch(out, sets=["training.steps=10"]) == [0]
    assert launch(tmp_path / "calm", sets=["training.steps=5"]) == [0]
    assert launch(tmp_path / "calm", sets=["training.steps=10"]) == [0]
    same(tmp_path / "calm", out)
    assert not list((out / "checkpoints").glob(".*")), "no half-written checkpoint is left"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_saves_and_ends_well_and_the_same_command_goes_on(
    launch: Launch, tmp_path: Path, number: signal.Signals
) -> None:
    out, sets = (tmp_path / "run", ["training.steps=3000", "training.save_every=3000", "training.validate_every=3000"])
    assert launch(out, sets=sets, signal=[str(out / METRICS), int(number)]) == [0]
    assert "the same command goes on from there" in said(tmp_path, out)
    newest = sorted((out / "checkpoints").glob("step-*"))[-1]
    step = int(newest.name.removeprefix("step-"))
    assert 0 < step < 3000
    assert launch(
        out, sets=[f"training.steps={step + 4}", "training.save_every=3000", "training.validate_every=3000"]
    ) == [0]
    assert f"resuming from {newest}" in said(tmp_path, out)


def test_a_run_outlives_whoever_read_its_lines(recipe_file: Path, tmp_path: Path) -> None:
    """`scdd train … | head -1` closes the pipe under it."""
    command = [
        sys.executable,
        "-m",
        "scdd",
        "train",
        str(recipe_file),
        "--out",
        str(tmp_path / "run"),
        "--device",
        "cpu",
    ]
    command += ["--set", "training.log_every=1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        assert run.stderr is not None
        assert run.stdout.readline()
        run.stdout.close()
        assert run.wait(60) == 0, run.stderr.read()
    assert [path.name for path in (tmp_path / "run" / "checkpoints").iterdir() if path.name == "step-00000024"]


def test_a_budget_of_seconds_counts_training_time_over_all_resumes(launch: Launch, tmp_path: Path) -> None:
    out, sets = (
        tmp_path / "run",
        ["training.steps=100000", "training.max_seconds=0.3", "training.validate_every=100000"],
    )
    assert launch(out, sets=sets) == [0]
    assert "(out of time)" in said(tmp_path, out)
    assert "raise training.max_seconds to go on" in said(tmp_path, out)
    newest = sorted((out / "checkpoints").glob("step-*"))[-1]
    facts = json.loads((newest / "resume" / "facts.json").read_text())
    assert 0.3 <= facts["seconds"] < 1.5
    assert launch(out, sets=sets) == [0]
    later = sorted((out / "checkpoints").glob("step-*"))[-1]
    assert int(later.name[5:]) <= int(newest.name[5:]) + 1, "the budget was already spent"


def test_only_the_last_checkpoints_are_kept(launch: Launch, tmp_path: Path) -> None:
    assert launch(tmp_path / "run") == [0]
    kept = sorted(path.name for path in (tmp_path / "run" / "checkpoints").iterdir())
    assert kept == ["step-00000020", "step-00000024"]


@pytest.mark.dist
def test_muon_on_shards_is_muon_on_whole_matrices(launch: Launch, tmp_path: Path) -> None:
    """Begun on two ranks, and gone on with on four."""
    muon, half = ["training.muon=0.02"], "training.steps=12"
    for sets in ([*muon, half], muon):
        assert launch(tmp_path / "one", sets=sets) == [0]
    assert launch(tmp_path / "fsdp", 2, [*muon, half, "training.parallel=fsdp"]) == [0, 0]
    assert launch(tmp_path / "fsdp", 4, [*muon, "training.parallel=fsdp"]) == [0] * 4
    for mine, theirs in zip(curve(tmp_path / "one"), curve(tmp_path / "fsdp"), strict=True):
        assert mine == pytest.approx(theirs, rel=1e-2)


@pytest.mark.dist
@pytest.mark.parametrize("ranks", [1, 2])
def test_muon_goes_on_with_the_same_bits(launch: Launch, tmp_path: Path, ranks: int) -> None:
    assert launch(tmp_path / "calm", ranks, ["training.muon=0.02"]) == [0] * ranks
    assert -signal.SIGKILL in launch(tmp_path / "killed", ranks, ["training.muon=0.02"], operation=26)
    assert launch(tmp_path / "killed", ranks, ["training.muon=0.02"]) == [0] * ranks
    assert "resuming from" in said(tmp_path, tmp_path / "killed")
    assert any(name.endswith(".velocity") for name in weights(tmp_path / "calm"))
    same(tmp_path / "calm", tmp_path / "killed")


@pytest.mark.dist
def test_one_process_equals_two_ranks_of_ddp_and_of_fsdp(launch: Launch, tmp_path: Path) -> None:
    assert launch(tmp_path / "one") == [0]
    assert launch(tmp_path / "micro", sets=["training.micro_batch_size=2"]) == [0]
    assert launch(tmp_path / "ddp", 2) == [0, 0]
    assert launch(tmp_path / "ddp-micro", 2, ["training.micro_batch_size=2"]) == [0, 0]
    assert launch(tmp_path / "fsdp", 2, ["training.parallel=fsdp", "training.micro_batch_size=2"]) == [0, 0]
    one = weights(tmp_path / "one")
    for other in ("micro", "ddp", "ddp-micro", "fsdp"):
        for name, value in weights(tmp_path / other).items():
            torch.testing.assert_close(value, one[name], atol=2e-4, rtol=2e-3, msg=f"{other}: {name}")
        for mine, theirs in zip(curve(tmp_path / "one"), curve(tmp_path / other), strict=True):
            assert mine == pytest.approx(theirs, rel=1e-3), other


@pytest.mark.dist
def test_shards_learn_rows_of_both_kinds_as_one_process_does(launch: Launch, tmp_path: Path) -> None:
    """Of eight rows the last three are read left to right: the second rank has one row of the first kind."""
    shape = "{kind: llama, size: custom, depth: 1, width: 8, heads: 2, kv_heads: 1, mlp_width: 12}"
    sets = [f"model={shape}", "objective.ar_share=0.375", "training.steps=6", "training.validate_every=6"]
    assert launch(tmp_path / "one", sets=sets) == [0]
    assert launch(tmp_path / "fsdp", 2, [*sets, "training.parallel=fsdp"]) == [0, 0], said(tmp_path, tmp_path / "fsdp")
    one = weights(tmp_path / "one")
    for name, value in weights(tmp_path / "fsdp").items():
        torch.testing.assert_close(value, one[name], atol=2e-4, rtol=2e-3, msg=name)
    for mine, theirs in zip(curve(tmp_path / "one"), curve(tmp_path / "fsdp"), strict=True):
        assert mine == pytest.approx(theirs, rel=1e-3)


@pytest.mark.dist
@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_a_checkpoint_of_two_ranks_resumes_on_one_and_on_four(launch: Launch, tmp_path: Path, kind: str) -> None:
    assert launch(tmp_path / "whole", sets=["training.steps=12"]) == [0]
    assert launch(tmp_path / "whole") == [0]
    half = tmp_path / "half"
    assert launch(half, 2, [f"training.parallel={kind}", "training.steps=12"]) == [0, 0], said(tmp_path, half)
    for ranks in (1, 4):
        out = tmp_path / f"on-{ranks}"
        shutil.copytree(half, out)
        assert launch(out, ranks, [f"training.parallel={kind}"]) == [0] * ranks, said(tmp_path, out)
        assert "resuming from" in said(tmp_path, out)
        found, whole = weights(out), weights(tmp_path / "whole")
        assert found.keys() & whole.keys() >= set(load_file(half_weights(half)))
        for name in found.keys() & whole.keys():
            torch.testing.assert_close(found[name], whole[name], atol=2e-4, rtol=2e-3, msg=name)


def half_weights(run: Path) -> Path:
    return run / "checkpoints" / "step-00000012" / "model.safetensors"


@pytest.mark.dist
def test_nothing_in_a_checkpoint_is_a_pickle(launch: Launch, tmp_path: Path) -> None:
    out = tmp_path / "fsdp"
    assert launch(out, 2, ["training.parallel=fsdp", "training.steps=5"]) == [0, 0]
    files = [path for path in (out / "checkpoints").rglob("*") if path.is_file()]
    assert {path.suffix for path in files} == {".json", ".yaml", ".safetensors"}
    assert len(list((out / "checkpoints").rglob("resume/*.safetensors"))) == 2, "each rank writes its own shard"
