"""The bookkeeping of a step, the lookup before it and the head's barred bias: the kernels leave what the definitions leave, bit by bit."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any

import pytest
import torch
from torch import Tensor

from scdd.core import Head, Vocab
from scdd.core.types import padded
from scdd.ops.bookkeeping import Decided, Rows, lookup, record
from scdd.ops.bookkeeping.reference import CORRECTED, KEPT, REMASKED, UNMASKED
from scdd.ops.common import barred_bias
from tests.ops.cases import CUDA

pytestmark = pytest.mark.skipif(find_spec("triton") is None, reason="no Triton here")
MASK = 3


@pytest.fixture(autouse=True)
def _several_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("bookkeeping", "barred"):
        monkeypatch.setattr(import_module(f"scdd.ops.{name}.triton"), "BLOCK", 16)


def rows_of_all_kinds(seed: int, columns: int) -> tuple[Rows, Decided]:
    """Rows with masks and tokens, padding and frozen positions; some are done, and then nothing of them may change. What the step says
    of the others keeps, unmasks, corrects and remasks, and of what may not change it says something as well."""
    generator = torch.Generator().manual_seed(seed)

    def some(high: int, *shape: int) -> Tensor:
        return torch.randint(high, shape, generator=generator)

    def logs() -> Tensor:
        x = -torch.rand((6, columns), generator=generator)
        return torch.where(some(4, 6, columns) == 0, torch.nan, torch.where(some(5, 6, columns) == 0, -torch.inf, x))

    tokens, new = some(6, 6, columns), some(6, 6, columns)
    new = torch.where(some(3, 6, columns) == 0, tokens, new)
    updatable = (some(5, 6, columns) > 0) & (torch.arange(columns) < some(columns + 1, 6, 1) + 1)
    done = torch.tensor([False, True, False, False, True, False])
    updatable &= ~done[:, None]
    large = 2**40
    rows = Rows(tokens, updatable, logs(), logs(), some(large, 6, 3), some(large, 6), done, some(large, 6), some(99, 6))
    finished = torch.tensor([True, True, False, False, False, True])
    return rows, Decided(new, logs(), logs(), finished, rows.calls + some(9, 6), torch.tensor([1, 1, 0, 1, 0, 1]))


def same(found: tuple[Rows, Tensor], wanted: tuple[Rows, Tensor]) -> bool:
    pairs = zip((*found[0], found[1]), (*wanted[0], wanted[1]), strict=True)
    return all(a.dtype == b.dtype and torch.equal(a.cpu().nan_to_num(9.0), b.nan_to_num(9.0)) for a, b in pairs)


@pytest.mark.parametrize("columns", [1, 16, 21, 70])
@pytest.mark.parametrize("standing", [True, False], ids=["looked", "unseen"])
@pytest.mark.parametrize("ends", [True, False], ids=["ends", "goes on"])
def test_a_step_is_recorded_as_defined(columns: int, standing: bool, ends: bool) -> None:
    """In new tensors, which leave the rows as they were, and over the rows themselves."""
    rows, decided = rows_of_all_kinds(columns, columns)
    decided = decided._replace(
        standing=decided.standing if standing else None, finished=decided.finished if ends else None
    )
    wanted = record(rows, decided, MASK, impl="reference")
    if columns > 16:
        assert set(wanted[1].reshape(-1).tolist()) == {KEPT, UNMASKED, CORRECTED, REMASKED}
    here = Rows(*(each.to(CUDA, copy=True) for each in rows))
    there = Decided(*(None if each is None else each.to(CUDA) for each in decided))  # type: ignore[arg-type]
    assert same(record(here, there, MASK, impl="triton"), wanted)
    assert same((here, wanted[1]), (rows, wanted[1])), "nothing is written over unless it may be"
    into = torch.full_like(wanted[1], 9).to(CUDA)
    after, moved = record(here, there, MASK, into, impl="triton")
    assert same((after, moved), wanted)
    assert moved is into
    assert all(mine is given for mine, given in zip(after, here, strict=True))


@pytest.mark.parametrize("over", [True, False], ids=["over", "apart"])
def test_what_a_step_says_may_be_of_any_kind(over: bool) -> None:
    """Tokens that are the rows' own, log x_θ in float64, and one value for all positions of a row."""
    rows, decided = rows_of_all_kinds(5, 40)
    assert decided.standing is not None
    double, column = decided.log_p.double() * 1.1, decided.standing.double()[:, :1] / 3
    for each in (decided._replace(log_p=double), decided._replace(log_p=double, standing=column)):
        wanted = record(rows, each, MASK, impl="reference")
        here = Rows(*(part.to(CUDA, copy=True) for part in rows))
        there = Decided(*(None if part is None else part.to(CUDA) for part in each))  # type: ignore[arg-type]
        into = torch.empty_like(wanted[1]).to(CUDA) if over else None
        assert same(record(here, there, MASK, into, impl="triton"), wanted)
        own = there._replace(tokens=here.tokens, log_p=here.log_p, standing=here.log_p)
        still, moved = record(here, own, MASK, into, impl="triton")
        assert not moved.any()
        assert torch.equal(still.tokens, here.tokens)


@pytest.mark.parametrize("columns", [1, 16, 37])
@pytest.mark.parametrize("heats", [True, False])
def test_rows_are_looked_up(columns: int, heats: bool) -> None:
    generator = torch.Generator().manual_seed(columns)
    reals = torch.rand((50, 14), dtype=torch.float64, generator=generator)
    numbers = torch.randint(2**40, (50, 3), generator=generator)
    at = torch.tensor([49, 0, 7, 7, 31])
    heat = torch.rand((5, 1), dtype=torch.float64, generator=generator) if heats else None
    wanted = lookup((reals, numbers), at, heat, columns, impl="reference")
    there: list[Any] = [each if each is None else each.to(CUDA) for each in (reals, numbers, at, heat)]
    found = lookup((there[0], there[1]), there[2], there[3], columns, impl="triton")
    for mine, theirs in zip(found, wanted, strict=True):
        if theirs is None:
            assert mine is None
            continue
        assert mine is not None
        assert mine.is_contiguous()
        assert mine.dtype == theirs.dtype
        assert torch.equal(mine.cpu(), theirs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("given", [None, torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("mask_id", [0, 29, 17])
def test_the_bias_is_barred(dtype: torch.dtype, given: torch.dtype | None, mask_id: int) -> None:
    from scdd.ops.barred.triton import barred as fused

    vocab, rows = Vocab(30, mask_id), padded(30)
    values = torch.randn(rows, generator=torch.Generator().manual_seed(1)).double() * 3
    if CUDA == "cpu":
        values = values.bfloat16().double()  # the interpreter does not round to bfloat16, but cuts
    values[5], values[6] = torch.nan, torch.inf
    bias = None if given is None else values.to(CUDA, given)
    head = Head(torch.zeros((rows, 2), device=CUDA), vocab, bias)
    here = Head(head.weight.cpu(), vocab, None if bias is None else bias.cpu())
    wanted, found = barred_bias(here, dtype), fused(head, dtype).cpu()
    assert found.dtype == wanted.dtype == dtype
    assert torch.equal(found.nan_to_num(9.0, 8.0, -8.0), wanted.nan_to_num(9.0, 8.0, -8.0))
    assert int((found == -torch.inf).sum()) == rows - vocab.K
