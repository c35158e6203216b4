"""Token shards: memory-mapped, checksummed files, and the manifest `index.json` that lists them.

A shard holds documents one after the other, each ended by [EOS], and where each one ends; nothing depends on the length that a model
will be trained at, and blocks are cut when they are read (`pack`). Layout, little-endian:

    magic 8 bytes | schema u32 | header size u32 | header (JSON, padded with spaces) | tokens u16 or u32, padded to 8 | ends u64

Checksums (BLAKE2b over the whole file) live in the manifest, so a shard that was swapped for another one is found out too.
"""

from __future__ import annotations

import hashlib
import json
import os
import resource
import struct
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from scdd.core.errors import UserError
from scdd.data.files import write_atomically
from scdd.data.manifest import CURE, SCHEMA
from scdd.data.manifest import INDEX as INDEX
from scdd.data.manifest import ShardInfo as ShardInfo
from scdd.data.manifest import SplitInfo as SplitInfo
from scdd.data.manifest import read_manifest as read_manifest
from scdd.data.manifest import write_manifest as write_manifest
from scdd.data.tokenizer import TextTokenizer

MAGIC = b"SCDDSHRD"
_PREFIX = struct.Struct("<8sII")
_ALIGN = 64
_LONGEST_HEADER = 1 << 16  # bytes; those that are written have 64 or 128 or 192


def token_dtype(vocab_size: int) -> np.dtype[Any]:
    """The smallest unsigned type that holds every id."""
    return np.dtype("<u2" if vocab_size <= 1 << 16 else "<u4")


def write_shard(path: Path, tokens: NDArray[Any], lengths: NDArray[np.int64], tokenizer_hash: str) -> ShardInfo:
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


class _Shard:
    """One open shard: `tokens` and the documents' `ends`, both memory-mapped."""

    def __init__(self, path: Path, info: ShardInfo, tokenizer_hash: str) -> None:
        def refusal(harm: str) -> UserError:
            return UserError(f"shard {path} {harm}: {CURE}.")

        try:
            size = path.stat().st_size
            with open(path, "rb") as file:
                magic, schema, length = _PREFIX.unpack(file.read(_PREFIX.size))
                if length > _LONGEST_HEADER or length % 8:
                    raise ValueError("its header is longer than any that is written")
                about = json.loads(file.read(length)) if magic == MAGIC and schema == SCHEMA else {}
        except FileNotFoundError as error:
            raise refusal("is missing") from error
        except OSError as error:
            raise refusal(f"cannot be read ({error.strerror})") from error
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
        whole = np.asarray(np.memmap(path, np.uint8, "r"))  # mapped once: every mapping keeps a file open
        self.tokens = whole[start : start + info.tokens * dtype.itemsize].view(dtype)
        self._ends = whole[ends : ends + info.documents * 8].view("<u8")
        self._tokens, self._refusal = info.tokens, refusal

    @cached_property
    def ends(self) -> NDArray[np.uint64]:
        """Where each document ends: always later than the one before it, the last one with the last token."""
        ends = self._ends
        if len(ends) and not (ends[0] > 0 and ends[-1] == self._tokens and bool((ends[1:] > ends[:-1]).all())):
            raise self._refusal("has documents that do not end one after the other")
        return ends


def _allow_files(count: int) -> None:
    """Let this process keep `count` more files open, where the system's soft limit (often 1024) is in the way."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = len(os.listdir("/dev/fd")) + count + 256
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(
            resource.RLIMIT_NOFILE, (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard), hard)
        )


@runtime_checkable
class TokenStream(Protocol):
    """Documents in a row, each ended by [EOS]: what blocks are cut from."""

    bos_id: int
    eos_id: int
    n_tokens: int
    n_documents: int

    def read(self, start: int, stop: int) -> NDArray[np.int64]:
        """Tokens start … stop − 1 of the stream."""

    def end(self, document: int) -> int:
        """Where in the stream the document ends, its [EOS] included."""


class MemoryTokens:
    """A small stream held in memory."""

    def __init__(self, documents: Sequence[Sequence[int]], bos_id: int, eos_id: int) -> None:
        self.bos_id, self.eos_id = bos_id, eos_id
        self._tokens = np.array([i for ids in documents for i in (*ids, eos_id)], dtype=np.int64)
        self._ends = np.cumsum([len(ids) + 1 for ids in documents], dtype=np.int64)
        self.n_tokens, self.n_documents = len(self._tokens), len(self._ends)

    @classmethod
    def encoded(cls, texts: Sequence[str], tokenizer: TextTokenizer) -> MemoryTokens:
        """The texts' tokens, each text a document."""
        return cls(tokenizer.encode_batch(texts), tokenizer.bos_id, tokenizer.eos_id)

    def read(self, start: int, stop: int) -> NDArray[np.int64]:
        """As `TokenStream.read`."""
        return np.array(self._tokens[start:stop])

    def end(self, document: int) -> int:
        """As `TokenStream.end`."""
        return int(self._ends[document])


