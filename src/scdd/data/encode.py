"""What a worker of `scdd prepare` does: raw records in, token ids out."""

from __future__ import annotations

import contextlib
import hashlib
import resource
import sys
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scdd.data.corpus import RecordBatch, Source, parse
from scdd.data.detokenize import detokenizer
from scdd.data.shards import token_dtype
from scdd.data.tokenizer import TextTokenizer, single_threaded


class Piece(NamedTuple):
    """Documents of one split: tokens in a row, each document's length with its [EOS], and the size of their text."""

    tokens: NDArray[Any]
    lengths: NDArray[np.int64]
    characters: int
    bytes: int


@dataclass(frozen=True)
class Encoded:
    """The documents of one batch of records, in order; a blank record has length 0 and counts for nothing."""

    source: int
    first: int
    position: int
    tokens: NDArray[Any]
    lengths: NDArray[np.int64]  # tokens of each record, [EOS] included
    characters: NDArray[np.int64]
    bytes: NDArray[np.int64]
    valid: NDArray[np.bool_]
    peak: int  # most memory this process ever held, bytes

    def part(self, start: int, stop: int, valid: bool) -> Piece:
        """One split's documents among records start … stop − 1."""
        mine = (self.valid[start:stop] == valid) & (self.lengths[start:stop] > 0)
        lengths = self.lengths[start:stop]
        begin = int(self.lengths[:start].sum())
        tokens = self.tokens[begin : begin + int(lengths.sum())]
        characters, size = (int(counts[start:stop][mine].sum()) for counts in (self.characters, self.bytes))
        return Piece(tokens[np.repeat(mine, lengths)], lengths[mine], characters, size)


@dataclass(frozen=True)
class Encoder:
    """Parse, split, detokenise, tokenise. Pure: a record's ids depend on the record alone."""

    sources: list[Source]
    tokenizer: TextTokenizer
    detokenizer: str | None
    valid_fraction: float

    def __call__(self, batch: RecordBatch) -> Encoded:
        """Token ids of every record of the batch."""
        single_threaded()
        source = self.sources[batch.source]
        texts = [parse(source, record) for record in batch.records]
        valid = np.array([is_valid(source, text, self.valid_fraction) for text in texts], dtype=np.bool_)
        mend = detokenizer(self.detokenizer)
        texts = [mend(text) for text in texts] if mend else texts
        ids = self.tokenizer.encode_batch(texts)
        for i, text in enumerate(texts):
            ids[i] = [*ids[i], self.tokenizer.eos_id] if text and not text.isspace() else []
        return Encoded(
            source=batch.source,
            first=batch.first,
            position=batch.position,
            tokens=np.array([i for document in ids for i in document], dtype=token_dtype(self.tokenizer.size)),
            lengths=np.array([len(document) for document in ids], dtype=np.int64),
            characters=np.array([len(text) for text in texts], dtype=np.int64),
            bytes=np.array([len(text.encode()) for text in texts], dtype=np.int64),
            valid=valid,
            peak=peak_memory(),
        )


def is_valid(source: Source, text: str, fraction: float) -> bool:
    """Whether the document is for validation. Its own hash decides: not its place, not the number of workers."""
    if source.split != "hash":
        return source.split == "valid"
    return _number(text) < fraction * 2.0**64


def position(text: str) -> float:
    """Where the document's own number lies in [0, 1): it is for validation where that is below the fraction."""
    return _number(text) / 2.0**64


def _number(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def peak_memory() -> int:
    """Most resident memory this process has held, in bytes."""
    # getrusage would count the parent's memory at the time it started us: that figure outlives exec on Linux.
    with contextlib.suppress(OSError), open("/proc/self/status") as file:
        for line in file:
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
