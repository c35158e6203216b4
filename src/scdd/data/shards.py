"""A split of prepared data as one stream of tokens, whatever shards it lies in and wherever they are.

A shard holds documents one after the other, each ended by [EOS], and where each one ends (`shard_file`); nothing depends on the
length that a model will be trained at, and blocks are cut when they are read (`pack`). The manifest `index.json` lists the shards
with their checksums (BLAKE2b over the whole file), so one that was swapped for another is found out too. Shards of this machine
are memory-mapped; those of an address come through a cache (`cache`).
"""

from __future__ import annotations

import hashlib
import os
import resource
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from scdd.core.errors import UserError
from scdd.data.address import Address, Place, place
from scdd.data.cache import ShardCache
from scdd.data.manifest import CURE, read_tokenizer
from scdd.data.manifest import INDEX as INDEX
from scdd.data.manifest import ShardInfo as ShardInfo
from scdd.data.manifest import SplitInfo as SplitInfo
from scdd.data.manifest import read_manifest as read_manifest
from scdd.data.manifest import write_manifest as write_manifest
from scdd.data.options import CACHE, CACHE_BYTES
from scdd.data.shard_file import FarShard, MappedShard, Shard
from scdd.data.shard_file import token_dtype as token_dtype
from scdd.data.shard_file import write_shard as write_shard
from scdd.data.tokenizer import TextTokenizer

_ENDS = 16  # shards from far away whose documents' ends are kept in memory


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

    def document_at(self, place: int) -> int:
        """Which document holds `place` of the longer stream in which each document also has its [BOS]."""


def _last_start(place: int, ends: Sequence[int] | NDArray[np.unsignedinteger] | NDArray[np.int64]) -> int:
    """The last document that starts at `place` or before: document i starts at end(i − 1) + i."""
    return bisect_right(range(len(ends)), place, key=lambda i: (int(ends[i - 1]) if i else 0) + i) - 1


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

    def document_at(self, place: int) -> int:
        """As `TokenStream.document_at`."""
        return _last_start(place, self._ends)


class Shards:
    """One split of a prepared folder, read as one stream of tokens, whatever files it lies in."""

    def __init__(self, folder: str | Path | Address, split: str = "train", cache: ShardCache | None = None) -> None:
        """Opens every shard of a path and checks headers and sizes (`verify()` checks the bytes); those of an address are
        fetched when they are read, into `cache`, and checked then."""
        self.folder, self.split = place(folder), split
        self.cache: ShardCache | None = None
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
        self._shards: Sequence[Shard] = self._opened(cache)
        self._kept_ends: OrderedDict[int, NDArray[np.uint64]] = OrderedDict()
        self._tokens_before = [0, *accumulate(shard.tokens for shard in self.info.shards)]
        self._documents_before = [0, *accumulate(shard.documents for shard in self.info.shards)]
        self._places_before = [t + d for t, d in zip(self._tokens_before, self._documents_before, strict=True)]
        self.n_tokens, self.n_documents = self._tokens_before[-1], self._documents_before[-1]

    def _opened(self, cache: ShardCache | None) -> Sequence[Shard]:
        shards = self.info.shards
        if not isinstance(self.folder, Address):
            _allow_files(len(shards))
            return [MappedShard(self.folder / shard.file, shard, self.tokenizer_hash) for shard in shards]
        self.cache = ShardCache(Path(CACHE).expanduser(), CACHE_BYTES) if cache is None else cache
        self.cache.require_room(shards)
        return [FarShard(self.folder / shard.file, shard, self.tokenizer_hash, self.cache) for shard in shards]

    def tokenizer(self) -> TextTokenizer:
        """The tokenizer beside the shards, which must be the one they were made with."""
        tokenizer = read_tokenizer(self.folder)
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
        """Read every byte and compare checksums; of an address, look whether each shard is there and of its size."""
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
            piece = self._shards[first].read(start - base, end - base).astype(np.int64)
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
        if document + 1 == self._documents_before[shard + 1]:  # known without a look into the shard
            return self._tokens_before[shard + 1]
        return self._tokens_before[shard] + int(self._ends(shard)[document - self._documents_before[shard]])

    def document_at(self, place: int) -> int:
        """As `TokenStream.document_at`; no other shard than the document's own is looked into."""
        shard = self.holding(place)
        return self._documents_before[shard] + _last_start(place - self._places_before[shard], self._ends(shard))

    def holding(self, place: int, framed: bool = True) -> int:
        """The shard with the place of the stream, or of that with a [BOS] for each document if `framed`."""
        return bisect_right(self._places_before if framed else self._tokens_before, place) - 1

    def start(self, shard: int) -> tuple[int, int]:
        """(Tokens, documents) of the shards before this one."""
        return self._tokens_before[shard], self._documents_before[shard]

    def fetch(self, shard: int, keep: Sequence[int] = ()) -> None:
        """Have a shard of an address here before it is read; those to `keep` are not what goes for it, if others can."""
        for number in keep:
            if isinstance(kept := self._shards[number], FarShard):
                kept.touch()
        if isinstance(far := self._shards[shard], FarShard):
            far.fetch()

    def _ends(self, shard: int) -> NDArray[np.uint64]:
        if self.cache is None:
            return self._shards[shard].ends
        kept = self._kept_ends.pop(shard, None)
        self._kept_ends[shard] = ends = self._shards[shard].ends if kept is None else kept
        if len(self._kept_ends) > _ENDS:
            self._kept_ends.popitem(last=False)
        return ends

    def documents(self) -> Iterator[NDArray[np.int64]]:
        """Every document's tokens, [EOS] left out."""
        start = 0
        for document in range(self.n_documents):
            end = self.end(document)
            yield self.read(start, end - 1)
            start = end


def verify_shards(folder: Place, shards: Sequence[ShardInfo], threads: int = 4) -> None:
    """Read every byte of the shards and compare checksums (hashing runs outside the interpreter's lock).

    Of an address, whose shards are compared when they arrive, look whether each is there and of its size.
    """
    if isinstance(folder, Address):
        _require_listed(folder, shards)
        return
    with ThreadPoolExecutor(threads) as pool:
        digests = pool.map(_digest, [folder / shard.file for shard in shards])
        for shard, digest in zip(shards, digests, strict=True):
            if digest != shard.blake2b:
                harm = "is missing" if digest is None else "is damaged (its checksum differs)"
                raise UserError(f"shard {folder / shard.file} {harm}: {CURE}.")


def _require_listed(folder: Address, shards: Sequence[ShardInfo]) -> None:
    if folder.protocol.startswith("http"):  # which need not have a listing
        return
    sizes = folder.below()
    for shard in shards:
        size = sizes[shard.file].get("size") if shard.file in sizes else None
        if size != shard.size:
            harm = "is missing" if size is None else f"has {size} bytes, not the {shard.size} of its manifest"
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
