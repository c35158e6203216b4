"""Shards from far away, kept in a folder of this machine that never holds more than so many bytes.

Several processes share the folder. A short lock on the folder guards who is in and who goes; fetching happens outside of it, into
a file whose full size counts from the start. A file is pinned (a shared lock of its own) only while something is read from it,
so that whoever waits for room never waits for one who waits for him. All locks die with their process.

A file is named by its checksum, is compared with it when it arrives, and again before the first use in each process.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from scdd.core.errors import UserError
from scdd.data.address import Address
from scdd.data.manifest import CURE, ShardInfo

_LOCK, _READY, _PART = "lock", ".bin", ".part"
_OURS = re.compile(r"[0-9a-f]{32}(\.bin|-(\d+)\.part)")
_HERE = os.O_NOFOLLOW  # in a folder that others write to, a link would lead elsewhere
_FETCHES = 3  # of a shard whose bytes are not those of the manifest
_POLL = 0.02  # seconds between looks at what another process does


class Wanted(NamedTuple):
    """A shard, and where it is fetched from."""

    address: Address
    info: ShardInfo

    @property
    def key(self) -> str:
        """Its name in the cache, whatever the manifest calls it."""
        return hashlib.blake2b(f"{self.info.blake2b} {self.info.size}".encode(), digest_size=16).hexdigest()


@dataclass
class ShardCache:
    """The folder; `bound` is the most bytes that its files may have together, those that are being fetched included."""

    folder: Path
    bound: int
    _checked: set[tuple[str, int]] = field(default_factory=set, repr=False)  # (key, inode) that this process has read

    def __post_init__(self) -> None:
        try:
            with self._alone():
                self._make_room()  # an earlier run may have had more
        except OSError as error:
            raise UserError(
                f"cache {self.folder} cannot be used ({error.strerror}): choose a folder of a local disk.", "cache"
            ) from error

    def require_room(self, shards: list[ShardInfo]) -> None:
        """Refuse a bound below the largest shard."""
        largest = max((shard.size for shard in shards), default=0)
        if largest > self.bound:
            raise UserError(
                f"cache_bytes is {self.bound:,}, and a shard has {largest:,} bytes: choose room for two shards or more, or "
                "prepare the data in smaller ones.",
                "cache_bytes",
            )

    @contextlib.contextmanager
    def opened(self, wanted: Wanted) -> Iterator[int]:
        """A file descriptor of the shard, fetched if need be, which nobody removes meanwhile."""
        handle = self._pinned(wanted)
        try:
            yield handle
        finally:
            os.close(handle)

    def fetched(self, wanted: Wanted) -> None:
        """Have the shard here, checked: what is read next does not wait."""
        with self.opened(wanted):
            pass

    def touched(self, wanted: Wanted) -> None:
        """Note the shard as used last, if it is here: it will be needed before others."""
        with contextlib.suppress(OSError):
            os.utime(self._path(wanted))

    def used(self) -> int:
        """Bytes that are taken, or promised to what is being fetched."""
        return sum(map(_size, self._files()))

    def _files(self) -> list[Path]:
        """Shards and what is being fetched; what else lies in the folder is not ours."""
        return [path for path in self.folder.iterdir() if _OURS.fullmatch(path.name)]

    def _pinned(self, wanted: Wanted) -> int:
        for _ in range(_FETCHES):
            handle, fresh = self._present_or_fetched(wanted)
            if fresh or self._sound(wanted, handle):
                return handle
            with self._alone():  # rotten: the next turn fetches it again
                path = self._path(wanted)
                if _same(path, handle):
                    path.unlink()
            os.close(handle)
        raise UserError(f"shard {wanted.address} is damaged (its checksum differs again and again): {CURE}.")

    def _present_or_fetched(self, wanted: Wanted) -> tuple[int, bool]:
        """(The pinned file, whether it was fetched and checked just now)."""
        while True:
            if (handle := self._hold(wanted)) is not None:
                return handle, False
            with self._alone():
                if self._path(wanted).exists():
                    continue  # it has just come
                part = self._reserved(wanted)
            if part is not None:
                break
            time.sleep(_POLL)  # another one fetches it, or all room is taken by what others fetch and read right now
        try:
            self._fetch(wanted, part)
        except BaseException:
            with self._alone():
                self._part(wanted).unlink(missing_ok=True)
            os.close(part)
            raise
        with self._alone():
            os.rename(self._part(wanted), self._path(wanted))
            fcntl.flock(part, fcntl.LOCK_SH)  # pinned; nobody removes it between the two locks
            self._checked.add((wanted.key, os.fstat(part).st_ino))
        return part, True

    def _hold(self, wanted: Wanted) -> int | None:
        """The file that is there, pinned and noted as used last."""
        try:
            handle = os.open(self._path(wanted), os.O_RDONLY)
        except FileNotFoundError:
            return None
        fcntl.flock(handle, fcntl.LOCK_SH)
        if not os.fstat(handle).st_nlink:  # removed before it was pinned
            os.close(handle)
            return None
        with contextlib.suppress(OSError):
            os.utime(handle)
        return handle

    def _reserved(self, wanted: Wanted) -> int | None:
        """A file to fetch into, with room for it; None where it must be waited for."""
        path = self._part(wanted)
        handle = os.open(path, os.O_RDWR | os.O_CREAT | _HERE, 0o666)
        if not _taken(handle):
            os.close(handle)
            return None
        os.truncate(handle, 0)  # of one that was killed
        if self._make_room():
            return handle
        path.unlink()
        os.close(handle)
        return None

    def _make_room(self) -> bool:
        """Remove what was used longest ago, and what killed ones left, until all promises can be kept."""
        over = self.used() - self.bound
        files = [(path.suffix == _READY, _time(path), path) for path in self._files()]
        for _, _, path in sorted(files):
            if over <= 0:
                break
            with contextlib.suppress(OSError):  # gone meanwhile, or of somebody else's
                handle, size = os.open(path, os.O_RDONLY), _size(path)
                try:
                    if _taken(handle):
                        path.unlink()
                        over -= size
                finally:
                    os.close(handle)
        return over <= 0

    def _fetch(self, wanted: Wanted, part: int) -> None:
        for _ in range(_FETCHES):
            digest, size = hashlib.blake2b(digest_size=32), 0
            os.ftruncate(part, 0)
            try:
                for chunk in wanted.address.chunks():
                    size += len(chunk)
                    if size > wanted.info.size:
                        break  # no more than was promised is written
                    digest.update(chunk)
                    self._write(part, chunk, size - len(chunk))
            except FileNotFoundError as error:
                raise UserError(f"shard {wanted.address} is missing: {CURE}.") from error
            if size == wanted.info.size and digest.hexdigest() == wanted.info.blake2b:
                return
        raise UserError(f"shard {wanted.address} is damaged (its checksum differs): {CURE}.")

    def _write(self, part: int, chunk: bytes, at: int) -> None:
        view = memoryview(chunk)
        try:
            while view:
                count = os.pwrite(part, view, at)
                view, at = view[count:], at + count
        except OSError as error:
            raise UserError(
                f"cache {self.folder} cannot be written ({error.strerror}): make room there, choose fewer cache_bytes, or "
                "another folder.",
                "cache",
            ) from error

    def _sound(self, wanted: Wanted, handle: int) -> bool:
        """Whether the bytes are the manifest's; read once in a process."""
        known = wanted.key, os.fstat(handle).st_ino
        if known in self._checked:
            return True
        digest, at = hashlib.blake2b(digest_size=32), 0
        while chunk := os.pread(handle, 1 << 22, at):
            digest.update(chunk)
            at += len(chunk)
        if digest.hexdigest() != wanted.info.blake2b:
            return False
        self._checked.add(known)
        return True

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """No other thread or process looks, evicts or renames meanwhile; held for moments."""
        self.folder.mkdir(parents=True, exist_ok=True)  # people empty caches
        handle = os.open(self.folder / _LOCK, os.O_RDWR | os.O_CREAT | _HERE, 0o666)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)

    def _path(self, wanted: Wanted) -> Path:
        return self.folder / f"{wanted.key}{_READY}"

    def _part(self, wanted: Wanted) -> Path:
        return self.folder / f"{wanted.key}-{wanted.info.size}{_PART}"


def _size(path: Path) -> int:
    """Bytes that a file of the cache takes or will take."""
    if path.suffix == _PART:
        return int(path.stem.rpartition("-")[2])
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _time(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except FileNotFoundError:
        return 0


def _taken(handle: int) -> bool:
    """Take a file's lock, if nobody has it."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _same(path: Path, handle: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(handle))
    except FileNotFoundError:
        return False
