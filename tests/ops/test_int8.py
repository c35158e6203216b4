"""The 8-bit product: exact sums, hence equal to the reference bit by bit, alone or together, with any number of threads."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from scdd.core.errors import UserError
from scdd.ops import int8

pytestmark = pytest.mark.skipif(not int8.supported(), reason="no exact 8-bit products on this CPU")

SHAPES = [(1, 16, 1), (5, 33, 7), (130, 64, 48), (64, 520, 130)]


def case(rows: int, inner: int, outer: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(rows * inner)
    sizes = torch.logspace(-3, 3, rows)[:, None]  # each row has a size of its own
    x = torch.randn(rows, inner, generator=generator) * sizes
    return x, torch.randn(outer, inner, generator=generator), torch.randn(outer, generator=generator)


@pytest.mark.parametrize("shape", SHAPES)
def test_fast_is_the_reference(shape: tuple[int, int, int]) -> None:
    x, weight, bias = case(*shape)
    matrix = int8.rounded(weight)
    for given in (None, bias):
        fast, plain = (int8.linear(x, matrix, given, impl) for impl in ("fast", "reference"))
        assert torch.equal(fast, plain), "whole numbers add up exactly"
        assert (fast.dtype, fast.shape) == (torch.float32, (shape[0], shape[2]))


@pytest.mark.parametrize("shape", SHAPES)
def test_no_further_from_the_product_than_both_roundings_allow(shape: tuple[int, int, int]) -> None:
    """|x̂ŵ − xw| ≤ |x̂ − x||w| + |ŵ − w||x̂|, and a rounding moves a number by half a step at most."""
    x, weight, bias = case(*shape)
    found = int8.linear(x, int8.rounded(weight), bias).double()
    x, weight = x.double(), weight.double()
    step, scale = x.abs().amax(1, keepdim=True) / 127, weight.abs().amax(1) / 127
    bound = step / 2 * weight.abs().sum(1) + scale / 2 * (x.abs() + step / 2).sum(1, keepdim=True)
    gap = (found - (x @ weight.T + bias.double())).abs()
    assert bool((gap <= bound * (1 + 1e-5) + 1e-5).all())


def test_a_row_is_the_same_alone_in_any_company_and_with_any_threads() -> None:
    x, weight, bias = case(130, 64, 48)
    matrix, before = int8.rounded(weight), torch.get_num_threads()
    whole = int8.linear(x, matrix, bias)
    try:
        for threads in (1, 2, 3, 4):
            torch.set_num_threads(threads)
            for part in (slice(0, 1), slice(7, 24), slice(100, 130)):
                assert torch.equal(int8.linear(x[part], matrix, bias), whole[part])
    finally:
        torch.set_num_threads(before)


def test_rounding_again_changes_nothing() -> None:
    matrix = int8.rounded(case(1, 64, 48)[1])
    again = int8.rounded(matrix.codes.float() * matrix.scale[:, None])
    assert torch.equal(again.codes, matrix.codes)
    torch.testing.assert_close(again.scale, matrix.scale, rtol=2e-7, atol=0.0)


def test_rows_of_zeros_and_rows_that_are_no_numbers() -> None:
    x, weight, bias = case(5, 33, 7)
    weight[3] = 0.0
    x[1], x[2, 4], x[4, 0] = 0.0, torch.nan, torch.inf
    y = int8.linear(x, int8.rounded(weight), bias)
    assert torch.equal(y[1], bias)
    assert torch.equal(y[:1, 3], bias[3:4])
    assert bool(y[2].isnan().all()), "what is wrong is seen"
    assert not bool(y[4].isfinite().any())
    with pytest.raises(UserError, match="choose one of"):
        int8.linear(x, int8.rounded(weight), impl="triton")


def test_a_cpu_whose_sums_overflow_is_not_taken_for_one_that_adds_exactly() -> None:
    """Without VNNI the library adds pairs of products in 16 bits, which no test with small numbers notices."""
    older = {**os.environ, "ONEDNN_MAX_CPU_ISA": "AVX2"}
    asked = (
        "import torch; from scdd.ops import int8; a = torch.full((32, 64), 127, dtype=torch.int8);"
        "print(bool((torch._int_mm(a, a.T) == 64 * 127 * 127).all()), int8.supported())"
    )
    done = subprocess.run([sys.executable, "-c", asked], env=older, capture_output=True, text=True, check=True)
    exact, taken = done.stdout.split()
    assert taken == exact
