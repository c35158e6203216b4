"""A linear map in 8 bits: weights as whole numbers with a scale a row, activations rounded in the same way, row by row.

    y[n, i] = step[n] · scale[i] · Σ_j q[n, j] · code[i, j] + bias[i],   q = round(x / step),  step[n] = max_j |x[n, j]| / 127

The sum is one of whole numbers, hence exact: no result depends on the number of threads, on the library's blocking, or on
which other rows are multiplied at the same time. All the rest is float32, one rounding an operation.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from scdd.core.errors import UserError

TOP = 127  # the largest code; −128 is left out so that a row and its negative round alike
PART = 1 << 18  # numbers that are rounded at a time, which stay in the cache
SMALLEST = 1e-30  # of a step: a row of zeros has none of its own
IMPLS = ("auto", "reference", "fast")


class Matrix(NamedTuple):
    """A weight [N, K] in 8 bits: its codes, and a scale a row."""

    codes: Tensor  # [N, K] int8
    scale: Tensor  # [N] float32

    @property
    def shape(self) -> torch.Size:
        """Of the weight."""
        return self.codes.shape


def rounded(weight: Tensor) -> Matrix:
    """The weight [N, K] in 8 bits; one that was stored so (`bundle.packed`) gets its own codes back."""
    given = weight.detach()
    codes = torch.empty(given.shape, dtype=torch.int8)
    scale = torch.empty(len(given))
    rows = max(1, PART // given.shape[1])
    work = torch.empty((rows, given.shape[1]))
    for start in range(0, len(given), rows):
        part, here = slice(start, start + rows), work[: min(rows, len(given) - start)]
        scale[part] = torch.abs(given[part].float(), out=here).amax(1).div_(TOP).clamp_min_(SMALLEST)
        codes[part] = torch.div(given[part].float(), scale[part, None], out=here).round_()
    return Matrix(codes, scale)


def widened(matrix: Matrix) -> Tensor:
    """The weight in float32."""
    return matrix.codes.float().mul_(matrix.scale[:, None])


def stored(matrix: Matrix) -> Matrix:
    """What `rounded` makes of a matrix in 8 bits whose rows use their largest code, without widening it: the codes stay.

    The scale goes through the same two roundings, so that a text does not tell which way its model was loaded.
    """
    return Matrix(matrix.codes, (matrix.scale.float() * TOP).div_(TOP).clamp_min_(SMALLEST))


def linear(x: Tensor, matrix: Matrix, bias: Tensor | None = None, impl: str = "auto") -> Tensor:
    """x [..., K] times the matrix [N, K], and the bias [N]: [..., N] float32."""
    if impl not in IMPLS:
        raise UserError(f"impl is {impl!r}: choose one of {', '.join(IMPLS)}.", "impl")
    rows = x.reshape(-1, x.shape[-1]).float()
    step = (rows.abs().amax(1, keepdim=True) / TOP).clamp_min(SMALLEST)
    if impl == "reference":
        from scdd.ops.int8.reference import product
    else:
        from scdd.ops.int8.fast import product
    y = product((rows / step).round_(), matrix.codes).mul_(step).mul_(matrix.scale)
    return (y if bias is None else y.add_(bias)).view(*x.shape[:-1], -1)


def supported() -> bool:
    """Whether this torch multiplies 8-bit matrices on this CPU, and exactly.

    Without instructions for it (VNNI, AMX) the library adds pairs of products in 16 bits, which large codes overflow: it
    answers, and nearly every sum is wrong. So the largest codes are tried.
    """
    largest = torch.full((32, 64), TOP, dtype=torch.int8)
    largest[1::2] = -TOP
    try:
        return torch.equal(torch._int_mm(largest, largest.T).double(), largest.double() @ largest.double().T)
    except (AttributeError, RuntimeError):
        return False
