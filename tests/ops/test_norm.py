"""Residual sum and norm: the kernels against plain PyTorch, values and gradients."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from scdd.core import UserError
from scdd.ops.norm import add_norm, add_rms_norm

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TRITON = pytest.mark.skipif(find_spec("triton") is None, reason="no Triton here")


def inputs(shape: tuple[int, int, int], groups: int, dtype: torch.dtype) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    stream = [torch.randn(shape, generator=generator) * 3 + 1 for _ in range(2)]
    affine = [torch.randn(groups, 1, shape[2], generator=generator) + 0.5 for _ in range(2)]
    return [t.to(DEVICE, dtype).requires_grad_() for t in stream] + [t.to(DEVICE).requires_grad_() for t in affine]


def run(given: list[Tensor], impl: str) -> list[Tensor]:
    """Both outputs and the gradients of a sum that weighs every number of both otherwise."""
    total, normal = add_norm(*given, impl=impl)
    assert total.dtype == normal.dtype == given[0].dtype
    weights = torch.sin(torch.arange(total.numel(), device=DEVICE)).view(total.shape)
    loss = (total * weights).sum() + (normal * weights.flip(0)).float().sum()
    return [total.detach(), normal.detach(), *torch.autograd.grad(loss, given)]


@TRITON
@pytest.mark.parametrize(
    ("shape", "groups"),
    [((3, 5, 48), 1), ((3, 5, 48), 3), ((2, 7, 128), 1), ((1, 1, 16), 1), ((2, 3, 1), 1), ((2, 3, 577), 2)],
)
def test_the_kernels_are_the_reference(shape: tuple[int, int, int], groups: int) -> None:
    found = run(inputs(shape, groups, torch.float32), "triton")
    truth = run([t.detach().double().requires_grad_() for t in inputs(shape, groups, torch.float32)], "reference")
    for part, exact in zip(found, truth, strict=True):
        assert part.shape == exact.shape
        torch.testing.assert_close(part.double(), exact, rtol=2e-5, atol=2e-5)


@TRITON
def test_bfloat16_stays_within_its_rounding() -> None:
    found = run(inputs((4, 32, 64), 1, torch.bfloat16), "triton")
    truth = run([t.detach().double().requires_grad_() for t in inputs((4, 32, 64), 1, torch.bfloat16)], "reference")
    for part, exact in zip(found, truth, strict=True):
        assert (part.double() - exact).norm() < 0.01 * exact.norm()


@TRITON
@pytest.mark.parametrize("groups", [1, 3])
def test_the_first_norm_has_nothing_to_add(groups: int) -> None:
    """One kernel without gradients; with them the reference, which the compiler fuses."""
    x, _, scale, shift = inputs((3, 5, 48), groups, torch.float32)
    layer = add_norm(x, None, scale, shift, impl="reference")
    rms = add_rms_norm(x, None, scale[0, 0], 1e-5, impl="reference")
    with torch.no_grad():
        for mine, theirs in (
            (add_norm(x, None, scale, shift, impl="triton"), layer),
            (add_rms_norm(x, None, scale[0, 0], 1e-5, impl="triton"), rms),
        ):
            assert mine[0] is x
            torch.testing.assert_close(mine[1], theirs[1], rtol=2e-5, atol=2e-5)
    assert add_norm(x, None, scale, shift, impl="triton")[1].requires_grad


def test_the_reference_by_hand() -> None:
    x, delta, scale, shift = inputs((2, 3, 8), 2, torch.float32)
    total, normal = add_norm(x, delta, scale, shift, impl="reference")
    assert torch.equal(total, x + delta)
    torch.testing.assert_close(normal, F.layer_norm(x + delta, (8,)) * scale + shift)
    same, alone = add_norm(x, None, scale, shift)
    assert same is x
    torch.testing.assert_close(alone, F.layer_norm(x, (8,)) * scale + shift)
    with pytest.raises(UserError, match="impl"):
        add_norm(x, delta, scale, shift, impl="cuda")


# -- RMSNorm ------------------------------------------------------------------------------------------------------------


def run_rms(given: list[Tensor], impl: str, eps: float) -> list[Tensor]:
    total, normal = add_rms_norm(*given, eps=eps, impl=impl)
    assert total.dtype == normal.dtype == given[0].dtype
    weights = torch.sin(torch.arange(total.numel(), device=DEVICE)).view(total.shape)
    loss = (total * weights).sum() + (normal * weights.flip(0)).float().sum()
    return [total.detach(), normal.detach(), *torch.autograd.grad(loss, given)]


def rms_inputs(shape: tuple[int, int, int], dtype: torch.dtype) -> list[Tensor]:
    x, delta, scale, _ = inputs(shape, 1, dtype)
    return [x, delta, scale.detach().flatten().requires_grad_()]


@TRITON
@pytest.mark.parametrize("eps", [1e-6, 0.5])
@pytest.mark.parametrize("shape", [(3, 5, 48), (2, 7, 128), (1, 1, 16), (2, 3, 1), (2, 3, 577)])
def test_the_rms_kernels_are_the_reference(shape: tuple[int, int, int], eps: float) -> None:
    found = run_rms(rms_inputs(shape, torch.float32), "triton", eps)
    exact = [t.detach().double().requires_grad_() for t in rms_inputs(shape, torch.float32)]
    for part, truth in zip(found, run_rms(exact, "reference", eps), strict=True):
        assert part.shape == truth.shape
        torch.testing.assert_close(part.double(), truth, rtol=2e-5, atol=2e-5)


@TRITON
def test_rms_in_bfloat16_stays_within_its_rounding() -> None:
    found = run_rms(rms_inputs((4, 32, 64), torch.bfloat16), "triton", 1e-5)
    exact = [t.detach().double().requires_grad_() for t in rms_inputs((4, 32, 64), torch.bfloat16)]
    for part, truth in zip(found, run_rms(exact, "reference", 1e-5), strict=True):
        assert (part.double() - truth).norm() < 0.01 * truth.norm()


@pytest.mark.parametrize("impl", ["reference", pytest.param("triton", marks=TRITON)])
@pytest.mark.parametrize("delta", [True, False])
def test_a_scale_in_bfloat16_is_used_in_float32(delta: bool, impl: str) -> None:
    """The same bits as of its copy, and a gradient of its own kind."""
    x, more, scale = rms_inputs((3, 5, 48), torch.bfloat16)
    short = scale.detach().bfloat16()
    found = []
    for each in (short.clone().requires_grad_(), short.float().requires_grad_()):
        total, normal = add_rms_norm(x, more if delta else None, each, 1e-5, impl=impl)
        grad = torch.autograd.grad(normal.float().sin().sum(), each)[0]
        assert grad.dtype == each.dtype
        found.append((total, normal, grad.bfloat16()))
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


def test_the_rms_reference_by_hand() -> None:
    x, delta, scale = rms_inputs((2, 3, 8), torch.float32)
    total, normal = add_rms_norm(x, delta, scale, 0.1, impl="reference")
    assert torch.equal(total, x + delta)
    torch.testing.assert_close(normal, F.rms_norm(x + delta, (8,), scale, 0.1))
    same, alone = add_rms_norm(x, None, scale, 0.1)
    assert same is x
    torch.testing.assert_close(alone, F.rms_norm(x, (8,), scale, 0.1))
