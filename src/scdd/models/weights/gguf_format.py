"""The bytes of a GGUF file: metadata and the places of tensors, every length checked against the file's own.

Written down here rather than left to the `gguf` package, whose reader trusts lengths and takes seconds for a tokenizer;
that package undoes the quantisation.
"""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

MAGIC = b"GGUF"
VERSIONS = (2, 3)
MOST = 1 << 16  # entries of the metadata, or tensors
MOST_VALUES = 1 << 22  # of a list in the metadata, and of all lists together: tokens, merges
LONGEST = 1 << 24  # bytes of a text
STRING, ARRAY = 8, 9
SCALARS = {0: "u1", 1: "i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4", 7: "?", 10: "<u8", 11: "<i8", 12: "<f8"}


@dataclass(frozen=True)
class StoredTensor:
    """A tensor's bytes, a row of it in each row; `kind` is its number in the format's list of types."""

    kind: int
    shape: tuple[int, ...]
    content: NDArray[np.uint8]


class Cursor:
    """Reads forwards; ValueError where the file ends too soon."""

    def __init__(self, content: mmap.mmap) -> None:
        self.content, self.at = content, 0
        self.values = MOST_VALUES

    def take(self, count: int) -> bytes:
        """The next bytes."""
        if not 0 <= count <= len(self.content) - self.at:
            raise ValueError("it ends too soon")
        self.at += count
        return self.content[self.at - count : self.at]

    def number(self, code: str) -> int:
        """A whole number in a code of `struct`."""
        (value,) = struct.unpack(f"<{code}", self.take(struct.calcsize(code)))
        return int(value)

    def string(self) -> str:
        """Its length, then UTF-8."""
        length = self.number("Q")
        if length > LONGEST:
            raise ValueError(f"it has a text of {length} bytes")
        return self.take(length).decode("utf-8", "replace")

    def value(self, kind: int) -> Any:
        """What a key of the metadata holds."""
        if kind == STRING:
            return self.string()
        if kind != ARRAY:
            return self._scalars(kind, 1)[0]
        inner, count = self.number("I"), self.number("Q")
        if inner != STRING:
            return self._scalars(inner, count)
        self._spend(count)
        return [self.string() for _ in range(count)]

    def _spend(self, count: int) -> None:
        """Values take more room here than in the file."""
        self.values -= count
        if self.values < 0:
            raise ValueError(f"its metadata have more than {MOST_VALUES:,} values")

    def _scalars(self, kind: int, count: int) -> list[Any]:
        if kind not in SCALARS:
            raise ValueError(f"it has a value of the unknown kind {kind}")
        self._spend(count)
        dtype = np.dtype(SCALARS[kind])
        values: list[Any] = np.frombuffer(self.take(dtype.itemsize * count), dtype).tolist()
        return values


def read(file: Path, sizes: dict[int, tuple[int, int]]) -> tuple[dict[str, Any], dict[str, StoredTensor]]:
    """(Metadata, tensors); `sizes` are (numbers, bytes) of a block of each type. ValueError where the file is damaged."""
    with open(file, "rb") as handle:
        content = mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ)
    cursor = Cursor(content)
    if cursor.take(4) != MAGIC:
        raise ValueError("it does not begin with GGUF")
    version, tensors, keys = cursor.number("I"), cursor.number("Q"), cursor.number("Q")
    if version not in VERSIONS:
        raise ValueError(f"its version is {version}, and {' and '.join(map(str, VERSIONS))} are known")
    if max(tensors, keys) > MOST:
        raise ValueError(f"it promises {tensors} tensors and {keys} keys")
    facts = {cursor.string(): cursor.value(cursor.number("I")) for _ in range(keys)}
    places = [_place(cursor, sizes) for _ in range(tensors)]
    alignment = facts.get("general.alignment", 32)
    if not isinstance(alignment, int) or not 1 <= alignment <= 1 << 20:
        raise ValueError(f"its alignment is {alignment}")
    start = -(-cursor.at // alignment) * alignment
    whole = np.frombuffer(content, dtype=np.uint8)
    found: dict[str, StoredTensor] = {}
    for name, kind, shape, row, offset in places:
        end = start + offset + row * prod(shape[:-1])
        if end > len(content):
            raise ValueError(f"it ends inside {name}")
        rows = whole[start + offset : end].reshape(*shape[:-1], row)
        found[name] = StoredTensor(kind, shape, rows)
    return facts, found


def _place(cursor: Cursor, sizes: dict[int, tuple[int, int]]) -> tuple[str, int, tuple[int, ...], int, int]:
    """(Name, type, shape with the longest-strided axis first, bytes of a row, offset)."""
    name, axes = cursor.string(), cursor.number("I")
    if not 1 <= axes <= 4:
        raise ValueError(f"{name} has {axes} dimensions")
    shape = tuple(cursor.number("Q") for _ in range(axes))[::-1]
    kind, offset = cursor.number("I"), cursor.number("Q")
    if kind not in sizes or shape[-1] % sizes[kind][0]:
        raise ValueError(f"{name} is of type {kind}, which does not fit {shape[-1]} numbers")
    return name, kind, shape, shape[-1] // sizes[kind][0] * sizes[kind][1], offset
