from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scdd.core.errors import UserError
from scdd.data.pack import Packing, cut
from scdd.data.shards import MemoryTokens

PACKINGS: tuple[Packing, ...] = ("wrap", "documents")
BOS, EOS = 1, 2
streams = st.lists(st.lists(st.integers(3, 99), max_size=40), min_size=1, max_size=12)


def everything(
    documents: list[list[int]], length: int, packing: Packing
) -> tuple[list[list[int]], list[list[int]] | None]:
    blocks = cut(MemoryTokens(documents, BOS, EOS), length, packing)
    tokens, owners = blocks.take(np.arange(len(blocks)))
    return tokens.tolist(), None if owners is None else owners.tolist()


@given(documents=streams, length=st.integers(4, 20))
def test_wrapped_blocks_hold_the_stream_between_bos_and_eos(documents: list[list[int]], length: int) -> None:
    stream = [i for document in documents for i in (*document, EOS)]
    if len(stream) < length - 2:
        with pytest.raises(UserError, match="not enough for one block"):
            everything(documents, length, "wrap")
        return
    blocks, owners = everything(documents, length, "wrap")
    assert owners is None
    assert all(len(block) == length and block[0] == BOS and block[-1] == EOS for block in blocks)
    inner = [i for block in blocks for i in block[1:-1]]
    assert inner == stream[: len(inner)]
    assert len(stream) - len(inner) < length - 2, "no more than a part of a block is dropped"


@given(documents=streams, length=st.integers(4, 20))
def test_documents_kept_apart_are_told_apart(documents: list[list[int]], length: int) -> None:
    pairs = [(i, number) for number, document in enumerate(documents) for i in (BOS, *document, EOS)]
    if len(pairs) < length:
        with pytest.raises(UserError):
            everything(documents, length, "documents")
        return
    blocks, owners = everything(documents, length, "documents")
    assert owners is not None
    assert [i for block in blocks for i in block] == [i for i, _ in pairs[: len(blocks) * length]]
    assert len(pairs) - len(blocks) * length < length
    for number, owner in enumerate(owners):
        true = [document for _, document in pairs[number * length : (number + 1) * length]]
        assert owner == [document - true[0] for document in true]


def test_blocks_can_be_taken_in_any_order() -> None:
    documents = [[3] * 5, [4] * 9, [], [5] * 30]
    for packing in PACKINGS:
        blocks = cut(MemoryTokens(documents, BOS, EOS), 7, packing)
        whole, _ = blocks.take(np.arange(len(blocks)))
        some, _ = blocks.take(np.array([4, 0, 4, 2]))
        assert some.tolist() == whole[[4, 0, 4, 2]].tolist()


def test_mistakes_are_named() -> None:
    stream = MemoryTokens([[3] * 50], BOS, EOS)
    with pytest.raises(UserError, match="too short"):
        cut(stream, 3)
    with pytest.raises(UserError, match="choose wrap or documents"):
        cut(stream, 8, "padded")  # type: ignore[arg-type]
