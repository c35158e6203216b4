"""Batches for training and validation: exact order, exact resume, the same global batches on any number of ranks."""

from __future__ import annotations

import contextlib
import hashlib
import queue
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from scdd.core.errors import UserError
from scdd.core.types import Learnt
from scdd.data.pack import Blocks


@dataclass(frozen=True)
class Batch:
    """One rank's rows of a global batch. B rows, L length."""

    tokens: Tensor  # [B, L] int64
    documents: Tensor | None  # [B, L] int64: positions attend to each other where equal; None: everywhere
    real: int  # rows that count: validation's last batch repeats a row to keep its shape
    learnt: Learnt | None = None  # None: every token

    def to(self, device: torch.device | str) -> Batch:
        """The batch on `device`; from pinned memory the copy does not wait."""
        documents = None if self.documents is None else self.documents.to(device, non_blocking=True)
        learnt = None if self.learnt is None else self.learnt.to(device)
        return Batch(self.tokens.to(device, non_blocking=True), documents, self.real, learnt)

    def pinned(self) -> Batch:
        """The batch in page-locked memory, from which a GPU copies in the background."""
        documents = None if self.documents is None else self.documents.pin_memory()
        learnt = None if self.learnt is None else Learnt(*(t.pin_memory() for t in self.learnt))
        return Batch(self.tokens.pin_memory(), documents, self.real, learnt)


@dataclass(frozen=True)
class Rank:
    """Which process this is, of how many that share each batch."""

    index: int = 0
    count: int = 1

    def rows(self, batch_size: int) -> int:
        """Rows of a global batch that each process takes."""
        if batch_size < 1 or batch_size % self.count:
            raise UserError(
                f"batch_size is {batch_size}, which {self.count} processes cannot share: choose a multiple of {self.count}.",
                "batch_size",
            )
        if not 0 <= self.index < self.count:
            raise ValueError(f"rank {self.index} of {self.count}")
        return batch_size // self.count


ALONE = Rank()


class Loader:
    """Endless training batches. Sample n of the run is block order_epoch(n mod N) of epoch n // N, N blocks in all.

    Each epoch has its own permutation of the blocks; global batch k is samples kB … kB + B − 1 whatever the number of
    ranks, and rank r takes its slice. `cursor`, the number of samples that all ranks together have been given, is the
    whole state: a run may go on with another number of ranks, or another batch size. Iterating again goes on at the
    cursor.
    """

    def __init__(
        self,
        blocks: Blocks,
        batch_size: int,
        seed: int = 0,
        rank: Rank = ALONE,
        device: torch.device | str = "cpu",
        prefetch: int = 4,
    ) -> None:
        """`batch_size` is the global one; `prefetch` batches are made ready by a thread, 0 makes them when asked for."""
        self.blocks, self.batch_size, self.seed = blocks, batch_size, seed
        self.rows = rank.rows(batch_size)
        self.first_row = rank.index * self.rows
        self.device, self.prefetch = torch.device(device), prefetch
        self.cursor = 0

    @property
    def epoch(self) -> float:
        """Epochs given out so far."""
        return self.cursor / len(self.blocks)

    def samples(self, start: int, stop: int) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Which blocks samples start … stop − 1 of the run are."""
        index = np.arange(start, stop, dtype=np.int64)
        epochs, places = np.divmod(index, len(self.blocks))
        blocks = np.empty_like(index)
        for epoch in np.unique(epochs):
            here = epochs == epoch
            blocks[here] = self._order(int(epoch))(places[here])
        return blocks

    def _order(self, epoch: int) -> Callable[[NDArray[np.int64]], NDArray[np.int64]]:
        ordered = getattr(self.blocks, "order", None)  # blocks that need few shards at a time have their own
        if ordered is None:
            return Permutation(len(self.blocks), self.seed, epoch)
        made: Callable[[NDArray[np.int64]], NDArray[np.int64]] = ordered(Permutation, self.seed, epoch)
        return made

    def __iter__(self) -> Iterator[Batch]:
        first, mine = self.cursor, slice(self.first_row, self.first_row + self.rows)
        with self._reading_ahead(first, mine) as reached:
            for batch in _prefetched(self._batches(first, mine, reached), self.device, self.prefetch):
                # Before it is used: a state saved after the step names the next batch.
                self.cursor += self.batch_size
                yield batch

    def _reading_ahead(self, cursor: int, mine: slice) -> contextlib.AbstractContextManager[Callable[[int], None]]:
        """Shards from far away are fetched while earlier batches are read."""
        stream = getattr(self.blocks, "stream", None)
        if getattr(stream, "cache", None) is None:
            return contextlib.nullcontext(lambda batch: None)
        from scdd.data.ahead import reading_ahead

        def samples(batch: int) -> NDArray[np.int64]:
            start = cursor + batch * self.batch_size
            return self.samples(start, start + self.batch_size)[mine]

        return reading_ahead(self.blocks, samples)

    def _batches(self, cursor: int, mine: slice, reached: Callable[[int], None]) -> Iterator[Batch]:
        for number, start in enumerate(count(cursor, self.batch_size)):
            reached(number)
            yield _batch(self.blocks, self.samples(start, start + self.batch_size), mine)

    def state_dict(self) -> dict[str, int | str]:
        """The cursor, and what it is a cursor of."""
        return {
            "cursor": self.cursor,
            "seed": self.seed,
            "length": self.blocks.length,
            "packing": self.blocks.packing,
            "blocks": len(self.blocks),
            "window": getattr(self.blocks, "window", 0),  # shards that are mixed; 0: all of them
        }

    def load_state_dict(self, state: dict[str, int | str]) -> None:
        """Go on where `state` was taken; refuses a state of other data or another order."""
        mine, state = self.state_dict(), {"window": 0, **state}
        changed = [key for key in mine if key != "cursor" and state.get(key) != mine[key]]
        if changed:
            changes = ", ".join(f"{key} {state.get(key)} → {mine[key]}" for key in changed)
            raise UserError(
                f"the data order cannot be resumed ({changes}): use the run's own data and settings, or start a new run."
            )
        self.cursor = int(state["cursor"])


def validation_batches(
    blocks: Blocks, batch_size: int, limit: int | None = None, rank: Rank = ALONE, device: torch.device | str = "cpu"
) -> Iterator[Batch]:
    """Blocks in stored order, all of them or the first `limit`; every rank gets as many batches, all of one shape.

    Only the first `real` rows of a batch count; the others repeat the last block. Summed over ranks, each block counts once.
    """
    total = len(blocks) if limit is None else min(limit, len(blocks))
    rows = rank.rows(batch_size)

    def batches() -> Iterator[Batch]:
        mine = slice(rank.index * rows, (rank.index + 1) * rows)
        for start in range(0, total, batch_size):
            wanted = np.arange(start, start + batch_size, dtype=np.int64)
            yield _batch(blocks, np.minimum(wanted, total - 1), mine, real=int((wanted[mine] < total).sum()))

    return _prefetched(batches(), torch.device(device), depth=2)


def _batch(blocks: Blocks, indices: np.ndarray[Any, np.dtype[np.int64]], mine: slice, real: int | None = None) -> Batch:
    """This rank's rows, `mine`, of the global batch of those blocks."""
    tokens, documents = blocks.take(indices[mine])
    owners = None if documents is None else torch.from_numpy(documents)
    flags, learnt = blocks.learnt(indices), None
    if flags is not None:
        # The whole batch is looked at: its mean is known before its first gradient, without a word between ranks.
        total = torch.tensor(float(flags.sum()), dtype=torch.float64)
        learnt = Learnt(torch.from_numpy(flags[mine].copy()), total)
    return Batch(torch.from_numpy(tokens), owners, len(tokens) if real is None else real, learnt)


