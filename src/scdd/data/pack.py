"""Blocks of exactly L tokens, cut from a stream of documents when they are read.

`wrap` is what the paper and MDLM do: documents run on, [EOS] between them, and every block is [BOS] + L − 2 tokens
+ [EOS]. `documents` keeps them apart: each one is [BOS] … [EOS], and a block records which of its positions belong
together, so that attention can stay inside a document. Long documents go on in the next block. Neither needs padding.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from scdd.core.errors import UserError
from scdd.data.shards import Shards, TokenStream

Packing = Literal["wrap", "documents", "pairs"]
Tokens = NDArray[np.int64]
Flags = NDArray[np.bool_]


@runtime_checkable
class Blocks(Protocol):
    """Random access to blocks 0 … len − 1."""

    @property
    def packing(self) -> Packing:
        """How documents are laid out."""

    @property
    def length(self) -> int:
        """L."""

    def __len__(self) -> int: ...

    def take(self, indices: Tokens) -> tuple[Tokens, Tokens | None]:
        """Tokens [n, L], and the document number of each position within its block, or None."""

    def learnt(self, indices: Tokens) -> Flags | None:
        """True at the tokens [n, L] that are learnt; None: at all of them."""


@dataclass(frozen=True)
class WrappedBlocks:
    """[BOS] + (L − 2) tokens of the stream + [EOS]; what is left at the stream's end is dropped."""

    stream: TokenStream
    length: int
    packing: ClassVar[Packing] = "wrap"

    def __len__(self) -> int:
        return self.stream.n_tokens // (self.length - 2)

    def take(self, indices: Tokens) -> tuple[Tokens, None]:
        """Tokens [n, L]; no document numbers."""
        inner = self.length - 2
        tokens = np.empty((len(indices), self.length), dtype=np.int64)
        tokens[:, 0], tokens[:, -1] = self.stream.bos_id, self.stream.eos_id
        for row, index in zip(tokens, indices.tolist(), strict=True):
            row[1:-1] = self.stream.read(index * inner, (index + 1) * inner)
        return tokens, None

    def learnt(self, indices: Tokens) -> None:
        """Everything."""


@dataclass(frozen=True)
class DocumentBlocks:
    """Blocks of the stream in which every document also has its [BOS], with document numbers.

    Document i starts at place end(i − 1) + i of that longer stream: one [BOS] for each document before it.
    """

    stream: TokenStream
    length: int
    packing: ClassVar[Packing] = "documents"

    def __len__(self) -> int:
        return (self.stream.n_tokens + self.stream.n_documents) // self.length

    def take(self, indices: Tokens) -> tuple[Tokens, Tokens]:
        """Tokens [n, L] and document numbers [n, L], which count from 0 in each block."""
        tokens = np.empty((len(indices), self.length), dtype=np.int64)
        documents = np.empty_like(tokens)
        for row, owner, index in zip(tokens, documents, indices.tolist(), strict=True):
            self._fill(row, owner, index * self.length)
        return tokens, documents

    def learnt(self, indices: Tokens) -> None:
        """Everything."""

    def _start(self, document: int) -> int:
        return (self.stream.end(document - 1) if document else 0) + document

    def _fill(self, row: Tokens, owner: Tokens, place: int) -> None:
        document = self.stream.document_at(place)
        filled = number = 0
        while filled < self.length:
            start, stop = self._start(document), self.stream.end(document) + document + 1
            begin, take = place - start, min(stop - place, self.length - filled)
            piece = row[filled : filled + take]
            if begin == 0:
                piece[0] = self.stream.bos_id
                piece[1:] = self.stream.read(start - document, start - document + take - 1)
            else:
                at = place - document - 1
                piece[:] = self.stream.read(at, at + take)
            owner[filled : filled + take] = number
            filled, place = filled + take, place + take
            document, number = document + 1, number + 1


def blocks_of(stream: TokenStream, length: int, packing: Packing) -> Blocks:
    """Blocks of `length` tokens, maybe none."""
    return WrappedBlocks(stream, length) if packing == "wrap" else DocumentBlocks(stream, length)


def cut(stream: TokenStream, length: int, packing: Packing = "wrap", window: int | None = None) -> Blocks:
    """Blocks of `length` tokens; refuses a length or a stream too short for one block.

    `window` mixes so many shards at a time, and cuts each for itself (`scdd.data.window`).
    """
    if length < 4:
        raise UserError(f"length is {length}, too short for [BOS] … [EOS] blocks: choose 4 or more.", "length")
    if packing not in ("wrap", "documents"):
        raise UserError(f"packing '{packing}' is not known: choose wrap or documents.", "packing")
    blocks: Blocks
    if window is None or not isinstance(stream, Shards):
        blocks = blocks_of(stream, length, packing)
    else:
        from scdd.data.window import WindowedBlocks

        blocks = WindowedBlocks(stream, length, packing, window)
    if not len(blocks):
        raise UserError(
            f"the data has {stream.n_tokens} tokens, not enough for one block of {length}: give more text or a shorter length."
        )
    return blocks
