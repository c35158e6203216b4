"""A rank that does not get on is named, by another, and all end with a status of their own."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from scdd.training.watchdog import STUCK, Place, verdict

from .conftest import Launch, said


def stuck(launch: Launch, out: Path, behind: int, how: str) -> None:
    """A run on two ranks, of which one does not get on; it is over within seconds of the limit, which is 1.5."""
    start, sets = time.monotonic(), ["training.watchdog=1.5", "training.save_every=50", "training.validate_every=50"]
    codes = launch(out, 2, sets, call="hanging", how=how, behind=behind)
    assert STUCK in codes
    assert 0 not in codes
    assert time.monotonic() - start < 30


@pytest.mark.dist
@pytest.mark.parametrize("how", ["slow data", "stopped"])
def test_the_rank_behind_is_named_and_the_run_ends(launch: Launch, tmp_path: Path, how: str) -> None:
    """The second of two ranks waits for data for ever, or its process is stopped and cannot say anything."""
    out = tmp_path / "run"
    stuck(launch, out, 1, how)
    said_by_main = said(tmp_path, out)
    [line] = [line for line in said_by_main.splitlines() if "nothing moves" in line]
    assert "watchdog: nothing moves (behind: rank 1 is at step " in line
    assert " in data for " in line or how == "stopped"  # at whatever moment
    assert "The others wait, at step " in line
    assert ("does not answer" in line) == (how == "stopped")
    assert f"ending with status {STUCK}" in line
    assert "trainer.py" in said_by_main, "the stacks"
    if how != "stopped":
        assert "watchdog: rank 1 is at step " in said(tmp_path, out, 1)
        assert "loader.py" in said(tmp_path, out, 1)


@pytest.mark.slow
@pytest.mark.dist
def test_a_rank_whose_store_is_stopped_ends_as_well(launch: Launch, tmp_path: Path) -> None:
    """Rank 0 keeps the store where no torchrun does."""
    out = tmp_path / "run"
    stuck(launch, out, 0, "stopped")
    assert "rank 0, which would name the ranks behind, does not answer" in said(tmp_path, out, 1)


def test_who_is_behind() -> None:
    waits = Place(7, "backward", 31.0)
    assert verdict({0: waits, 1: Place(7, "data", 30.0)}).startswith(
        "behind: rank 1 is at step 8 in data for 30 s. The others"
    )
    assert verdict({0: Place(8, "data", 1.0), 1: waits}).startswith("behind: rank 1 is at step 8 in backward"), (
        "step first"
    )
    assert verdict({0: waits, 1: waits}).startswith("all 2 ranks are at step 8 in backward for 31 s: a collective")
    silent = waits._replace(answers=False)
    assert verdict({0: Place(7, "data", 9.0), 1: waits, 2: silent}).startswith("behind: rank 2 is"), (
        "silence is telling"
    )
    crowd = {rank: Place(7, "data", 9.0) for rank in range(12)}
    assert "; and 4 more. The others" in verdict({**crowd, 12: waits})
