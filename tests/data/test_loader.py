from __future__ import annotations

import threading
from itertools import islice
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from scdd.core.errors import UserError
from scdd.data.loader import Batch, Loader, Rank, validation_batches
from scdd.data.pack import Packing, cut
from scdd.data.shards import MemoryTokens

# Block i of length 8 holds 6 tokens, all equal to 100 + i, so that a row tells which block it is.
BLOCKS = 23
STREAM = MemoryTokens([[100 + i // 6 for i in range(BLOCKS * 6)]], bos_id=1, eos_id=2)


def loader(batch_size: int = 4, packing: Packing = "wrap", **more: Any) -> Loader:
    return Loader(cut(STREAM, 8, packing), batch_size, **{"seed": 5, "prefetch": 0, **more})


def blocks(batches: list[Batch]) -> list[int]:
    return [int(row) - 100 for batch in batches for row in batch.tokens[:, 1]]


def test_a_batch_has_its_shape() -> None:
    batch = next(iter(loader()))
    assert batch.tokens.shape == (4, 8)
    assert batch.tokens.dtype == torch.int64
    assert batch.documents is None
    assert batch.real == 4
    apart = next(iter(loader(packing="documents")))
    assert apart.documents is not None
    assert apart.documents.shape == (4, 8)


@given(seed=st.integers(0, 2**31), batch_size=st.integers(1, 30))
def test_every_epoch_shows_every_block_once(seed: int, batch_size: int) -> None:
    count = -(-3 * BLOCKS // batch_size)
    shown = blocks(list(islice(loader(batch_size, seed=seed), count)))
    epochs = [shown[i * BLOCKS : (i + 1) * BLOCKS] for i in range(3)]
    assert all(sorted(epoch) == list(range(BLOCKS)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3, "each epoch has its own order"


@pytest.mark.parametrize("world", [1, 2, 3, 4, 12])
@pytest.mark.parametrize("packing", ["wrap", "documents"])
def test_global_batches_do_not_depend_on_the_ranks(world: int, packing: Packing) -> None:
    whole = [batch.tokens for batch in islice(loader(12, packing=packing), 5)]
    ranks = [list(islice(loader(12, rank=Rank(r, world), packing=packing), 5)) for r in range(world)]
    for k in range(5):
        assert torch.equal(torch.cat([rank[k].tokens for rank in ranks]), whole[k])


@given(stop=st.integers(0, 20), prefetch=st.sampled_from([0, 1, 3]), world=st.sampled_from([1, 2]))
def test_resuming_anywhere_equals_going_on(stop: int, prefetch: int, world: int) -> None:
    whole = [batch.tokens for batch in islice(loader(), 25)]
    first = loader(prefetch=prefetch)
    list(islice(first, stop))
    state = first.state_dict()
    assert state["cursor"] == 4 * stop
    ranks = [loader(prefetch=prefetch, rank=Rank(r, world)) for r in range(world)]
    for rank in ranks:
        rank.load_state_dict(state)
    rest = [list(islice(rank, 25 - stop)) for rank in ranks]
    assert all(torch.equal(torch.cat([rank[k].tokens for rank in rest]), whole[stop + k]) for k in range(25 - stop))


def test_a_broken_off_iteration_goes_on_with_the_next_batch() -> None:
    whole = blocks(list(islice(loader(), 6)))
    one = loader(prefetch=3)
    assert blocks([*islice(one, 2), *islice(one, 4)]) == whole


def test_prefetching_changes_nothing_and_leaves_no_thread() -> None:
    before = threading.active_count()
    for depth in (1, 4):
        ahead = iter(loader(prefetch=depth))
        assert blocks(list(islice(ahead, 30))) == blocks(list(islice(loader(), 30)))
        ahead.close()  # type: ignore[attr-defined]
    assert threading.active_count() == before


def test_errors_of_the_thread_are_raised_where_batches_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    one = loader(prefetch=2)
    monkeypatch.setattr(STREAM, "read", lambda start, stop: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        next(iter(one))


def test_states_of_other_orders_are_refused() -> None:
    state = loader().state_dict()
    for other in (loader(seed=6), loader(packing="documents"), Loader(cut(STREAM, 9), batch_size=4, seed=5)):
        with pytest.raises(UserError, match="cannot be resumed"):
            other.load_state_dict(state)
    bigger = loader(batch_size=6)
    bigger.load_state_dict({**state, "cursor": 8})
    assert blocks([next(iter(bigger))]) == blocks(list(islice(loader(), 4)))[8:14]


def test_batches_must_divide_among_ranks() -> None:
    with pytest.raises(UserError, match="choose a multiple of 3"):
        loader(4, rank=Rank(0, 3))


@pytest.mark.parametrize("world", [1, 2, 4])
@pytest.mark.parametrize(("limit", "count"), [(None, BLOCKS), (9, 9), (8, 8), (1, 1), (99, BLOCKS)])
def test_validation_counts_each_block_once(world: int, limit: int | None, count: int) -> None:
    every = cut(STREAM, 8)
    ranks = [list(validation_batches(every, 8, limit, Rank(r, world))) for r in range(world)]
    assert len({len(rank) for rank in ranks}) == 1, "ranks that wait for each other need as many batches"
    assert {tuple(batch.tokens.shape) for rank in ranks for batch in rank} == {(8 // world, 8)}
    shown = [
        number
        for k in range(len(ranks[0]))
        for rank in ranks
        for number in blocks([Batch(rank[k].tokens[: rank[k].real], None, 0)])
    ]
    assert shown == list(range(count))


@pytest.mark.gpu
def test_batches_on_a_gpu_equal_those_on_the_cpu() -> None:
    there = list(islice(loader(device="cuda", prefetch=3), 12))
    assert all(batch.tokens.is_cuda for batch in there)
    assert blocks(there) == blocks(list(islice(loader(), 12)))
