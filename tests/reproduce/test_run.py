"""Running it: killed at any point it goes on and ends with the same numbers; one part's failure keeps no other back."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from scdd.core.errors import UserError
from scdd.reproduce.expand import all_parts
from scdd.reproduce.parts import NO_CHOICES, corpus_path
from scdd.reproduce.processes import LocalProcesses
from scdd.reproduce.records import Records
from scdd.reproduce.run import Outcome, Task, execute, group, run
from scdd.reproduce.work import Place
from tests.reproduce.test_parts import scale


class Serial:
    """An executor in this process."""

    def map(self, function: Callable[[Any], Any], items: Iterable[Any]) -> Iterator[Any]:
        return map(function, items)


def tasks_of(out: Path, *swaps: tuple[str, str]) -> list[Task]:
    plan = scale(*swaps)
    parts = all_parts(plan, out)
    place = Place(out, corpus_path(plan, out, NO_CHOICES))
    return group(Records(out).unfinished(parts), place)


def results(out: Path) -> dict[str, Any]:
    return {one.name: (one.result, one.made.get("weights")) for one in Records(out).read().values()}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nobody disturbed."""
    out = tmp_path_factory.mktemp("whole")
    summary = run(tasks_of(out), Serial())
    assert not summary.failed
    assert not summary.left
    assert len(summary.finished) == 7
    return out


def test_nothing_is_done_twice(whole: Path) -> None:
    assert tasks_of(whole) == []
    more = tasks_of(whole, ("counts: [3]", "counts: [3, 5]"))
    assert [part.name for task in more for part in task.parts] == ["measure/recovery/SCDD/seed-0/ours/k-5"]


def test_one_file_has_the_records_after_every_task(whole: Path, tmp_path: Path) -> None:
    """What is brought home from a machine that was taken away before the end."""
    lines: list[int] = []

    def look(_: str) -> None:
        lines.append(len((tmp_path / "records.jsonl").read_text().splitlines()))

    summary = run(tasks_of(tmp_path), Serial(), look)
    assert lines[0] > 0
    assert lines == sorted(lines)
    assert lines[-1] == len(summary.finished) == len(Records(whole).read())


@pytest.mark.dist
@pytest.mark.skipif(sys.platform == "win32", reason="needs SIGKILL")
def test_killed_at_any_point_it_ends_with_the_same_numbers(whole: Path, tmp_path: Path) -> None:
    """SIGKILL of the command inside the training and among the measurements: its processes die with it, and nothing is lost."""
    out = tmp_path / "out"
    for moment, finished in (("step 15", {"data"}), ("likelihood", {"data", "train", "likelihood"})):
        killed = subprocess.run([sys.executable, "-m", "tests.reproduce.killed", str(out), moment], check=False)
        assert killed.returncode == -signal.SIGKILL
        assert {one.kind for one in Records(out).read().values()} == finished
        if moment == "step 15":
            assert any((out / "runs").rglob("checkpoints/step-*10")), "it goes on from here"
    before = {path: path.stat().st_mtime_ns for path in (out / "records").glob("*.json")}
    summary = run(tasks_of(out), Serial())
    assert len(summary.finished) == 4
    assert results(out) == results(whole)
    assert all(path.stat().st_mtime_ns == made for path, made in before.items()), "none of these was done again"
    assert not (out / "survived").exists()


def test_a_failing_part_keeps_no_other_back(whole: Path) -> None:
    """A wrong option fails one measurement, with a sentence and a log; the others are there."""
    swap = ("  - {kind: recovery, counts: [3], rows: 4}", "  - {kind: recovery, counts: [300, 4], rows: 4}")
    told: list[str] = []
    summary = run(tasks_of(whole, swap), Serial(), told.append)
    [(name, why, log)] = summary.failed
    assert name == "measure/recovery/SCDD/seed-0/ours/k-300"
    assert "300 tokens are to be corrupted" in why
    assert why in log.read_text()
    assert summary.finished == ["measure/recovery/SCDD/seed-0/ours/k-4"]
    assert told == [line for line in told if line.startswith("measure/scdd/seed-0: 1 of 2 parts")]


