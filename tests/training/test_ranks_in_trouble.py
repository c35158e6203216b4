"""Several ranks and a harmed run folder: every rank hears of it, and none waits for the others."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from scdd.data.files import locked

from .conftest import Launch, said

pytestmark = pytest.mark.dist


def test_shards_on_a_full_disk_and_damaged_ones(launch: Launch, tmp_path: Path) -> None:
    out, fsdp = tmp_path / "run", ["training.parallel=fsdp"]
    assert launch(out, 2, ["training.steps=10", *fsdp]) == [0, 0]
    newest = out / "checkpoints" / "step-00000010"
    shards = sorted((newest / "resume").glob("shard-*.safetensors"))
    noted = json.loads((newest / "resume" / "digests.json").read_text())
    assert {f"resume/{shard.name}" for shard in shards} < noted.keys()

    quota = max(shard.stat().st_size for shard in shards) - 1000
    assert launch(out, 2, ["training.steps=11", *fsdp], quota=quota) == [2, 2]
    for rank in (0, 1):
        assert "step-00000011 could not be written (File too large): make room" in said(tmp_path, out, rank)
    assert sorted(path.name for path in (out / "checkpoints").iterdir()) == ["step-00000005", newest.name]

    content = bytearray(shards[1].read_bytes())
    content[-5] ^= 8
    shards[1].write_bytes(content)
    assert launch(out, 2, ["training.steps=11", *fsdp]) == [0, 0]
    assert f"{newest} is damaged (resume/{shards[1].name} has another checksum" in said(tmp_path, out)
    assert "Traceback" not in said(tmp_path, out) + said(tmp_path, out, 1)


def test_a_folder_in_use_is_told_on_every_rank_and_nothing_else_is_printed(launch: Launch, tmp_path: Path) -> None:
    out = tmp_path / "run"
    out.mkdir()
    with locked(out):
        assert launch(out, 2, ["training.parallel=ddp"]) == [2, 2]
    for rank in (0, 1):
        assert f"{out} is in use by another process" in said(tmp_path, out, rank)
        (tmp_path / f"{out.name}.{rank}").unlink()
    assert launch(out, 2, ["training.parallel=ddp", "training.steps=1"]) == [0, 0]
    assert said(tmp_path, out, 1) == "", "no warning from the second rank"
    assert "Warning" not in said(tmp_path, out)
