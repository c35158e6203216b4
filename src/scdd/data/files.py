"""Bytes on disk or at an address: compressed inputs read as a stream, outputs that appear whole or not at all."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import lzma
import os
import re
import secrets
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, cast

from scdd.core.errors import UserError, missing_extra
from scdd.core.files import CONFIG_LIMIT
from scdd.data.address import Address, Place

# What the decompressors raise on a damaged file; a file cut short raises EOFError.
DAMAGE = (lzma.LZMAError, gzip.BadGzipFile, zlib.error, EOFError)
_CHUNK = 1 << 20
_WAS_ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")  # a drive has one letter
_MAGIC = {
    b"%PDF-": "PDF",
    b"PK\x03\x04": "zip",
    b"PAR1": "Parquet",
    b"\x1f\x8b": "gzip",
    b"\xfd7zXZ\0": "xz",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"BZh": "bzip2",
    b"ARROW1": "Arrow",
    b"\xd0\xcf\x11\xe0": "Word",
}


class _Zstd(io.RawIOBase):
    """A .zst file's text, over any number of frames, refusing a last frame that is cut short."""

    def __init__(self, raw: BinaryIO) -> None:
        try:
            import zstandard
        except ImportError as error:
            raise UserError(
                missing_extra(f"{raw.name} needs the zstandard package", "train", ", or unpack the file")
            ) from error
        self._new = zstandard.ZstdDecompressor().decompressobj
        self._errors = zstandard.ZstdError
        self._raw, self._frame, self._fresh, self._ready = raw, self._new(), True, memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._ready:
            data = self._frame.unused_data if self._frame.eof else b""
            if self._frame.eof:
                self._frame, self._fresh = self._new(), True
            data = data or self._raw.read(_CHUNK)
            if not data:
                if self._fresh:
                    return 0
                raise EOFError("the last zstd frame is cut short")
            self._fresh = False
            try:
                self._ready = memoryview(self._frame.decompress(data))
            except self._errors as error:
                raise zlib.error(str(error)) from error
        count = min(len(self._ready), len(buffer))
        buffer[:count] = self._ready[:count]
        self._ready = self._ready[count:]
        return count


COMPRESSIONS: dict[str, Callable[[BinaryIO], Any]] = {".xz": lzma.open, ".gz": gzip.open, ".zst": _Zstd}


def open_input(path: Place, buffering: int | None = None) -> tuple[BinaryIO, BinaryIO]:
    """(the text's bytes, the raw file whose `tell()` shows how much of it has been read)."""
    try:
        # The caller closes it.
        raw: BinaryIO = path.open("rb") if buffering is None else path.open("rb", buffering=buffering)
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}): check the path and its permissions.") from error
    if path.suffix not in COMPRESSIONS:
        return raw, raw
    unpacked = COMPRESSIONS[path.suffix](raw)
    return cast(BinaryIO, io.BufferedReader(unpacked, _CHUNK)), raw


def refuse_binary(path: Place) -> None:
    """Refuse what is no text by its first bytes, with a cure."""
    text, raw = open_input(path, buffering=1 << 16)
    try:
        with raw, text:
            head = text.read(4096)
    except DAMAGE:
        return  # told with its place when it is read
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise UserError(f"{path} is UTF-16: convert it to UTF-8 first, as with iconv -f UTF-16 -t UTF-8.")
    kind = next((name for magic, name in _MAGIC.items() if head.startswith(magic)), "binary" if b"\0" in head else None)
    if kind is not None:
        raise UserError(
            f"{path} is a {kind} file and no text: give text, JSON lines, CSV, TSV or Parquet under their usual endings, "
            "maybe with .xz, .gz or .zst."
        )


def make_folder(path: Place) -> None:
    """Make an output folder, with those above it; an address needs none.

    An address that has become a path, which is a folder `s3:` here, is refused: only prepared data may lie elsewhere.
    """
    if isinstance(path, Address):
        return
    if _WAS_ADDRESS.match(str(path)):
        raise UserError(
            f"out {path} is an address, and this can only be written to a folder of this machine: give a path, such as one of "
            "a shared or mounted disk.",
            "out",
        )
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"out {path} cannot be made a folder ({error.strerror}): choose another one.", "out") from error


@contextlib.contextmanager
def locked(folder: Place) -> Iterator[None]:
    """One process at a time writes into an output folder; the lock dies with the process and leaves no file.

    Stores have no locks: there, whoever else writes is found out by what it wrote.
    """
    if isinstance(folder, Address):
        yield
        return
    try:
        import fcntl
    except ModuleNotFoundError:  # Windows
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UserError(
                f"out {folder} is in use by another process: wait for it, or choose another folder.", "out"
            ) from error
        except OSError:
            pass  # some network file systems know no locks, and work all the same
        yield
    finally:
        os.close(handle)


def write_atomically(path: Place, *pieces: bytes | memoryview) -> None:
    """Write under a temporary name, sync, rename: a reader sees the old file or the new one, whatever happens.

    Nobody can foresee the temporary name, and nothing may lie there: in a folder that others write to, a link would lead
    the text elsewhere. A process that is killed leaves that file behind; `clear_leftovers` removes it.
    """
    if isinstance(path, Address):
        path.write(*pieces)
        return
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    try:
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0), 0o666)
        with open(handle, "wb") as file:
            for piece in pieces:
                file.write(piece)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException as error:  # a full disk, most likely: leave no half of a file, and say which one it was
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise
    sync_entry(path.parent)


def clear_leftovers(folder: Place) -> None:
    """Remove what `write_atomically` had to leave in `folder` when its process was killed."""
    if isinstance(folder, Address):
        return
    for left in folder.glob(".*.tmp"):
        left.unlink(missing_ok=True)


def sync_tree(folder: Path) -> None:
    """Everything below a new folder reaches the disk, with the rights that the folder was made with.

    Libraries that write files give some of them to their owner alone, whatever the umask says.
    """
    rights = folder.stat().st_mode & 0o666
    for parent, _, files in os.walk(folder):
        for name in files:
            os.chmod(Path(parent, name), rights)
            sync_entry(Path(parent, name))
        sync_entry(Path(parent))


def sync_entry(path: Path) -> None:
    """A file or folder reaches the disk."""
    # Windows cannot open folders, and some network file systems refuse to sync what is open for reading.
    with contextlib.suppress(OSError):
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def write_json(path: Place, value: object) -> None:
    """Write `value` atomically, indented for people."""
    write_atomically(path, (json.dumps(value, indent=1, ensure_ascii=False) + "\n").encode())


def read_json(path: Place) -> Any:
    """Read JSON of a bounded size, naming the file if it is missing or broken."""
    try:
        if isinstance(path, Address):
            return json.loads(path.read(CONFIG_LIMIT).decode("utf-8"))
        with open(path, "rb") as file:
            content = file.read(CONFIG_LIMIT + 1)
        if len(content) > CONFIG_LIMIT:
            raise ValueError(f"it is larger than {CONFIG_LIMIT >> 20} MiB")
        return json.loads(content.decode("utf-8"))
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}): check the path and its permissions.") from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is not valid JSON ({error}): restore it, or prepare the data again.") from error
