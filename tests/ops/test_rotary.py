"""Queries and keys turned in place are what turned copies are, and values stay."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
import torch

from scdd.models.attention import rotate, tables
from tests.ops.cases import CUDA


@pytest.mark.skipif(find_spec("triton") is None, reason="no Triton here")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_turned_in_place(dtype: torch.dtype) -> None:
    from scdd.ops.rotary.triton import rotate_

    qkv = torch.randn(2, 5, 3, 3, 8, generator=torch.Generator().manual_seed(0)).to(CUDA, dtype)
    cos, sin = (each[2:7] for each in tables(0, 9, 4, torch.device(CUDA)))
    wanted = torch.stack([rotate(qkv[:, :, 0], cos, sin), rotate(qkv[:, :, 1], cos, sin), qkv[:, :, 2]], dim=2)
    rotate_(qkv, cos, sin)
    torch.testing.assert_close(qkv, wanted, rtol=1e-2 if dtype == torch.bfloat16 else 1e-6, atol=1e-6)
    assert not torch.equal(wanted[:, :, 0], wanted[:, :, 1])
