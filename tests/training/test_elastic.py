"""A run that loses a rank or a node goes on by itself, on as many ranks as there are."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from .conftest import Launch, curve, said

pytestmark = pytest.mark.dist
SETS = ["training.steps=12", "training.save_every=4", "training.validate_every=12", "training.log_every=2"]


def alike(one: Path, other: Path) -> None:
    for mine, theirs in zip(curve(one), curve(other), strict=True):
        assert mine == pytest.approx(theirs, rel=1e-3)


@pytest.fixture
def calm(launch: Launch, tmp_path: Path) -> Path:
    assert launch(tmp_path / "calm", sets=SETS) == [0]
    return tmp_path / "calm"


def test_two_nodes_of_which_one_loses_a_rank_go_on_by_themselves(launch: Launch, tmp_path: Path, calm: Path) -> None:
    out = tmp_path / "killed"
    began = time.monotonic()
    sets = [*SETS, "training.parallel=hsdp"]
    codes = launch(out, 4, sets, nodes=2, hook=["hooks:die_in_step", 2, 9])
    print(time.monotonic() - began)
    assert codes == [0, 0], said(tmp_path, out)
    assert said(tmp_path, out).count("resuming from") == 1
    assert "step-00000008" in said(tmp_path, out)
    alike(calm, out)
