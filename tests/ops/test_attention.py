"""Attention over short rows: the kernels against plain PyTorch, values and gradients."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
import torch
from torch import Tensor

from scdd.models.attention import tables
from scdd.ops.attention import Heads, mixed_values, pays
from tests.ops.cases import CUDA

TRITON = pytest.mark.skipif(find_spec("triton") is None, reason="no Triton here")
WIDE = 24  # of the input
HALF = torch.bfloat16 if CUDA == "cuda" else torch.float16  # the interpreter multiplies no bfloat16


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    if CUDA == "cuda" or find_spec("triton") is None:
        return
    from scdd.ops.attention import triton

    monkeypatch.setattr(triton, "FORWARD", triton.Shape(16, 16, 1, 1))
    monkeypatch.setattr(triton, "QUERIES", triton.Shape(16, 32, 1, 1))
    monkeypatch.setattr(triton, "KEYS", triton.Shape(32, 16, 1, 1))


def inputs(batch: int, length: int, heads: Heads, bias: bool, dtype: torch.dtype) -> list[Tensor | None]:
    generator = torch.Generator().manual_seed(0)
    rows = (heads.queries + 2 * heads.keys) * heads.width
    x, weight = (torch.randn(*shape, generator=generator) for shape in ((batch, length, WIDE), (rows, WIDE)))
    made = [x, weight * 0.4, torch.randn(rows, generator=generator) if bias else None]
    master = torch.float32 if dtype == HALF else dtype
    dtypes = (dtype, master, master)
    return [None if t is None else t.to(CUDA, kind).requires_grad_() for t, kind in zip(made, dtypes, strict=True)]


def run(given: list[Tensor | None], heads: Heads, impl: str) -> list[Tensor]:
    """The result and the gradients of a sum that weighs every number of it otherwise."""
    x, weight, bias = given
    assert x is not None
    assert weight is not None
    angles = [
        t.to(torch.promote_types(torch.float32, x.dtype)) for t in tables(3, 3 + x.shape[1], heads.width // 2, x.device)
    ]
    with torch.autocast(CUDA, HALF, enabled=x.dtype == HALF):
        y = mixed_values(x, weight, bias, (angles[0], angles[1]), heads, impl=impl)
    assert y.dtype == x.dtype
    assert y.shape == (*x.shape[:2], heads.queries * heads.width)
    weights = torch.sin(torch.arange(y.numel(), device=CUDA)).view(y.shape) + 0.5
    wanted = [each for each in given if each is not None]
    grads = torch.autograd.grad((y * weights).float().sum(), wanted)
    assert [grad.dtype for grad in grads] == [each.dtype for each in wanted]
    return [y.detach(), *grads]


@TRITON
@pytest.mark.parametrize(
    ("batch", "length", "heads", "bias"),
    [
        (2, 32, Heads(2, 2, 32), False),
        (1, 37, Heads(6, 2, 32), True),  # groups, and no block is full at the end
        (2, 16, Heads(3, 1, 64), False),
        pytest.param(3, 256, Heads(9, 3, 64), False, marks=pytest.mark.gpu),
        pytest.param(2, 300, Heads(4, 4, 128), True, marks=pytest.mark.gpu),
        pytest.param(2, 512, Heads(12, 12, 64), False, marks=pytest.mark.gpu),
    ],
)
def test_the_kernels_are_the_reference(batch: int, length: int, heads: Heads, bias: bool) -> None:
    """In float32 to its rounding, but not on a GPU, whose products take float32 for less; in 16 bits to theirs."""
    exact = run(inputs(batch, length, heads, bias, torch.float64), heads, "reference")
    if CUDA == "cpu":
        found = run(inputs(batch, length, heads, bias, torch.float32), heads, "triton")
        for part, truth in zip(found, exact, strict=True):
            torch.testing.assert_close(part.double(), truth, rtol=1e-4, atol=1e-4)
    half = inputs(batch, length, heads, bias, HALF)
    found = run(half, heads, "triton")
    given = [None if t is None else t.detach().double().requires_grad_() for t in half]
    for part, truth in zip(found, run(given, heads, "reference"), strict=True):
        assert (part.double() - truth).norm() < 0.02 * truth.norm()


@pytest.mark.gpu
def test_the_same_bits_every_time() -> None:
    heads = Heads(9, 3, 64)
    first = run(inputs(16, 256, heads, False, torch.bfloat16), heads, "triton")
    for _ in range(3):
        again = run(inputs(16, 256, heads, False, torch.bfloat16), heads, "triton")
        assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))


def test_the_reference_is_torchs_attention() -> None:
    heads = Heads(4, 2, 8)
    x, weight, bias = inputs(2, 9, heads, True, torch.float32)
    assert x is not None
    assert weight is not None
    assert bias is not None
    cos, sin = torch.ones(9, 4, device=CUDA), torch.zeros(9, 4, device=CUDA)
    q, k, v = (x @ weight.T + bias).view(2, 9, 8, 8).transpose(1, 2).split((4, 2, 2), dim=1)
    k, v = k.repeat_interleave(2, dim=1), v.repeat_interleave(2, dim=1)
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(2, 9, 32)
    torch.testing.assert_close(mixed_values(x, weight, bias, (cos, sin), heads, impl="reference"), expected)


def test_where_the_kernels_pay() -> None:
    """Never on a CPU, nor for rows, heads or numbers that they are not made for."""
    heads = Heads(9, 3, 64)
    assert not pays(torch.zeros(2, 256, 576, dtype=torch.bfloat16), heads)
    there = torch.zeros(2, 256, 576, dtype=torch.bfloat16, device=CUDA)
    assert pays(there, heads) == (CUDA == "cuda" and find_spec("triton") is not None)
    assert not pays(there.float(), heads)
    assert not pays(there, heads._replace(width=96))
    with torch.no_grad():
        assert not pays(there, heads)
