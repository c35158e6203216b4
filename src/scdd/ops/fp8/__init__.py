"""A linear map whose three products (y, and the gradients of x and W) are in FP8, for training on a GPU that multiplies it.

    y = s_x s_W Σ_k q_x[m, k] q_W[n, k] + b,   q = round(x / s),  s = the smallest power of two with max |x| / s ≤ the largest code

Activations and weights have 3 digits of mantissa (E4M3), gradients 2 and more range (E5M2). A scale is one number a matrix, made of
its own maximum: no state is carried from step to step. Codes are floating-point, so a power of two costs no digit, and both
scaling and its undoing are exact. Sums are float32. A matrix that is not finite has the scale NaN, and so has all that comes of it.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from scdd.ops.common import HAS_TRITON, choose

FORWARD = torch.float8_e4m3fn  # type of activations and weights
GRADIENTS = torch.float8_e5m2  # type of gradients; float8_e4m3fn works as well
TOP = {torch.float8_e4m3fn: 8, torch.float8_e5m2: 15}  # the largest code is 1.75 · 2^TOP, of either type
EVEN = 16  # the GPU's products want multiples of it on every side
FAST = (True, False, False)
"""Of y, dx, dW: whether sums may stay in the tensor cores, whose accumulators have about 14 digits, for the whole product."""

Wgrad = Literal["fp8", "bf16"]


class Narrow(NamedTuple):
    """A matrix [M, K] in FP8: codes · step."""

    codes: Tensor  # [M, K]
    turned: Tensor | None  # [K, M], the same codes, if they were asked for
    step: Tensor  # [] float32, a power of two


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, wgrad: Wgrad = "fp8", impl: str = "auto") -> Tensor:
    """x [..., K] times the weight [N, K] transposed, and the bias [N]: [..., N] in x's dtype.

    For the backward pass codes are kept, a byte a number. `wgrad` bf16 takes W's gradient from x itself, in x's dtype: that
    product is slower, and codes need no transposing.
    """
    rows = x.reshape(-1, x.shape[-1])
    y: Tensor = _Linear.apply(rows, weight, bias, wgrad, choose(impl, x))  # type: ignore[no-untyped-call]
    return y.view(*x.shape[:-1], weight.shape[0])


def fits(x: Tensor, weight: Tensor) -> bool:
    """Whether a GPU's products take these sizes."""
    rows = x.numel() // x.shape[-1]
    return rows > 0 and not (rows % EVEN or weight.shape[0] % EVEN or weight.shape[1] % EVEN)


def supported(device: torch.device) -> bool:
    """Whether this device multiplies FP8 and this torch knows how: NVIDIA's, from 8.9 on (Ada, Hopper)."""
    if device.type != "cuda" or torch.version.cuda is None or not HAS_TRITON or not hasattr(torch, "_scaled_mm"):
        return False
    return torch.cuda.get_device_capability(device) >= (8, 9)


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, wgrad: Wgrad, impl: str) -> Tensor:
        part, narrow = _part(impl), wgrad == "fp8"
        q, w = part.narrowed(x, FORWARD, narrow), part.narrowed(weight, FORWARD, True)
        ctx.save_for_backward(q.turned if narrow else x, q.step, w.turned, w.step)
        ctx.weight_dtype, ctx.bias_dtype = weight.dtype, None if bias is None else bias.dtype
        ctx.narrow, ctx.impl = narrow, impl
        y: Tensor = part.product(q, w, bias, x.dtype, FAST[0])
        return y

    @staticmethod
    def backward(ctx: Any, d: Tensor) -> tuple[Tensor | None, ...]:
        x, x_step, weight_turned, weight_step = ctx.saved_tensors
        part = _part(ctx.impl)
        q = part.narrowed(d, GRADIENTS, ctx.narrow)
        weight = Narrow(weight_turned, weight_turned, weight_step)
        d_x = part.product(q, weight, None, d.dtype, FAST[1])
        d_weight: Tensor | None = None  # frozen weights (LoRA's) need none
        if ctx.needs_input_grad[1] and ctx.narrow:
            turned = Narrow(q.turned, q.turned, q.step)
            d_weight = part.product(turned, Narrow(x, x, x_step), None, d.dtype, FAST[2]).to(ctx.weight_dtype)
        elif ctx.needs_input_grad[1]:
            d_weight = (d.T @ x).to(ctx.weight_dtype)
        d_bias = None if ctx.bias_dtype is None else d.sum(0, dtype=torch.float32).to(ctx.bias_dtype)
        return d_x, d_weight, d_bias, None, None


def _part(impl: str) -> ModuleType:
    if impl == "triton":
        from scdd.ops.fp8 import triton

        return triton
    from scdd.ops.fp8 import reference

    return reference
