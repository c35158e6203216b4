"""Training from an object store is training from the disk, bit for bit: killed, gone on with, with little room."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from scdd.data.address import Address
from scdd.data.cache import ShardCache
from scdd.data.prepare import Preparation, prepare
from scdd.data.shards import Shards
from tests import s3_stand_in
from tests.data.test_far import Watched

from .conftest import Launch, said
from .test_resume import same


@contextmanager
def moto(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    server = pytest.importorskip("moto.server", reason="needs moto[s3], flask and flask-cors").ThreadedMotoServer(
        port=0
    )
    server.start()
    address = "http://{}:{}".format(*server.get_host_and_port())
    environment = {**s3_stand_in.KEYS, "AWS_ENDPOINT_URL": address}
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    import boto3

    boto3.client("s3").create_bucket(Bucket="bucket")
    try:
        yield environment
    finally:
        server.stop()


@pytest.fixture(params=["stand-in", "moto"])
def environment(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """What a process needs to find an object store of this machine."""
    s3fs = pytest.importorskip("s3fs")
    s3fs.S3FileSystem.clear_instance_cache()  # which know another server
    if request.param == "moto":
        with moto(monkeypatch) as found:
            yield found
    else:
        with s3_stand_in.running() as store:
            yield store.environment
    s3fs.S3FileSystem.clear_instance_cache()


@pytest.mark.dist
def test_a_run_from_a_store_is_killed_and_ends_with_the_same_bits(
    launch: Launch, text: Path, tmp_path: Path, environment: dict[str, str]
) -> None:
    near, far, own = tmp_path / "near", "s3://bucket/shards", ShardCache(tmp_path / "cache", 1)
    for out in (near, far):
        list(prepare(Preparation([str(text)], out, train_tokenizer=280, shard_tokens=900, valid_fraction=0.2)))
    assert {path.name for path in Address(far).iterdir()} == {path.name for path in near.iterdir()}
    assert all((Address(far) / path.name).read(1 << 20) == path.read_bytes() for path in near.iterdir())
    sizes = sorted(shard.size for shard in Shards(near).info.shards)
    own.bound = sizes[-1] + sizes[-2]
    assert len(sizes) > 3

    def sets(place: Any) -> list[str]:
        data = f"kind: shards, path: '{place}', length: 16, window: 2, cache: {own.folder}, cache_bytes: {own.bound}"
        return [f"data={{{data}}}", "training.steps=40"]

    assert launch(tmp_path / "calm", 1, sets(near)) == [0]
    how: dict[str, Any] = {"environment": environment, "imports": ["s3fs"]}
    killed = tmp_path / "killed"
    with Watched(own) as watched:
        for operation in (9, 23):
            assert launch(killed, 1, sets(far), operation=operation, **how) == [-signal.SIGKILL]
        seen = str(killed / "checkpoints" / "step-00000025")  # and then between two steps, wherever it is
        assert launch(killed, 1, sets(far), signal=[seen, signal.SIGKILL], **how) == [-signal.SIGKILL]
        less = [*sets(far), f"data.cache_bytes={own.bound - 1}"]  # which may change, as the rest of the data may not
        assert launch(killed, 1, less, **how) == [0], said(tmp_path, killed)
    same(tmp_path / "calm", killed)
    assert "resuming from" in said(tmp_path, killed)
    assert 0 < watched.most <= own.bound