def test_what_needs_a_failed_part_waits(tmp_path: Path) -> None:
    tasks = tasks_of(tmp_path, ("{recipe: nano}", "{recipe: nano, changes: [training.start_from=nowhere]}"))
    summary = run(tasks, Serial())
    assert summary.finished == ["data"]
    assert [name for name, _, _ in summary.failed] == ["train/scdd/seed-0"]
    assert len(summary.left) == 5


class Broken:
    """A cluster that gives up, or loses everything."""

    def __init__(self, error: Exception | None) -> None:
        self.error = error

    def map(self, function: Callable[[Any], Any], items: Iterable[Any]) -> Iterator[Any]:
        if self.error:
            raise self.error
        return iter(())


@pytest.mark.parametrize(("error", "told"), [(UserError("no cluster"), "no cluster"), (None, "ended without a word")])
def test_an_executor_that_gives_up_is_told(error: Exception | None, told: str, tmp_path: Path) -> None:
    summary = run(tasks_of(tmp_path), Broken(error))
    assert told in summary.failed[0][1]
    assert len(summary.left) == 6


def double(item: int) -> tuple[int, str, int]:
    if item == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return 2 * item, os.environ.get("CUDA_VISIBLE_DEVICES", ""), os.getpid()


def spoilt(item: int) -> Outcome:
    return Outcome(str(os.getpid()), (), {}, spoilt=True)


def endless(item: int) -> str:
    assert signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, []), "Ctrl-C is for the command, which asks once"
    try:
        time.sleep(60)
    except KeyboardInterrupt:
        return "stopped"
    return "slept"


@pytest.mark.dist
@pytest.mark.skipif(sys.platform == "win32", reason="needs signals")
def test_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process a GPU, which does one item after the other; one that dies takes its item with it; time is kept."""
    with LocalProcesses(gpus=["4", "7"]) as processes:
        found = list(processes.map(double, range(6)))
        assert sorted(value for value, _, _ in found) == [0, 2, 4, 8, 10]
        assert {gpu for _, gpu, _ in found} == {"4", "7"}
        pids = {pid for _, _, pid in found}
        assert 2 <= len(pids) <= 3, "the one that died was replaced"
        assert {pid for _, _, pid in processes.map(double, [7, 8, 9])} & pids, "they last"
    assert not processes.late
    assert processes.died == [3]
    assert not multiprocessing.active_children()
    assert len({outcome.task for outcome in LocalProcesses(1).map(spoilt, range(2))}) == 2, "its GPU answers no more"
    late = LocalProcesses(1, seconds=1.0)
    assert list(late.map(endless, range(3))) == ["stopped"]
    assert late.late
    short = LocalProcesses(1, seconds=60.0, expected=lambda item: 30.0 * item)
    assert [value for value, _, _ in short.map(double, [1, 5, 4, 0])] == [2, 0], "what would not end is not begun"
    assert short.late


def test_runs_are_measured_and_dropped(whole: Path, tmp_path: Path) -> None:
    """The same numbers, and no weights; asked for more, a run is trained again."""
    tasks = group(
        [part for task in tasks_of(tmp_path) for part in task.parts], Place(tmp_path, str(tmp_path / "data")), True
    )
    assert [task.name for task in tasks] == ["data", "scdd/seed-0"]
    assert not run(tasks, Serial()).failed
    disturbed = results(whole)
    assert all(disturbed[name] == found for name, found in results(tmp_path).items())
    assert not list(tmp_path.rglob("*.safetensors"))
    assert tasks_of(tmp_path) == []
    more = tasks_of(tmp_path, ("counts: [3]", "counts: [3, 5]"))
    assert [part.name for task in more for part in task.parts] == [
        "train/scdd/seed-0",
        "measure/recovery/SCDD/seed-0/ours/k-5",
    ]


def test_a_task_is_done_in_its_own_log(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    [first, *_] = tasks_of(tmp_path)
    outcome = execute(first)
    assert outcome.finished == ("data",)
    assert first.log.read_text().startswith("== data")
    assert capfd.readouterr().err == ""
