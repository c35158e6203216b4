"""`scdd reproduce --ray`: the parts of a plan as tasks of a cluster, with the numbers that one process gives."""

from __future__ import annotations

from pathlib import Path

import pytest

from scdd.cli.main import main
from scdd.cluster.pool import RayPool
from scdd.reproduce.run import run
from tests.reproduce.test_run import Serial, results, tasks_of


@pytest.mark.dist
@pytest.mark.slow
def test_parts_as_tasks(ray_address: str, tmp_path: Path) -> None:
    summary = run(tasks_of(tmp_path / "ray"), RayPool(ray_address, 2))
    assert not summary.failed
    assert len(summary.finished) == 7
    run(tasks_of(tmp_path / "here"), Serial())
    assert results(tmp_path / "ray") == results(tmp_path / "here")
    assert tasks_of(tmp_path / "ray") == []


def test_what_does_not_go_together(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "toy", "--out", str(tmp_path), "--ray", "--minutes", "3"]) == 2
    assert "leave it out with --ray" in capsys.readouterr().err
