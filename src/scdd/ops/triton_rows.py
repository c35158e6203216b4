"""What the kernels share: how a compiler meets them, loading a block of scores, and small functions that Triton's language lacks."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from torch import library
from triton.language.extra import libdevice

LOG2E = tl.constexpr(1.4426950408889634)
LN2 = tl.constexpr(0.6931471805599453)


def traceable(kernel: Any) -> Any:
    """The compiler sees through it and launches the kernel itself; the interpreter's kernels are no such kernels."""
    return library.wrap_triton(kernel) if isinstance(kernel, triton.runtime.JITFunction) else kernel


@triton.jit
def load_scores(
    base, offset, z, input_bias, COLUMNS: tl.constexpr, HAS_INPUT_BIAS: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """Float32 logits of one block of a row; −∞ beyond its end, as the head's bias made it at the mask and the padding."""
    j = offset + tl.arange(0, BLOCK)
    score = tl.load(base + j, mask=j < COLUMNS, other=-float("inf")).to(tl.float32)
    if HAS_INPUT_BIAS:
        score = tl.where(j == z, score + input_bias, score)
    return score


_COMPILED = tl.constexpr(isinstance(load_scores, triton.runtime.JITFunction))


@triton.jit
def exp_(v):
    """Float32's e^v, to the last bit as torch's kernels have it, but that denormals are 0: Triton's own is shorter, and wrong by more
    for large v."""
    if _COMPILED:
        result = libdevice.exp(v)
    else:  # the interpreter has numpy's alone
        result = tl.exp(v)
    return result


@triton.jit
def log1p_(v):
    """log(1 + v) for v ≥ 0; the series where 1 + v would round v's digits away."""
    return tl.where(v < 1e-3, v * (1.0 - 0.5 * v + v * v * (1.0 / 3.0)), tl.log2(1.0 + v) * LN2)


@triton.jit
def inverse_(v):
    """1/v for v ≥ 1, ∞ included: a division's care for other ranges would cost seven instructions more."""
    root = tl.rsqrt(v)
    return root * root


@triton.jit
def sigmoid_(v):
    return 1.0 / (1.0 + tl.exp(-v))


@triton.jit
def softplus_(v):
    return tl.maximum(v, 0.0) + log1p_(tl.exp(-tl.abs(v)))


@triton.jit
def log_mixture_(log_p, log_r):
    """log(p + (1 − p)·b), b = 1/(1 + r), keeping its digits for p near 1 and near 0."""
    p = tl.exp(log_p)
    rest = tl.where(log_p > -1e-3, -log_p * (1.0 + 0.5 * log_p), 1.0 - p)  # 1 − p
    gap = rest * sigmoid_(log_r)
    series = -gap * (1.0 + 0.5 * gap + gap * gap * (1.0 / 3.0))
    near = tl.where(gap < 1e-3, series, tl.log(tl.maximum(1.0 - gap, 1e-30)))
    other = tl.log(tl.maximum(rest, 1e-30)) - softplus_(log_r)  # log((1 − p)·b)
    far = tl.maximum(log_p, other) + log1p_(tl.exp(-tl.abs(log_p - other)))
    return tl.where(log_r == float("inf"), log_p, tl.where(log_p > -0.7, near, far))
