"""One shard: how its bytes lie, and reading it where it is, or through the cache where it is far away.

Layout, little-endian:

    magic 8 bytes | schema u32 | header size u32 | header (JSON, padded with spaces) | tokens u16 or u32, padded to 8 | ends u64
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from scdd.core.errors import UserError
from scdd.data.address import Address
from scdd.data.cache import ShardCache, Wanted
from scdd.data.files import write_atomically
from scdd.data.manifest import CURE, INDEX, SCHEMA, ShardInfo

MAGIC = b"SCDDSHRD"
_PREFIX = struct.Struct("<8sII")
_ALIGN = 64
_LONGEST_HEADER = 1 << 16  # bytes; those that are written have 64 or 128 or 192


def token_dtype(vocab_size: int) -> np.dtype[Any]:
    """The smallest unsigned type that holds every id."""
    return np.dtype("<u2" if vocab_size <= 1 << 16 else "<u4")


def write_shard(
    path: Path | Address, tokens: NDArray[Any], lengths: NDArray[np.int64], tokenizer_hash: str
) -> ShardInfo:
    """Write one shard, whole or not at all; `lengths` are the documents', [EOS] included."""
    if int(lengths.sum()) != len(tokens):
        raise ValueError(f"documents of {int(lengths.sum())} tokens in all, {len(tokens)} tokens given")
    about = {"dtype": tokens.dtype.str, "tokens": len(tokens), "documents": len(lengths), "tokenizer": tokenizer_hash}
    text = json.dumps(about, sort_keys=True).encode()
    text = text.ljust(-(-(_PREFIX.size + len(text)) // _ALIGN) * _ALIGN - _PREFIX.size)
    body = np.ascontiguousarray(tokens).tobytes()
    body = body.ljust(-(-len(body) // 8) * 8, b"\0")
    pieces = [_PREFIX.pack(MAGIC, SCHEMA, len(text)), text, body, np.cumsum(lengths, dtype="<u8").tobytes()]
    digest = hashlib.blake2b(digest_size=32)
    for piece in pieces:
        digest.update(piece)
    write_atomically(path, *pieces)
    return ShardInfo(path.name, len(lengths), len(tokens), sum(map(len, pieces)), digest.hexdigest())


class Layout(NamedTuple):
    """Where a shard's tokens and ends begin, and what a token is."""

    tokens: int
    ends: int
    dtype: np.dtype[Any]


def _refusal(where: Path | Address) -> Callable[[str], UserError]:
    return lambda harm: UserError(f"shard {where} {harm}: {CURE}.")


def _layout(
    prefix: bytes,
    header: Callable[[int], bytes],
    size: int,
    info: ShardInfo,
    tokenizer_hash: str,
    refusal: Callable[[str], UserError],
) -> Layout:
    """What the header says; refuses one that is damaged or does not agree with the manifest."""
    try:
        magic, schema, length = _PREFIX.unpack(prefix)
        if length > _LONGEST_HEADER or length % 8:
            raise ValueError("its header is longer than any that is written")
        about = json.loads(header(length)) if magic == MAGIC and schema == SCHEMA else {}
    except (struct.error, ValueError, RecursionError) as error:
        raise refusal("has a damaged header") from error
    if magic != MAGIC or schema != SCHEMA:
        raise refusal(f"is not an scdd shard of schema {SCHEMA}")
    if not isinstance(about, dict):
        raise refusal("has a damaged header")
    if size != info.size:
        raise refusal(f"has {size} bytes, not the {info.size} of {INDEX}")
    if about.get("tokenizer") != tokenizer_hash:
        raise refusal(f"was made with another tokenizer than {INDEX} names")
    if (about.get("tokens"), about.get("documents")) != (info.tokens, info.documents):
        raise refusal(f"counts otherwise than {INDEX}")
    if about.get("dtype") not in ("<u2", "<u4"):
        raise refusal("has a damaged header")
    dtype = np.dtype(about["dtype"])
    start = _PREFIX.size + length
    ends = start + -(-info.tokens * dtype.itemsize // 8) * 8
    if ends + info.documents * 8 != size:
        raise refusal(f"has {size} bytes, which its {info.tokens} tokens do not fill")
    return Layout(start, ends, dtype)


def _checked_ends(ends: NDArray[np.uint64], tokens: int, refusal: Callable[[str], UserError]) -> NDArray[np.uint64]:
    """Each document ends later than the one before it, the last one with the last token."""
    if len(ends) and not (ends[0] > 0 and ends[-1] == tokens and bool((ends[1:] > ends[:-1]).all())):
        raise refusal("has documents that do not end one after the other")
    return ends


class Shard(Protocol):
    """One shard's tokens, and where its documents end."""

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Tokens start … stop − 1."""

    @property
    def ends(self) -> NDArray[np.uint64]:
        """Where each document ends."""


class MappedShard:
    """A shard of this machine, memory-mapped."""

    def __init__(self, path: Path, info: ShardInfo, tokenizer_hash: str) -> None:
        self._refusal = _refusal(path)
        try:
            size = path.stat().st_size
            with open(path, "rb") as file:
                layout = _layout(file.read(_PREFIX.size), file.read, size, info, tokenizer_hash, self._refusal)
        except FileNotFoundError as error:
            raise self._refusal("is missing") from error
        except OSError as error:
            raise self._refusal(f"cannot be read ({error.strerror})") from error
        whole = np.asarray(np.memmap(path, np.uint8, "r"))  # mapped once: every mapping keeps a file open
        self._tokens = whole[layout.tokens : layout.tokens + info.tokens * layout.dtype.itemsize].view(layout.dtype)
        self._ends = whole[layout.ends : layout.ends + info.documents * 8].view("<u8")

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """As `Shard.read`."""
        return self._tokens[start:stop]

    @cached_property
    def ends(self) -> NDArray[np.uint64]:
        """As `Shard.ends`."""
        return _checked_ends(self._ends, len(self._tokens), self._refusal)


class FarShard:
    """A shard of another machine: fetched when it is first read, and again if it had to go meanwhile."""

    def __init__(self, address: Address, info: ShardInfo, tokenizer_hash: str, cache: ShardCache) -> None:
        self._wanted, self._info, self._cache = Wanted(address, info), info, cache
        self._tokenizer_hash, self._refusal = tokenizer_hash, _refusal(address)
        self._layout: Layout | None = None

    def fetch(self) -> None:
        """Have it here before it is read."""
        self._cache.fetched(self._wanted)

    def touch(self) -> None:
        """Keep it rather than others, if it is here."""
        self._cache.touched(self._wanted)

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """As `Shard.read`."""
        with self._cache.opened(self._wanted) as handle:
            layout = self._laid_out(handle)
            width = layout.dtype.itemsize
            return np.frombuffer(_pread(handle, layout.tokens + start * width, (stop - start) * width), layout.dtype)

    @property
    def ends(self) -> NDArray[np.uint64]:
        """As `Shard.ends`; read anew each time, so that memory does not grow with the corpus."""
        with self._cache.opened(self._wanted) as handle:
            raw = _pread(handle, self._laid_out(handle).ends, self._info.documents * 8)
        return _checked_ends(np.frombuffer(raw, "<u8"), self._info.tokens, self._refusal)

    def _laid_out(self, handle: int) -> Layout:
        if self._layout is None:  # the bytes have been compared with their checksum: it stays as it is
            size, prefix = os.fstat(handle).st_size, os.pread(handle, _PREFIX.size, 0)
            header = lambda length: os.pread(handle, length, _PREFIX.size)  # noqa: E731
            self._layout = _layout(prefix, header, size, self._info, self._tokenizer_hash, self._refusal)
        return self._layout


def _pread(handle: int, start: int, size: int) -> bytes:
    pieces = []
    while size > 0:
        piece = os.pread(handle, size, start)
        if not piece:
            raise OSError("a file of the cache was cut short while it was read")
        pieces.append(piece)
        start, size = start + len(piece), size - len(piece)
    return b"".join(pieces)
