"""Windows of shards: every block once an epoch, from few shards at a time, in an order that never changes."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from scdd.core.errors import UserError
from scdd.data.loader import Loader
from scdd.data.pack import Packing, cut
from scdd.data.tokenizer import TextTokenizer
from tests.data.test_shards import DOCUMENTS, PACKINGS, write


@pytest.mark.parametrize("packing", PACKINGS)
@pytest.mark.parametrize("window", [1, 2, 3, 99])
def test_every_block_comes_once_an_epoch_from_few_shards(
    tmp_path: Path, tokenizer: TextTokenizer, packing: Packing, window: int
) -> None:
    shards = write(tmp_path, tokenizer, DOCUMENTS * 3, [20, 31, 32, 60, 95])
    blocks = cut(shards, 12, packing, window)
    loader, total = Loader(blocks, 4, seed=9), len(blocks)
    starts = [shards.start(i) for i in range(7)]
    sizes = [
        (b[0] - a[0]) // 10 if packing == "wrap" else (b[0] - a[0] + b[1] - a[1]) // 12 for a, b in pairwise(starts)
    ]
    assert total == sum(sizes)
    epochs = []
    for epoch in range(3):
        order = loader.samples(epoch * total, (epoch + 1) * total)
        assert sorted(order.tolist()) == list(range(total))
        epochs.append(order.tolist())
        owner = np.searchsorted(np.cumsum([0, *sizes]), order, side="right") - 1
        # Cut where a shard comes for the first time that is not of the window before: no window has more than its share.
        seen: list[set[int]] = [set()]
        for shard in owner.tolist():
            if shard not in seen[-1] and len(seen[-1]) == window:
                seen.append(set())
            assert not any(shard in earlier for earlier in seen[:-1]), "what is left behind is not needed again"
            seen[-1].add(shard)
    assert epochs[0] != epochs[1] != epochs[2]
    one = blocks.take(np.arange(total))
    for i in (0, total // 2, total - 1):
        alone = blocks.take(np.array([i]))
        assert np.array_equal(alone[0][0], one[0][i])


def test_blocks_are_those_of_each_shard_alone(tmp_path: Path, tokenizer: TextTokenizer) -> None:
    cuts = [0, 13, 21, 40]
    whole = write(tmp_path, tokenizer, DOCUMENTS, cuts[1:-1])
    for packing in PACKINGS:
        blocks, at = cut(whole, 16, packing, 2), 0
        for number, (start, stop) in enumerate(pairwise(cuts)):
            folder = tmp_path / f"{packing}-{number}"
            folder.mkdir()
            alone = cut(write(folder, tokenizer, DOCUMENTS[start:stop], []), 16, packing)
            every = np.arange(len(alone))
            for ours, theirs in zip(blocks.take(at + every), alone.take(every), strict=True):
                assert np.array_equal(ours, theirs) if ours is not None and theirs is not None else ours is theirs
            at += len(alone)
        assert at == len(blocks)


def test_the_order_is_fixed_for_good(tmp_path: Path, tokenizer: TextTokenizer) -> None:
    """Runs must resume with later versions: this order may never change."""
    shards = write(tmp_path, tokenizer, DOCUMENTS, [10, 20, 30])
    loader = Loader(cut(shards, 32, "wrap", 2), 4, seed=42)
    assert loader.samples(0, len(loader.blocks)).tolist() == ORDER


def test_another_window_is_another_order(tmp_path: Path, tokenizer: TextTokenizer) -> None:
    shards = write(tmp_path, tokenizer, DOCUMENTS, [10, 20, 30])
    state = Loader(cut(shards, 32, "wrap", 2), 4).state_dict()
    Loader(cut(shards, 32, "wrap", 2), 4).load_state_dict(state)
    with pytest.raises(UserError, match="window 2 → 3"):
        Loader(cut(shards, 32, "wrap", 3), 4).load_state_dict(state)
    plain = Loader(cut(shards, 32), 4)
    old = {key: value for key, value in plain.state_dict().items() if key != "window"}
    plain.load_state_dict(old)  # as it was saved before there were windows


ORDER = [6, 17, 15, 4, 14, 8, 16, 18, 7, 5, 3, 11, 10, 2, 13, 0, 1, 12, 9]
