"""Bias and GELU: the kernels against plain PyTorch, values and gradients."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
import torch
from torch import Tensor

from scdd.core import UserError
from scdd.ops.gelu import bias_gelu
from tests.ops.cases import CUDA

TRITON = pytest.mark.skipif(find_spec("triton") is None, reason="no Triton here")


def inputs(shape: tuple[int, ...], dtype: torch.dtype) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    x, bias = torch.randn(shape, generator=generator) * 4, torch.randn(shape[-1], generator=generator)
    x[..., 0], x[..., 1] = 60.0, -60.0  # far out, where exponentials overflow
    master = torch.float32 if dtype == torch.bfloat16 else dtype
    return [x.to(CUDA, dtype).requires_grad_(), bias.to(CUDA, master).requires_grad_()]


def run(given: list[Tensor], impl: str) -> list[Tensor]:
    """The result and the gradients of a sum that weighs every number of it otherwise."""
    y = bias_gelu(given[0], given[1], impl=impl)
    assert y.dtype == given[0].dtype
    weights = torch.sin(torch.arange(y.numel(), device=CUDA)).view(y.shape) + 0.5
    grads = torch.autograd.grad((y * weights).float().sum(), given)
    assert [grad.dtype for grad in grads] == [each.dtype for each in given]
    return [y.detach(), *grads]


@TRITON
@pytest.mark.parametrize("shape", [(2, 5, 48), (37, 200), (3, 128), (1, 4)])
def test_the_kernels_are_the_reference(shape: tuple[int, ...]) -> None:
    found = run(inputs(shape, torch.float32), "triton")
    exact = run(inputs(shape, torch.float64), "reference")
    for part, truth in zip(found, exact, strict=True):
        torch.testing.assert_close(part.double(), truth, rtol=1e-5, atol=2e-5)


@TRITON
def test_bfloat16_stays_within_its_rounding() -> None:
    half = inputs((4, 16, 64), torch.bfloat16)
    truth = run([t.detach().double().requires_grad_() for t in half], "reference")
    for part, exact in zip(run(half, "triton"), truth, strict=True):
        assert (part.double() - exact).norm() < 0.01 * exact.norm()


def test_the_reference_is_torchs() -> None:
    x, bias = inputs((3, 8), torch.float32)
    torch.testing.assert_close(
        bias_gelu(x, bias, impl="reference"), torch.nn.functional.gelu(x + bias, approximate="tanh")
    )
    with pytest.raises(UserError, match="impl"):
        bias_gelu(x, bias, impl="cuda")