def _prefetched(batches: Iterator[Batch], device: torch.device, depth: int) -> Iterator[Batch]:
    """The batches on `device`, made by a thread up to `depth` ahead; its errors are raised here, and it ends when we do."""
    if device.type == "cuda":
        batches = map(Batch.pinned, batches)
    if depth < 1:
        yield from (batch.to(device) for batch in batches)
        return
    ready: queue.Queue[Batch | Exception | None] = queue.Queue(depth)
    stop = threading.Event()

    def put(item: Batch | Exception | None) -> None:
        while not stop.is_set():
            with contextlib.suppress(queue.Full):
                ready.put(item, timeout=0.1)
                break

    def work() -> None:
        try:
            for batch in batches:
                put(batch)
                if stop.is_set():
                    return
            put(None)
        except Exception as error:
            put(error)

    thread = threading.Thread(target=work, name="scdd-loader", daemon=True)
    thread.start()
    try:
        while (item := ready.get()) is not None:
            if isinstance(item, Exception):
                raise item
            yield item.to(device)
    finally:
        stop.set()
        thread.join()


class Permutation:
    """A pseudo-random bijection of range(n), the same for the same key on every machine.

    A Feistel network permutes a power of four ≥ n; a value that lands at n or beyond is sent through again
    (cycle walking), which keeps it a bijection on range(n). Four steps at most on average, no memory.
    """

    def __init__(self, n: int, *key: int) -> None:
        if n < 1:
            raise ValueError(f"a permutation of {n} things")
        self.n = n
        self._half = np.uint64(max(1, ((n - 1).bit_length() + 1) // 2))
        self._low = np.uint64((1 << int(self._half)) - 1)
        rounds = 6
        digest = hashlib.blake2b(repr((n, *key)).encode(), digest_size=8 * rounds).digest()
        self._keys = np.frombuffer(digest, dtype="<u8").astype(np.uint64)

    def __call__(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """The elements at `places`, each in range(n)."""
        x = np.asarray(places).astype(np.uint64)
        if x.size and int(x.max()) >= self.n:
            raise IndexError(f"place {int(x.max())} of a permutation of {self.n}")
        x = self._network(x)
        while (outside := x >= np.uint64(self.n)).any():
            x[outside] = self._network(x[outside])
        return x.astype(np.int64)

    def _network(self, x: NDArray[np.uint64]) -> NDArray[np.uint64]:
        left, right = x >> self._half, x & self._low
        for key in self._keys:
            left, right = right, left ^ (_mix(right ^ key) & self._low)
        return np.asarray((left << self._half) | right, dtype=np.uint64)


def _mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """splitmix64's finaliser: every bit of the input reaches every bit of the output."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(x ^ (x >> np.uint64(31)), dtype=np.uint64)
