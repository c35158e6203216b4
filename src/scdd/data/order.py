"""A shuffled order that needs no list: a keyed bijection on 0 … n − 1."""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

_ROUNDS = 6


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
        digest = hashlib.blake2b(repr((n, *key)).encode(), digest_size=8 * _ROUNDS).digest()
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
