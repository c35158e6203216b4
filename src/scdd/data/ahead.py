"""Shards are fetched before they are needed: a few threads follow the order of the batches, ahead of those who read them.

What lies between the batch that is being read and the last one looked at fits into the cache, so that nothing is fetched which
would push out what is needed before it.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import numpy as np
from numpy.typing import NDArray

from scdd.data.pack import Blocks
from scdd.data.shards import Shards
from scdd.data.window import WindowedBlocks

BATCHES = 256  # that are looked ahead, at most
FETCHES = 4  # at a time
PATIENCE = 5.0  # seconds for those under way when it ends; what is left of one is begun anew


class ReadAhead:
    """Follows `wanted`, the shards of each batch; `reached` says which batch is being read."""

    def __init__(self, stream: Shards, wanted: Callable[[int], NDArray[np.int64]]) -> None:
        assert stream.cache is not None
        self._stream, self._wanted, self._bound = stream, wanted, stream.cache.bound
        self._sizes = np.array([shard.size for shard in stream.info.shards], dtype=np.int64)
        self._last = np.full(len(self._sizes), -1, dtype=np.int64)  # the last batch looked at that needs each shard
        self._now, self._stopped = 0, False
        self._moved = threading.Condition()
        self._asked: queue.Queue[int | None] = queue.Queue()
        self._fetching = [
            threading.Thread(target=self._work, name=f"scdd-fetch-{i}", daemon=True) for i in range(FETCHES)
        ]
        self._looking = threading.Thread(target=self._look, name="scdd-ahead", daemon=True)
        for thread in (self._looking, *self._fetching):
            thread.start()

    def reached(self, batch: int) -> None:
        """Batch number `batch` of the iteration is being read."""
        with self._moved:
            self._now = batch
            self._moved.notify()

    def close(self) -> None:
        """End the threads."""
        with self._moved:
            self._stopped = True
            self._moved.notify()
        self._looking.join()
        for _ in self._fetching:
            self._asked.put(None)
        ends = time.monotonic() + PATIENCE
        for thread in self._fetching:
            thread.join(max(0.0, ends - time.monotonic()))

    def _look(self) -> None:
        """Ask for what the batches need, one after the other."""
        batch = 0
        while self._may_look_at(batch):
            for shard in self._wanted(batch).tolist():
                new = self._last[shard] < 0 or self._last[shard] < self._now
                self._last[shard] = batch
                if new and not self._room(batch):
                    return
                if new:
                    self._asked.put(shard)
            batch += 1

    def _may_look_at(self, batch: int) -> bool:
        """Wait until the batch is not too far ahead; False where it is over."""
        with self._moved:
            self._moved.wait_for(lambda: self._stopped or batch <= self._now + BATCHES)
            return not self._stopped

    def _room(self, batch: int) -> bool:
        """Wait until all that is needed up to `batch` fits; a batch that is being read has to do without."""

        def fits() -> bool:
            needed = int(self._sizes[self._last >= self._now].sum())
            return self._stopped or needed <= self._bound or batch <= self._now

        with self._moved:
            self._moved.wait_for(fits)
            return not self._stopped

    def _work(self) -> None:
        while (shard := self._asked.get()) is not None and not self._stopped:
            if self._last[shard] < self._now:
                continue  # whoever reads was faster, and is done with it
            # What fails here fails again where the shard is read, and is told there.
            with suppress(Exception):
                self._stream.fetch(shard, keep=np.flatnonzero(self._last >= self._now).tolist())


def shards_of(blocks: Blocks, stream: Shards, indices: NDArray[np.int64]) -> NDArray[np.int64]:
    """The shards that hold the beginnings of blocks, each once, in the order of the blocks."""
    if isinstance(blocks, WindowedBlocks):
        found = blocks.shards_of(indices).tolist()
    else:
        framed = blocks.packing == "documents"
        step = blocks.length if framed else blocks.length - 2
        found = [stream.holding(place, framed) for place in (indices * step).tolist()]
    return np.array(list(dict.fromkeys(found)), dtype=np.int64)


def far_stream(blocks: Blocks) -> Shards | None:
    """The stream of the blocks, where it is read through a cache."""
    stream = getattr(blocks, "stream", None)
    return stream if isinstance(stream, Shards) and stream.cache is not None else None


@contextmanager
def reading_ahead(blocks: Blocks, samples: Callable[[int], NDArray[np.int64]]) -> Iterator[Callable[[int], None]]:
    """Read ahead while the block runs; `samples(k)` are the blocks of batch k. Gives what to call as each batch is read."""
    stream = far_stream(blocks)
    if stream is None:
        yield lambda batch: None
        return
    ahead = ReadAhead(stream, lambda batch: shards_of(blocks, stream, samples(batch)))
    try:
        yield ahead.reached
    finally:
        ahead.close()
