"""The cache of shards: never over its bound, shared by processes, and nothing rotten is read from it."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import fsspec
import pytest

from scdd.core.errors import UserError
from scdd.data.address import Address
from scdd.data.cache import ShardCache, Wanted
from scdd.data.manifest import ShardInfo
from tests.data.test_far import Watched

SIZE = 1000


@pytest.fixture
def shards() -> Iterator[list[Wanted]]:
    files = fsspec.filesystem("memory")
    for i in range(6):
        files.pipe_file(f"/far/{i}", content(i))
    yield [wanted(f"memory://far/{i}", content(i)) for i in range(6)]
    files.store.clear()


def content(number: int) -> bytes:
    return bytes([number]) * SIZE


def wanted(url: str, data: bytes) -> Wanted:
    digest = hashlib.blake2b(data, digest_size=32).hexdigest()
    return Wanted(Address(url), ShardInfo(url.rpartition("/")[2], 1, 1, len(data), digest))


def read(cache: ShardCache, shard: Wanted) -> bytes:
    with cache.opened(shard) as handle:
        return os.pread(handle, 10 * SIZE, 0)


def present(cache: ShardCache, shards: list[Wanted]) -> list[int]:
    return [i for i, shard in enumerate(shards) if (cache.folder / f"{shard.key}.bin").exists()]


def test_what_was_used_longest_ago_goes_first(tmp_path: Path, shards: list[Wanted]) -> None:
    cache = ShardCache(tmp_path, 3 * SIZE + 10)
    (tmp_path / "notes.txt").write_text("not a shard")
    for i in (0, 1, 2, 0, 3):
        assert read(cache, shards[i]) == content(i)
    assert present(cache, shards) == [0, 2, 3]
    cache.touched(shards[2])
    read(cache, shards[4])
    assert present(cache, shards) == [2, 3, 4]
    assert cache.used() == 3 * SIZE
    ShardCache(tmp_path, SIZE)  # a later run has less room
    assert present(cache, shards) == [4]
    assert (tmp_path / "notes.txt").exists(), "what is not a shard is nobody's to remove"


def test_what_is_being_read_stays(tmp_path: Path, shards: list[Wanted]) -> None:
    cache = ShardCache(tmp_path, SIZE)
    done = threading.Event()

    def other() -> None:
        read(cache, shards[1])
        done.set()

    with cache.opened(shards[0]) as handle:
        thread = threading.Thread(target=other)
        thread.start()
        assert not done.wait(0.2), "there is no room until the reader is done"
        assert present(cache, shards) == [0]
        assert os.pread(handle, SIZE, 0) == content(0)
    assert done.wait(10)
    thread.join()
    assert present(cache, shards) == [1]


def test_rotten_files_are_fetched_again(tmp_path: Path, shards: list[Wanted]) -> None:
    read(ShardCache(tmp_path, 3 * SIZE), shards[0])
    file = tmp_path / f"{shards[0].key}.bin"
    for harm in (b"\x07" + content(0)[1:], content(0)[:-1], b""):
        file.write_bytes(harm)
        later = ShardCache(tmp_path, 3 * SIZE)  # as another process has it
        assert read(later, shards[0]) == content(0)
        assert file.read_bytes() == content(0)


def test_a_shard_that_is_rotten_at_its_source_is_refused(tmp_path: Path, shards: list[Wanted]) -> None:
    cache = ShardCache(tmp_path, 3 * SIZE)
    for url, data, says in [
        ("memory://far/0", content(1), "is damaged"),
        ("memory://far/0", content(0)[:-1], "is damaged"),
        ("memory://far/none", content(0), "is missing"),
    ]:
        with pytest.raises(UserError, match=f"shard {url} {says}.*prepare the data again"):
            read(cache, wanted(url, data))
        assert cache.used() == 0, "and leaves nothing behind"


def test_a_fetch_that_was_killed_is_begun_anew(tmp_path: Path, shards: list[Wanted]) -> None:
    cache = ShardCache(tmp_path, 2 * SIZE)
    for i in (0, 1):
        (tmp_path / f"{shards[i].key}-{SIZE}.part").write_bytes(b"half of it")
    assert read(cache, shards[0]) == content(0)
    assert read(cache, shards[2]) == content(2), "what a killed one left goes before anything that can be used"
    assert present(cache, shards) == [0, 2]


def test_many_threads_share_room_for_two(tmp_path: Path, shards: list[Wanted]) -> None:
    cache = ShardCache(tmp_path, 2 * SIZE)
    with Watched(cache) as watched, ThreadPoolExecutor(6) as pool:
        turns = [i * j % 6 for i in range(1, 7) for j in range(20)]
        assert all(pool.map(lambda i: read(cache, shards[i]) == content(i), turns))
    assert SIZE <= watched.most <= 2 * SIZE


WORKER = """
import hashlib, os, sys, time
from pathlib import Path
import fsspec
from fsspec.implementations.local import LocalFileSystem
from scdd.data.address import Address
from scdd.data.cache import ShardCache, Wanted
from scdd.data.manifest import ShardInfo

class Slow(LocalFileSystem):  # a folder that goes by another name than file://, which would be a path
    protocol = "slow"
    def cat_file(self, *args, **more):
        time.sleep(0.002)
        return super().cat_file(*args, **more)

fsspec.register_implementation("slow", Slow)
cache = ShardCache(Path(sys.argv[1]), 2000)
print("ready", flush=True)
for turn in range(30):
    i = turn * int(sys.argv[3]) % 6
    content = bytes([i]) * 1000
    digest = hashlib.blake2b(content, digest_size=32).hexdigest()
    with cache.opened(Wanted(Address(f"slow://{sys.argv[2]}/{i}"), ShardInfo(str(i), 1, 1, 1000, digest))) as handle:
        assert os.pread(handle, 2000, 0) == content
"""


@pytest.mark.dist
def test_processes_share_it_and_may_be_killed(tmp_path: Path) -> None:
    far, cache = tmp_path / "far", ShardCache(tmp_path / "cache", 2 * SIZE)
    far.mkdir()
    for i in range(6):
        (far / str(i)).write_bytes(content(i))
    command = [sys.executable, "-c", WORKER, str(cache.folder), str(far)]
    with Watched(cache) as watched:
        workers = [subprocess.Popen([*command, str(i)], stdout=subprocess.PIPE, text=True) for i in (1, 5, 7)]
        victim: Any = workers[2]
        victim.stdout.readline()
        victim.kill()
        assert [worker.wait(60) for worker in workers] == [0, 0, -9]
    assert 0 < watched.most <= cache.bound
    for worker in workers:
        worker.communicate()


def test_a_folder_that_was_emptied_is_filled_again(tmp_path: Path, shards: list[Wanted]) -> None:
    cache = ShardCache(tmp_path / "cache", 2 * SIZE)
    read(cache, shards[0])
    shutil.rmtree(tmp_path / "cache")
    assert read(cache, shards[0]) == content(0)


def test_a_folder_that_cannot_be_used_is_named(tmp_path: Path, shards: list[Wanted]) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"^cache .*/file cannot be used .*choose a folder of a local disk"):
        ShardCache(tmp_path / "file", SIZE)
    cache = ShardCache(tmp_path / "cache", SIZE)
    with pytest.raises(UserError, match=r"cache_bytes is 1,000, and a shard has 1,001 bytes"):
        cache.require_room([ShardInfo("a", 1, 1, 1001, "")])
