"""What happens to a position: the kernel chooses as the definition does, number by number."""

from __future__ import annotations

from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from scdd.core import Transition, Vocab
from scdd.core.rng import CounterRNG
from scdd.processes.scdd import SCDD
from scdd.samplers.base import Context, outcomes
from scdd.schedules.peaked import Peaked
from tests.ops.cases import CUDA


@pytest.mark.skipif(find_spec("triton") is None, reason="no Triton here")
@pytest.mark.parametrize("mask_id", [0, 3, 8])
def test_outcomes_are_the_definitions(mask_id: int, monkeypatch: pytest.MonkeyPatch) -> None:
    from scdd.ops.outcome import triton as fused

    monkeypatch.setattr(fused, "BLOCK", 16)
    vocab, generator = Vocab(9, mask_id), torch.Generator().manual_seed(mask_id)
    z = torch.randint(9, (5, 21), generator=generator)
    parts = torch.rand((4, 5, 21), dtype=torch.float64, generator=generator)
    parts[0, :, :7] = 0.0  # where keep is impossible, rounding falls on the model
    keep, model, uniform, mask = parts / parts.sum(0)
    move = Transition(keep, model, uniform, mask[:, :1])  # one may be a column
    updatable = torch.rand((5, 21), generator=generator) < 0.8
    rng = CounterRNG([1, 2, 2**63 + 7, -4, 0], [9, 1, 2**40, 3, 0])
    before = torch.tensor([0, 3, 1, 7, 2**33])
    rng = CounterRNG.resumed(rng.keys, before)
    state: Any = SimpleNamespace(tokens=z)
    ctx = SimpleNamespace(state=state, rng=rng, updatable=updatable, vocab=vocab, process=SCDD(vocab, Peaked(p_u=0.2)))
    wanted = outcomes(move, cast(Context, ctx))
    on = [part.to(CUDA) for part in (*move, z, updatable, rng.keys, before)]
    *found, calls = fused.outcomes(Transition(*on[:4]), on[4], on[5], vocab, on[6], on[7])
    assert isinstance(rng.calls, torch.Tensor)
    assert torch.equal(calls.cpu(), rng.calls)
    assert torch.equal(on[7].cpu(), before)
    drawn, _, other, _ = wanted
    assert 0 < int(drawn.sum()) < drawn.numel()
    assert len(set(other.reshape(-1).tolist())) > 6
    for mine, theirs in zip(found, wanted, strict=True):
        mine = mine.cpu()
        if mine.dtype == torch.int64:
            mine, theirs = torch.where(drawn, 0, mine), torch.where(drawn, 0, theirs)  # nobody reads it there
        assert torch.equal(mine.nan_to_num(9.0), theirs.nan_to_num(9.0))
