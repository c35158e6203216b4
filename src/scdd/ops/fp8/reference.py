"""The same rounding in plain PyTorch, products in float32: what CPUs run, and what the kernels are held to."""

from __future__ import annotations

import torch
from torch import Tensor

from scdd.ops.fp8 import TOP, Narrow

MANTISSA = 23  # bits of a float32's
EIGHTH = 0x1FFFFF  # added to a float32's bits, carries into the exponent if the mantissa is above 1.75
INFINITE = 0x7F800000


def narrowed(x: Tensor, dtype: torch.dtype, turned: bool) -> Narrow:
    """x [M, K] in FP8, and transposed if `turned`."""
    wide, top = x.float(), TOP[dtype]
    bits = wide.abs().amax().view(torch.int32)
    power = ((bits + EIGHTH) >> MANTISSA).clamp_min(top + 1)  # keeps step and factor normal numbers
    factor = ((top + 254 - power) << MANTISSA).view(torch.float32)
    step = ((power - top) << MANTISSA).view(torch.float32)
    codes = (wide * factor).to(dtype)
    step = torch.where(bits < INFINITE, step, torch.nan)
    return Narrow(codes, codes.T.contiguous() if turned else None, step)


def product(a: Narrow, b: Narrow, bias: Tensor | None, dtype: torch.dtype, fast: bool) -> Tensor:
    """a [M, K] times b [N, K] transposed, and the bias [N]; `fast` is for GPUs."""
    with torch.autocast(a.codes.device.type, enabled=False):
        y = (a.codes.float() @ b.codes.float().T) * (a.step * b.step)
        return (y if bias is None else y + bias.to(dtype).float()).to(dtype)
