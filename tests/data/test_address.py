"""Addresses: what is one, what people are shown of it, and what happens when a store is in trouble."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from scdd.core.errors import UserError
from scdd.data import address
from scdd.data.address import Address, has_secrets, is_address, place, without_secrets
from tests import s3_stand_in


@pytest.fixture(scope="module")
def running() -> Iterator[s3_stand_in.Store]:
    pytest.importorskip("s3fs")
    with s3_stand_in.running() as store:
        yield store


@pytest.fixture
def store(running: s3_stand_in.Store, monkeypatch: pytest.MonkeyPatch) -> s3_stand_in.Store:
    monkeypatch.setattr(address, "FIRST_PAUSE", 0.001)
    running.objects.clear()
    running.busy = running.cut = 0
    return running


def test_paths_and_addresses() -> None:
    assert place("data/mine") == Path("data/mine")
    assert place("file:///data/mine") == Path("/data/mine")
    assert place("s3://bucket/a") / "index.json" == Address("s3://bucket/a/index.json")
    assert not any(map(is_address, ("hf:owner/name", "C:/a", "/a://b", "a b://c")))
    file = Address("https://host/a/b.jsonl.gz?signature=1")
    assert (file.name, file.stem, file.suffix) == ("b.jsonl.gz", "b.jsonl", ".gz")


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("s3://key:secret@bucket/a", "s3://bucket/a"),
        ("https://host/a.txt?X-Amz-Signature=secret&b=1", "https://host/a.txt"),
        ("hf://datasets/me/name@main/a.txt", "hf://datasets/me/name@main/a.txt"),
        ("403 for ftp://me:secret@host/a?b=secret, really?", "403 for ftp://host/a really?"),
    ],
)
def test_nobody_sees_a_password(given: str, shown: str) -> None:
    assert without_secrets(given) == shown
    assert has_secrets(given) == (is_address(given) and given != shown)
    assert not has_secrets("a?b")


def sizes(folder: Address) -> dict[str, int]:
    return {name: about["size"] for name, about in folder.below().items()}


def test_a_store_is_read_and_written(store: s3_stand_in.Store) -> None:
    folder = place("s3://bucket/folder")
    assert isinstance(folder, Address)
    assert not folder.exists()
    (folder / "a.txt").write(b"0123", b"456789")
    (folder / "deep/b.bin").write(b"")
    assert store.objects == {"/bucket/folder/a.txt": b"0123456789", "/bucket/folder/deep/b.bin": b""}
    assert sizes(folder) == {"a.txt": 10, "deep/b.bin": 0}
    assert folder.is_dir()
    assert (folder / "a.txt").is_file()
    assert list(map(str, folder.rglob("*.bin"))) == ["s3://bucket/folder/deep/b.bin"]
    assert (folder / "a.txt").part(3, 7) == b"3456"
    assert (folder / "deep/b.bin").read(5) == b""
    with pytest.raises(ValueError, match="larger than"):
        (folder / "a.txt").read(9)
    with (folder / "a.txt").open() as file:
        file.seek(-3, 2)
        assert file.read() == b"789"
    plain = Address(f"{store.address}/bucket/folder/a.txt?signature=1")  # the same by https, as it were
    assert (plain.part(3, 7), plain.size(), plain.suffix) == (b"3456", 10, ".txt")
    assert not Address(f"{store.address}/bucket/folder/none").exists()
    before = (folder / "a.txt").version()
    (folder / "a.txt").write(b"other")
    assert (folder / "a.txt").version() not in ("", before)
    (folder / "a.txt").unlink()
    (folder / "a.txt").unlink(missing_ok=True)
    assert sizes(folder) == {"deep/b.bin": 0}


def test_trouble_that_passes_is_waited_out(store: s3_stand_in.Store) -> None:
    file = Address("s3://bucket/a.bin")
    content = bytes(range(256)) * 40
    file.write(content)
    store.cut = 2
    assert b"".join(file.chunks()) == content
    assert store.cut == 0
    store.busy = 2
    assert b"".join(file.chunks()) == content


class Trouble:
    """A file system whose every call fails in the same way."""

    def __init__(self, error: Exception) -> None:
        self.error, self.calls = error, 0

    def __getattr__(self, name: str) -> Any:
        def fail(*_: Any, **__: Any) -> None:
            self.calls += name != "invalidate_cache"
            if name != "invalidate_cache":
                raise self.error

        return fail


class NoCredentialsError(Exception):
    """As botocore has it."""


@pytest.mark.parametrize(
    ("error", "calls", "says"),
    [
        (
            TimeoutError("slow for https://me:secret@host/a?b=secret"),
            6,
            r"slow for https://host/a, 6 times\): check the n",
        ),
        (OSError(16, "SlowDown"), 6, r"SlowDown, 6 times\): check the network"),
        (PermissionError("Forbidden"), 1, r"\(Forbidden\): check the address and your credentials"),
        (NoCredentialsError("Unable to locate credentials"), 1, "check the address and your credentials"),
    ],
)
def test_trouble_that_stays_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, error: Exception, calls: int, says: str
) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(address.time, "sleep", pauses.append)
    trouble = Trouble(error)
    monkeypatch.setattr(Address, "files", lambda self: (trouble, "a"))
    with pytest.raises(UserError, match=rf"^s3://bucket/a cannot be read .*{says}") as caught:
        Address("s3://me:secret@bucket/a").exists()
    assert "secret" not in str(caught.value)
    assert trouble.calls == calls
    assert pauses == [1.0, 2.0, 4.0, 8.0, 16.0][: calls - 1]


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    known = import_module("fsspec.registry")._registry
    for protocol, package in (("gs", "gcsfs"), ("abfs", "adlfs")):
        monkeypatch.setitem(sys.modules, package, None)
        monkeypatch.delitem(known, protocol, raising=False)
    with pytest.raises(UserError, match=r"gs://bucket/a needs the gcsfs package: .*pip install -e '\.\[remote\]'"):
        place("gs://bucket/a").exists()
    with pytest.raises(UserError, match=r"abfs://bucket/a needs a package that is not installed \(Install adlfs"):
        place("abfs://bucket/a").exists()
    with pytest.raises(UserError, match=r"odd://a is no address that can be used .*begin it with s3://"):
        place("odd://a").exists()


def test_nothing_is_imported_for_paths() -> None:
    code = "import sys, scdd.data.shards, scdd.data.prepare; sys.exit(sorted({'fsspec', 's3fs', 'torch'} & set(sys.modules)) != [])"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
