"""The linear map in FP8: rounding and scales by their laws, products against float64, kernels against the reference."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
import torch
from torch import Tensor

from scdd.core import UserError
from scdd.ops import fp8
from scdd.ops.fp8 import FORWARD, GRADIENTS, TOP, fits, linear, reference, supported

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TRITON = pytest.mark.skipif(find_spec("triton") is None, reason="no Triton here")
TYPES = pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
STEP = {torch.float8_e4m3fn: 2.0**-4, torch.float8_e5m2: 2.0**-3}  # half a unit in the last place, relative


def matrix(rows: int, columns: int, seed: int = 0, spread: float = 2.0) -> Tensor:
    """Numbers of many sizes, in bfloat16."""
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randn(rows, columns, generator=generator)
    return (drawn * torch.exp(spread * torch.randn(rows, columns, generator=generator))).bfloat16()


@TYPES
@pytest.mark.parametrize("size", [1e-20, 3e-5, 1.0, 1.75, 1.7500001, 448.0, 6e4, 1e30])
def test_the_scale_is_the_smallest_power_of_two_that_holds_the_maximum(dtype: torch.dtype, size: float) -> None:
    x = torch.tensor([[size, -size / 3], [0.0, size / 1000]])
    found = reference.narrowed(x, dtype, turned=True)
    step, largest = found.step.double().item(), torch.finfo(dtype).max
    assert largest == 1.75 * 2 ** TOP[dtype]
    assert torch.frexp(found.step).mantissa == 0.5
    assert x.max().item() / step <= largest < 2 * x.max().item() / step
    assert found.turned is not None
    assert torch.equal(found.turned.float(), found.codes.float().T)


@TYPES
def test_codes_are_the_nearest(dtype: torch.dtype) -> None:
    x = matrix(64, 48)
    found = reference.narrowed(x, dtype, turned=False)
    assert found.turned is None
    error = (found.codes.double() * found.step.double() - x.double()).abs()
    tiny = torch.finfo(dtype).smallest_normal * found.step.double()
    assert (error <= torch.maximum(x.double().abs(), tiny) * STEP[dtype]).all()
    every = torch.arange(256, dtype=torch.uint8).view(dtype).float()
    every = every[every.isfinite()].double() * found.step.double()
    nearest = (x.double().reshape(-1, 1) - every).abs().amin(1)
    assert torch.equal(error.flatten(), nearest)


@TYPES
def test_zeros_stay_zeros_and_what_is_not_finite_is_told(dtype: torch.dtype) -> None:
    zero = reference.narrowed(torch.zeros(16, 16), dtype, turned=False)
    assert not zero.codes.float().any()
    assert zero.step > 0
    for bad in (float("inf"), float("nan")):
        x = matrix(16, 16)
        x[3, 4] = bad
        assert linear(x, torch.eye(16)).isnan().all()


def given(tokens: int = 64, inputs: int = 48, outputs: int = 32, bias: bool = True) -> tuple[list[Tensor], Tensor]:
    """(x, weight, bias; the gradient of y)."""
    x, d = matrix(tokens, inputs, 1, 0.5), matrix(tokens, outputs, 2, 0.5)
    leaves = [x.view(2, -1, inputs), matrix(outputs, inputs, 3, 0.3).float() * inputs**-0.5]
    leaves += [matrix(1, outputs, 4)[0].float()] if bias else []
    return [leaf.to(DEVICE).requires_grad_() for leaf in leaves], d.view(2, -1, outputs).to(DEVICE)


def run(leaves: list[Tensor], d: Tensor, wgrad: fp8.Wgrad = "fp8", impl: str = "reference") -> list[Tensor]:
    """y and the gradients."""
    bias = leaves[2] if len(leaves) > 2 else None
    y = linear(leaves[0], leaves[1], bias, wgrad, impl)
    assert y.dtype == leaves[0].dtype
    grads = torch.autograd.grad(y, leaves, d)
    assert [grad.dtype for grad in grads] == [leaf.dtype for leaf in leaves]
    return [y.detach(), *grads]


def exact(leaves: list[Tensor], d: Tensor) -> list[Tensor]:
    """The map itself in float64."""
    x, weight, *bias = (leaf.detach().double() for leaf in leaves)
    rows, above = x.flatten(0, 1), d.double().flatten(0, 1)
    y = x @ weight.T + (bias[0] if bias else 0.0)
    return [y, d.double() @ weight, above.T @ rows, *([above.sum(0)] if bias else [])]


def rounded(x: Tensor, dtype: torch.dtype) -> Tensor:
    """x as FP8 holds it, in float64."""
    codes, _, step = reference.narrowed(x.detach(), dtype, turned=False)
    return codes.double() * step.double()


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("wgrad", ["fp8", "bf16"])
def test_near_float64_within_the_digits(bias: bool, wgrad: fp8.Wgrad) -> None:
    """A product of two rounded factors errs by no more than √2 times their rounding, in norm: 3 % each for E4M3, 6 for E5M2."""
    leaves, d = given(bias=bias)
    for part, truth in zip(run(leaves, d, wgrad), exact(leaves, d), strict=True):
        assert (part.double() - truth).norm() < 0.08 * truth.norm()


def test_gradients_are_the_products_of_rounded_factors() -> None:
    leaves, d = given()
    _, d_x, d_weight, d_bias = run(leaves, d)
    rows, above = leaves[0].flatten(0, 1), d.flatten(0, 1)
    narrow = rounded(above, GRADIENTS)
    for found, truth in (
        (d_x.flatten(0, 1), narrow @ rounded(leaves[1], FORWARD)),
        (d_weight, narrow.T @ rounded(rows, FORWARD)),
        (d_bias, above.double().sum(0)),
    ):
        torch.testing.assert_close(found.double(), truth, rtol=2**-7, atol=2**-8 * truth.abs().max().item())
    wide = run(leaves, d, "bf16")
    assert torch.equal(wide[1], d_x)
    torch.testing.assert_close(wide[2].double(), above.double().T @ rows.double(), rtol=2**-7, atol=2**-6)


def test_the_same_bits_again_and_nothing_for_frozen_weights() -> None:
    leaves, d = given()
    assert all(torch.equal(a, b) for a, b in zip(run(leaves, d), run(leaves, d), strict=True))
    leaves[1].requires_grad_(False)
    y = linear(leaves[0], leaves[1])
    y.backward(d)
    assert leaves[1].grad is None
    assert leaves[0].grad is not None


def test_which_sizes_and_devices() -> None:
    assert fits(torch.empty(2, 8, 32), torch.empty(48, 32))
    assert not fits(torch.empty(3, 5, 32), torch.empty(48, 32))
    assert not fits(torch.empty(16, 40), torch.empty(48, 40))
    assert not supported(torch.device("cpu"))
    with pytest.raises(UserError, match="impl"):
        linear(torch.zeros(16, 16), torch.zeros(16, 16), impl="cuda")


@TRITON
@TYPES
@pytest.mark.parametrize("source", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("turned", [False, True])
def test_the_kernels_casts_are_the_references(
    dtype: torch.dtype, source: torch.dtype, turned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bit for bit. Triton's interpreter does not round to FP8 as GPUs do, so without one the numbers are such as need no rounding."""
    from scdd.ops.fp8 import triton

    if DEVICE == "cpu":
        for name, value in (("BLOCK", 256), ("PARTS", 8), ("ROWS", 32), ("COLUMNS", 16)):
            monkeypatch.setattr(triton, name, value)
    for rows, columns, size in ((80, 48, 1.0), (16, 176, 1e-7), (64, 64, 0.0), (33, 18, 3e3)):
        x = (matrix(rows, columns).float() * size).to(source).to(DEVICE)
        if DEVICE == "cpu":
            codes, _, step = reference.narrowed(x, dtype, turned=False)
            normal = codes.float().abs() >= torch.finfo(dtype).smallest_normal
            x = torch.where(normal, codes.float() * step, 0.0).to(source)
        expected, found = reference.narrowed(x, dtype, turned), triton.narrowed(x, dtype, turned)
        assert torch.equal(found.step, expected.step)
        assert torch.equal(found.codes.view(torch.uint8), expected.codes.view(torch.uint8))
        assert (found.turned is None) == (expected.turned is None)
        if found.turned is not None and expected.turned is not None:
            assert torch.equal(found.turned.view(torch.uint8), expected.turned.view(torch.uint8))
    x = matrix(32, 32).to(DEVICE)
    x[5, 6] = float("nan")
    assert triton.narrowed(x, dtype, turned).step.isnan()


@pytest.mark.gpu
@pytest.mark.parametrize(
    "compiled",
    [
        pytest.param(
            False,
            marks=pytest.mark.xfail(
                reason="failed in the first of three runs on an H200, why is not known; recipes refuse it"
            ),
        ),
        True,
    ],
    ids=["eager", "compiled"],
)
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("wgrad", ["fp8", "bf16"])
def test_a_gpus_products_are_the_references(
    wgrad: fp8.Wgrad, bias: bool, compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same codes; sums differ by their order and, forward, by the tensor cores' digits."""
    if not supported(torch.device("cuda")):
        pytest.skip("this GPU has no FP8 products")
    leaves, d = given(512, 256, 768, bias)
    expected = run(leaves, d, wgrad)
    if compiled:
        torch._dynamo.reset()
        monkeypatch.setitem(globals(), "linear", torch.compile(linear, fullgraph=True))
    found = run(leaves, d, wgrad, "triton")
    for part, truth in zip(found, expected, strict=True):
        assert (part.double() - truth.double()).norm() < 0.005 * truth.double().norm()
