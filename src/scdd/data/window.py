"""Blocks in an order that needs few shards at a time: for corpora that do not fit on the disk.

Every epoch draws its own order of the shards and takes them `window` at a time; the blocks of a window come in an order drawn
from all of them. No block crosses the end of a shard, so a window needs its own shards and no others.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from scdd.data.pack import Blocks, Packing, Tokens, blocks_of
from scdd.data.shards import Shards

Order = Callable[[NDArray[np.int64]], NDArray[np.int64]]
Shuffle = Callable[..., Order]  # shuffle(n, *key): a permutation of range(n)


class _OneShard:
    """A shard of a stream, as a stream of its own."""

    def __init__(self, stream: Shards, shard: int) -> None:
        self.bos_id, self.eos_id = stream.bos_id, stream.eos_id
        self._stream, (self._tokens, self._documents) = stream, stream.start(shard)
        tokens, documents = stream.start(shard + 1)
        self.n_tokens, self.n_documents = tokens - self._tokens, documents - self._documents

    def read(self, start: int, stop: int) -> Tokens:
        return self._stream.read(self._tokens + start, self._tokens + stop)

    def end(self, document: int) -> int:
        return self._stream.end(self._documents + document) - self._tokens

    def document_at(self, place: int) -> int:
        return self._stream.document_at(self._tokens + self._documents + place) - self._documents


class _Epoch(NamedTuple):
    """The shards of an epoch in their order: where each one's blocks begin in it, where each window begins, and the orders."""

    shards: NDArray[np.int64]
    starts: NDArray[np.int64]  # [shards + 1]
    windows: NDArray[np.int64]  # [windows + 1]
    orders: list[Order]


class WindowedBlocks:
    """Blocks of each shard for itself; `order` says in which order they come."""

    def __init__(self, stream: Shards, length: int, packing: Packing, window: int) -> None:
        self.stream, self.length, self.packing, self.window = stream, length, packing, window
        shards = len(stream.info.shards)
        self._parts: list[Blocks] = [blocks_of(_OneShard(stream, shard), length, packing) for shard in range(shards)]
        self.before = np.cumsum([0, *map(len, self._parts)], dtype=np.int64)
        self._epoch = lru_cache(2)(self._drawn)

    def __len__(self) -> int:
        return int(self.before[-1])

    def shards_of(self, indices: Tokens) -> NDArray[np.int64]:
        """Which shard each block lies in."""
        return np.searchsorted(self.before, indices, side="right") - 1

    def take(self, indices: Tokens) -> tuple[Tokens, Tokens | None]:
        """As `Blocks.take`."""
        owners = self.shards_of(indices)
        tokens = np.empty((len(indices), self.length), dtype=np.int64)
        documents = np.empty_like(tokens) if self.packing == "documents" else None
        for shard in np.unique(owners).tolist():
            here = owners == shard
            rows, marks = self._parts[shard].take(indices[here] - self.before[shard])
            tokens[here] = rows
            if documents is not None and marks is not None:
                documents[here] = marks
        return tokens, documents

    def learnt(self, indices: Tokens) -> None:
        """Everything."""

    def order(self, shuffle: Shuffle, seed: int, epoch: int) -> Order:
        """Which block comes at each place of the epoch."""
        drawn = self._epoch(shuffle, seed, epoch)

        def blocks(places: NDArray[np.int64]) -> NDArray[np.int64]:
            mixed = np.empty_like(places)
            windows = np.searchsorted(drawn.windows, places, side="right") - 1
            for window in np.unique(windows).tolist():
                here = windows == window
                mixed[here] = drawn.windows[window] + drawn.orders[window](places[here] - drawn.windows[window])
            at = np.searchsorted(drawn.starts, mixed, side="right") - 1
            return np.asarray(self.before[drawn.shards[at]] + mixed - drawn.starts[at])

        return blocks

    def _drawn(self, shuffle: Shuffle, seed: int, epoch: int) -> _Epoch:
        sizes = np.diff(self.before)
        shards = shuffle(len(sizes), seed, epoch, 0)(np.arange(len(sizes)))
        shards = shards[sizes[shards] > 0]  # too short for a block
        starts = np.cumsum([0, *sizes[shards]], dtype=np.int64)
        windows = np.unique(np.append(starts[:: self.window], starts[-1]))
        orders = [shuffle(int(size), seed, epoch, 1 + number) for number, size in enumerate(np.diff(windows))]
        return _Epoch(shards, starts, windows, orders)
