"""Weights & Biases, offline, whatever version is installed."""

from __future__ import annotations

from pathlib import Path

import pytest

from scdd.core.errors import UserError
from scdd.lm.training import train

wandb = pytest.importorskip("wandb")
pytestmark = pytest.mark.filterwarnings("ignore")  # theirs
OVERRIDES = ["training.wandb=mine", "training.validate_batches=1"]


def test_an_offline_run_is_logged_and_resumed_under_one_id(
    recipe_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    out = tmp_path / "run"
    for steps in (3, 6):
        train(recipe_file, out, overrides=[*OVERRIDES, f"training.steps={steps}"], device="cpu", progress=False)
        known = (out / "wandb.id").read_text()
        logged = sorted((out / "wandb").glob("offline-run-*"))
        assert len(logged) == steps // 3
        assert all(folder.name.endswith(f"-{known}") for folder in logged)
        assert all(list(folder.glob("*.wandb")) for folder in logged)


def test_without_a_login_a_sentence_names_the_cure(
    recipe_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(**_: object) -> None:
        raise wandb.errors.UsageError("No API key configured.\nSee the docs.")

    monkeypatch.setattr(wandb, "init", refuse)
    with pytest.raises(
        UserError, match=r"^training\.wandb cannot start \(No API key configured\.\): .*WANDB_MODE=offline"
    ):
        train(recipe_file, tmp_path / "run", overrides=OVERRIDES, device="cpu", progress=False)
    assert not (tmp_path / "run" / "wandb.id").exists()
