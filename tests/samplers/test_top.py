"""The likeliest tokens against a dense softmax, with every extra that a head may have."""

from __future__ import annotations

import pytest
import torch

from scdd.core import Head, Vocab
from scdd.core.types import padded
from scdd.ops.head import top
from scdd.ops.head.reference import logits


@pytest.mark.parametrize("mask_id", [0, 5, 10])
@pytest.mark.parametrize("extras", [False, True], ids=["plain", "biases"])
@pytest.mark.parametrize("k", [1, 2, 4])
def test_top(mask_id: int, extras: bool, k: int) -> None:
    generator = torch.Generator().manual_seed(mask_id + k)
    vocab = Vocab(11, mask_id)
    weight = torch.randn(padded(11), 6, generator=generator) * 3  # padding rows must not matter
    bias = torch.randn(padded(11), generator=generator) if extras else None
    head = Head(weight, vocab, bias, torch.tensor(2.0) if extras else None)
    hidden, z = torch.randn(40, 6, generator=generator), torch.randint(11, (40,), generator=generator)
    found = top(hidden, head, z, k)
    dense = torch.log_softmax(logits(hidden, head, z), -1)
    best = dense.topk(k, -1)
    assert found.tokens.tolist() == best.indices.tolist()
    torch.testing.assert_close(found.log_p.double(), best.values, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(found.log_p_z.double(), dense.gather(-1, z[:, None])[:, 0], atol=1e-5, rtol=1e-5)
    assert bool((found.log_p_z[z == mask_id] == -torch.inf).all())
