from __future__ import annotations

import pytest
import torch

from scdd.core import UserError, Vocab


@pytest.mark.parametrize("size", [-1, 0, 1, 2])
def test_too_small(size: int) -> None:
    with pytest.raises(UserError, match=rf"Vocab\.size is {size}: give at least two ordinary tokens"):
        Vocab(size, 0)


@pytest.mark.parametrize("mask_id", [-1, 5, 50])
def test_mask_outside(mask_id: int) -> None:
    with pytest.raises(UserError, match=rf"Vocab\.mask_id is {mask_id}: choose an id from 0 to size - 1 = 4"):
        Vocab(5, mask_id)


@pytest.mark.parametrize("mask_id", range(5))
def test_ordinals_step_over_the_mask(mask_id: int) -> None:
    vocab = Vocab(5, mask_id)
    ids = vocab.token(torch.arange(vocab.K))
    assert ids.tolist() == [v for v in range(5) if v != mask_id]
    assert ids.dtype == torch.int64
    assert vocab.ordinary().tolist() == [v != mask_id for v in range(5)]
