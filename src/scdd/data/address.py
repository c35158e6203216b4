"""Where data lies: a path of this machine, or an address that fsspec knows (s3://, gs://, hf://, memory://, https://).

An `Address` answers to as much of `pathlib.Path` as prepared data and its sources need. What may pass (a connection that
breaks, a store that is busy) is tried again; what does not becomes one sentence. Credentials come from the store's own places
(environment, configuration files), and what a message shows has neither user:password nor query.
"""

from __future__ import annotations

import errno
import fnmatch
import io
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, Literal, TypeVar

from scdd.core.errors import UserError, missing_extra, reason

ATTEMPTS, FIRST_PAUSE = 6, 1.0  # each pause is twice the one before it: half a minute in all
CHUNK = 8 << 20  # bytes of a request
_ADDRESS = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_SECRETS = re.compile(r"(?<=://)[^/\s@]*@|\?[^\s'\"<>)]*")
_WHOLE = frozenset(("s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "oss", "oci", "hf", "memory"))
"""Stores in which an object appears whole or not at all; elsewhere it is written under another name and moved."""
_PACKAGES = {"s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "http": "aiohttp", "https": "aiohttp"}
"""What the extra "remote" brings."""
_FINAL = (FileNotFoundError, PermissionError, NotADirectoryError, IsADirectoryError, NotImplementedError)
_FINAL_NAMES = re.compile("Credential|Token|Validation")  # of exceptions of the stores' own packages
_VERSIONS = ("ETag", "etag", "mtime", "LastModified", "last_modified", "updated", "blob_id", "created")
T = TypeVar("T")


def is_address(text: object) -> bool:
    """Whether it is meant for fsspec: `name://…`."""
    return _ADDRESS.match(str(text)) is not None


def has_secrets(address: str) -> bool:
    """Whether an address holds user:password or a query, which others must not see."""
    return is_address(address) and without_secrets(address) != address


def without_secrets(text: str) -> str:
    """A text whose addresses have lost user:password and query."""
    words = re.split(r"(\s+)", text)
    return "".join(_SECRETS.sub("", word) if "://" in word else word for word in words)


@dataclass(frozen=True)
class Address:
    """A file or folder that fsspec reaches. `str()` is what people are shown."""

    url: str
    about: dict[str, Any] | None = field(default=None, compare=False, repr=False)
    """What a listing said of it: for files that are read and not written."""

    def __str__(self) -> str:
        return without_secrets(self.url)

    def __truediv__(self, name: str) -> Address:
        return Address(f"{self.url.rstrip('/')}/{name}")

    @property
    def protocol(self) -> str:
        """What stands before ://."""
        found = _ADDRESS.match(self.url)
        return found[1].lower() if found else ""

    @property
    def name(self) -> str:
        """The last part, without a query."""
        return PurePosixPath(str(self)).name

    @property
    def stem(self) -> str:
        """`name` without its last ending."""
        return PurePosixPath(self.name).stem

    @property
    def suffix(self) -> str:
        """The last ending of `name`."""
        return PurePosixPath(self.name).suffix

    def resolve(self) -> Address:
        """Itself: there are no links."""
        return self

    # -- reading ------------------------------------------------------------------------------------------------

    def info(self) -> dict[str, Any] | None:
        """What the store says of it; None where there is nothing."""

        def look(files: Any, path: str) -> dict[str, Any]:
            files.invalidate_cache()  # listings are kept, and others write there, too
            return dict(files.info(path))

        try:
            return self.tried("read", look)
        except FileNotFoundError:
            return None

    def exists(self) -> bool:
        """Whether there is such a file, or anything below such a folder."""
        return self.info() is not None

    def is_file(self) -> bool:
        """Whether it is a file."""
        return (self.info() or {}).get("type") == "file"

    def is_dir(self) -> bool:
        """Whether anything lies below it."""
        return (self.info() or {}).get("type") == "directory"

    def size(self) -> int:
        """Bytes of the file; FileNotFoundError where there is none."""
        found = self.about or self.info()
        if found is None:
            raise FileNotFoundError(errno.ENOENT, "there is no such file", str(self))
        if not isinstance(found.get("size"), int):
            raise UserError(f"{self} does not say how large it is, so it cannot be read in parts: fetch it first.")
        return int(found["size"])

    def version(self) -> str:
        """What changes with its content, as far as the store says."""
        found = self.about or self.info() or {}
        return next((str(found[name]) for name in _VERSIONS if found.get(name)), "")

    def part(self, start: int, stop: int) -> bytes:
        """Bytes start … stop − 1, all of them."""
        if start >= stop:
            return b""

        def fetch(files: Any, path: str) -> bytes:
            found = bytes(files.cat_file(path, start=start, end=stop))
            if len(found) != stop - start:
                raise OSError(f"{len(found)} bytes came where {stop - start} were asked for")
            return found

        return self.tried("read", fetch)

    def chunks(self) -> Iterator[bytes]:
        """All of its bytes, in pieces of CHUNK."""
        size = self.size()
        for start in range(0, size, CHUNK):
            yield self.part(start, min(start + CHUNK, size))

    def read(self, limit: int) -> bytes:
        """A small file, whole; ValueError where it is larger than `limit`."""
        size = self.size()
        if size > limit:
            raise ValueError(f"it is larger than {limit >> 20} MiB")
        return self.part(0, size)

    def open(self, mode: Literal["rb"] = "rb", buffering: int = CHUNK) -> io.BufferedReader:
        """Its bytes as a stream, which can be moved in; `buffering` bytes are asked for at least."""
        return io.BufferedReader(_Ranges(self), buffering)

    def below(self) -> dict[str, dict[str, Any]]:
        """Names of all files below this folder, relative to it, with what the store says of each."""

        def look(files: Any, path: str) -> dict[str, dict[str, Any]]:
            files.invalidate_cache()
            found = files.find(path, detail=True)
            return {name[len(path) :].lstrip("/"): dict(about) for name, about in found.items()}

        try:
            return self.tried("listed", look)
        except FileNotFoundError:
            return {}

    def rglob(self, pattern: str) -> list[Address]:
        """All files below whose last part is of the pattern."""
        found = sorted(self.below().items())
        named = [(name, about) for name, about in found if fnmatch.fnmatch(PurePosixPath(name).name, pattern)]
        return [Address((self / name).url, about) for name, about in named]

    def glob(self, pattern: str) -> list[Address]:
        """Files right below it of the pattern."""
        return [self / name for name in sorted(self.below()) if "/" not in name and fnmatch.fnmatch(name, pattern)]

    def iterdir(self) -> Iterator[Address]:
        """Files below it."""
        return iter(self.rglob("*"))

    # -- writing ------------------------------------------------------------------------------------------------

    def write(self, *pieces: bytes | memoryview) -> None:
        """The file with these bytes, whole or not at all."""
        content = b"".join(pieces)

        def put(files: Any, path: str) -> None:
            target = path if self.protocol in _WHOLE else f"{path}.writing"
            if target != path:
                files.makedirs(path.rpartition("/")[0], exist_ok=True)
            files.pipe_file(target, content)
            if target != path:
                files.mv(target, path)
            files.invalidate_cache()
            if (size := files.info(path).get("size")) != len(content):
                raise OSError(f"{size} bytes arrived of {len(content)}")

        try:
            self.tried("written", put)
        except FileNotFoundError as error:
            raise UserError(f"{self} cannot be written (there is no such bucket or folder): make it first.") from error

    def unlink(self, missing_ok: bool = False) -> None:
        """Remove the file."""
        try:
            self.tried("removed", lambda files, path: files.rm_file(path))
        except FileNotFoundError:
            if not missing_ok:
                raise

    def rmdir(self) -> None:
        """Nothing to do: stores have no empty folders."""

    # -- fsspec -------------------------------------------------------------------------------------------------

    def files(self) -> tuple[Any, str]:
        """(The file system, what it calls this place)."""
        import fsspec

        try:
            files, path = fsspec.core.url_to_fs(self.url)
        except ImportError as error:
            package = _PACKAGES.get(self.protocol)
            if package is not None:
                raise UserError(missing_extra(f"{self} needs the {package} package", "remote")) from error
            raise UserError(
                f"{self} needs a package that is not installed ({reason(error)}): install it, or give a path."
            ) from error
        except Exception as error:
            known = "s3://, gs://, hf://, https://, memory:// or file://"
            raise UserError(
                f"{self} is no address that can be used ({without_secrets(reason(error))}): begin it with {known}, or give a path."
            ) from error
        return files, path

    def tried(self, verb: str, work: Callable[[Any, str], T]) -> T:
        """work(file system, path), again while it fails for reasons that may pass. FileNotFoundError is handed on."""
        files, path = self.files()
        for attempt in range(1, ATTEMPTS + 1):
            try:
                return work(files, path)
            except UserError:
                raise
            except Exception as error:
                if isinstance(error, FileNotFoundError):
                    raise
                final = isinstance(error, _FINAL) or _FINAL_NAMES.search(type(error).__name__) is not None
                if final or attempt == ATTEMPTS:
                    tries = "" if final else f", {attempt} times"
                    cure = (
                        "check the address and your credentials for it"
                        if final
                        else "check the network, then try again"
                    )
                    why = without_secrets(reason(error))
                    raise UserError(f"{self} cannot be {verb} ({why}{tries}): {cure}.") from error
            time.sleep(FIRST_PAUSE * 2 ** (attempt - 1))
        raise AssertionError("unreachable")


class _Ranges(io.RawIOBase):
    """A file read by requests for its parts, each of which is tried again by itself."""

    def __init__(self, address: Address) -> None:
        self.name = str(address)
        self._address, self._size, self._at = address, address.size(), 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = max(0, base + offset)
        return self._at

    def readinto(self, buffer: Any) -> int:
        found = self._address.part(self._at, min(self._at + min(len(buffer), CHUNK), self._size))
        buffer[: len(found)] = found
        self._at += len(found)
        return len(found)


Place = Path | Address


def place(text: str | Path | Address) -> Place:
    """A path, or an address of another machine; file:// is a path."""
    if isinstance(text, Path | Address):
        return text
    if text.startswith(("file://", "local://")):
        return Path(text.partition("://")[2])
    return Address(text) if is_address(text) else Path(text)


def size_of(where: Place) -> int:
    """Bytes of a file."""
    return where.size() if isinstance(where, Address) else where.stat().st_size


def version_of(where: Place) -> int | str:
    """What changes with a file's content."""
    return where.version() if isinstance(where, Address) else where.stat().st_mtime_ns
