"""Queries and keys turned in place are what turned copies are, and values stay."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
import torch

from scdd.models.attention import rotate, tables
from tests.ops.cases import CUDA


@pytest.mark.skipif(find_spec("triton") is None, reason="no Triton here")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("heads", [(3, 3, 3), (6, 2, 2), (1, 1, 1)], ids=str)
def test_turned_in_place(heads: tuple[int, int, int], dtype: torch.dtype) -> None:
    from scdd.ops.rotary.triton import rotate_

    every = torch.randn(2, 5, sum(heads), 8, generator=torch.Generator().manual_seed(0)).to(CUDA, dtype)
    cos, sin = (each[2:7] for each in tables(0, 9, 4, torch.device(CUDA)))
    q, k, v = every.clone().split(heads, dim=2)
    wanted = torch.cat([rotate(q, cos, sin), rotate(k, cos, sin), v], dim=2)
    rotate_(every, heads[0] + heads[1], cos, sin)
    torch.testing.assert_close(every, wanted, rtol=1e-2 if dtype == torch.bfloat16 else 1e-6, atol=1e-6)
    assert not torch.equal(every[:, :, : heads[0]], q)
    assert torch.equal(every[:, :, heads[0] + heads[1] :], v)