class Shards:
    """One split of a prepared folder, read as one stream of tokens, whatever files it lies in."""

    def __init__(self, folder: str | Path, split: str = "train") -> None:
        """Opens every shard and checks headers and sizes; `verify()` checks the bytes."""
        self.folder, self.split = Path(folder), split
        manifest = read_manifest(self.folder)
        if split not in manifest["splits"]:
            has = ", ".join(manifest["splits"]) or "nothing"
            raise UserError(
                f"{self.folder} has no '{split}' split (it has: {has}): prepare the data with some of it kept for validation."
            )
        about = manifest["tokenizer"]
        self.tokenizer_hash: str = about["hash"]
        self.vocab_size, self.mask_id = about["vocab_size"], about["mask_id"]
        self.bos_id, self.eos_id = about["bos_id"], about["eos_id"]
        self.info: SplitInfo = SplitInfo.from_json(manifest["splits"][split])
        _allow_files(len(self.info.shards))
        self._shards = [_Shard(self.folder / shard.file, shard, self.tokenizer_hash) for shard in self.info.shards]
        self._tokens_before = [0, *accumulate(shard.tokens for shard in self.info.shards)]
        self._documents_before = [0, *accumulate(shard.documents for shard in self.info.shards)]
        self.n_tokens, self.n_documents = self._tokens_before[-1], self._documents_before[-1]

    def tokenizer(self) -> TextTokenizer:
        """The tokenizer beside the shards, which must be the one they were made with."""
        tokenizer = TextTokenizer.from_file(self.folder / "tokenizer.json")
        if tokenizer.hash != self.tokenizer_hash:
            raise UserError(f"{self.folder / 'tokenizer.json'} is not the tokenizer of these shards: {CURE}.")
        return tokenizer

    def require(self, tokenizer: TextTokenizer) -> None:
        """Refuse shards that were made with another tokenizer than `tokenizer`."""
        if tokenizer.hash != self.tokenizer_hash:
            raise UserError(
                f"{self.folder} was prepared with tokenizer {self.tokenizer_hash[:12]}, the model uses {tokenizer.hash[:12]}: "
                "prepare the data with the model's tokenizer.json."
            )

    def verify(self) -> None:
        """Read every byte and compare checksums."""
        verify_shards(self.folder, self.info.shards)

    def read(self, start: int, stop: int) -> NDArray[np.int64]:
        """As `TokenStream.read`, over as many shards as it takes."""
        if not 0 <= start <= stop <= self.n_tokens:
            raise IndexError(f"tokens {start} to {stop} of {self.n_tokens}")
        first = bisect_right(self._tokens_before, start) - 1
        pieces: list[NDArray[np.int64]] = []
        while start < stop:
            base, limit = self._tokens_before[first], self._tokens_before[first + 1]
            end = min(stop, limit)
            piece = self._shards[first].tokens[start - base : end - base].astype(np.int64)
            if int(piece.max()) >= self.vocab_size:  # an embedding has no row for it
                raise UserError(
                    f"shard {self.folder / self.info.shards[first].file} holds the id {int(piece.max())}, and its tokenizer "
                    f"has {self.vocab_size}: {CURE}."
                )
            pieces.append(piece)
            start, first = end, first + 1
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces or [np.empty(0, np.int64)])

    def end(self, document: int) -> int:
        """As `TokenStream.end`."""
        shard = bisect_right(self._documents_before, document) - 1
        return self._tokens_before[shard] + int(self._shards[shard].ends[document - self._documents_before[shard]])

    def documents(self) -> Iterator[NDArray[np.int64]]:
        """Every document's tokens, [EOS] left out."""
        start = 0
        for document in range(self.n_documents):
            end = self.end(document)
            yield self.read(start, end - 1)
            start = end


def verify_shards(folder: Path, shards: Sequence[ShardInfo], threads: int = 4) -> None:
    """Read every byte of the shards and compare checksums (hashing runs outside the interpreter's lock)."""
    with ThreadPoolExecutor(threads) as pool:
        digests = pool.map(_digest, [folder / shard.file for shard in shards])
        for shard, digest in zip(shards, digests, strict=True):
            if digest != shard.blake2b:
                harm = "is missing" if digest is None else "is damaged (its checksum differs)"
                raise UserError(f"shard {folder / shard.file} {harm}: {CURE}.")


def _digest(path: Path) -> str | None:
    digest = hashlib.blake2b(digest_size=32)
    try:
        with open(path, "rb") as file:
            while chunk := file.read(1 << 22):
                digest.update(chunk)
    except FileNotFoundError:
        return None
    return digest.hexdigest()
