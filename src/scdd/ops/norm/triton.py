"""Residual sum and norm, adaptive layer norm or RMSNorm: rows stay in registers, forward and backward, and each is read once.

Backward, a program walks through some rows, adds up its share of scale's and shift's gradients on the way, and the
shares are summed afterwards, always in the same order.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor, library

from scdd.ops.triton_rows import traceable

EPSILON = 1e-5  # F.layer_norm's
WARPS = 1  # a row's sums then stay within one warp
MULTIPROCESSORS = 132  # an H200's


def add_norm(x: Tensor, delta: Tensor, scale: Tensor, shift: Tensor) -> tuple[Tensor, Tensor]:
    """See `ops.norm.add_norm`."""
    return torch.ops.scdd.add_norm(x, delta, scale, shift)


@library.triton_op("scdd::add_norm", mutates_args=())
def _forward(x: Tensor, delta: Tensor, scale: Tensor, shift: Tensor) -> tuple[Tensor, Tensor]:
    x, delta, scale, shift = x.contiguous(), delta.contiguous(), scale.contiguous(), shift.contiguous()
    total, normal = torch.empty_like(x), torch.empty_like(x)
    width = x.shape[-1]
    rows = x.numel() // width
    if rows:
        traceable(_rows_forward)[(rows,)](
            x, delta, scale, shift, total, normal, rows // scale.shape[0],
            EPS=EPSILON, CENTRED=True, ADD=True, WIDTH=width, BLOCK=triton.next_power_of_2(width), num_warps=WARPS,
        )  # fmt: skip
    return total, normal


@library.triton_op("scdd::add_norm_backward", mutates_args=())
def _backward(total: Tensor, scale: Tensor, d_total: Tensor, d_normal: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    total, scale, d_total, d_normal = (t.contiguous() for t in (total, scale, d_total, d_normal))
    width, groups = total.shape[-1], scale.shape[0]
    rows = total.numel() // width
    shares = max(1, _shares(width) // groups)  # of each group's rows
    d_x = torch.empty_like(total)
    d_scale = torch.empty(groups, shares, width, dtype=torch.float32, device=total.device)
    d_shift = torch.empty_like(d_scale)
    traceable(_rows_backward)[(groups * shares,)](
        total, scale, d_total, d_normal, d_x, d_scale, d_shift, rows // groups, shares,
        EACH=-(-(rows // groups) // shares), EPS=EPSILON, CENTRED=True, WIDTH=width, **_split(width), num_warps=WARPS,
    )  # fmt: skip
    return d_x, d_scale.sum(1, keepdim=True), d_shift.sum(1, keepdim=True)


def _shares(width: int) -> int:
    """Programs of the backward pass, over all groups: as many as run at once, since wider rows take more registers."""
    return MULTIPROCESSORS * (12 if width <= 768 else 8)


def _split(width: int) -> dict[str, int]:
    """A row's columns as two blocks, both powers of two, that waste few lanes: a power of two is halved."""
    main = 1 << max(0, (width - 1).bit_length() - 1)
    return {"MAIN": main, "REST": triton.next_power_of_2(max(1, width - main))}


def _remember(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(output[0], inputs[2])


def _differentiate(ctx: Any, d_total: Tensor, d_normal: Tensor) -> tuple[Tensor, ...]:
    total, scale = ctx.saved_tensors
    d_x, d_scale, d_shift = torch.ops.scdd.add_norm_backward(total, scale, d_total, d_normal)
    return d_x, d_x, d_scale, d_shift


_forward.register_autograd(_differentiate, setup_context=_remember)


# -- RMSNorm: the same kernels, with neither mean nor shift -------------------------------------------------------------


def add_rms_norm(x: Tensor, delta: Tensor, scale: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """See `ops.norm.add_rms_norm`."""
    return torch.ops.scdd.add_rms_norm(x, delta, scale, eps)


@library.triton_op("scdd::add_rms_norm", mutates_args=())
def _rms_forward(x: Tensor, delta: Tensor, scale: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    x, delta, scale = x.contiguous(), delta.contiguous(), scale.contiguous()
    total, normal = torch.empty_like(x), torch.empty_like(x)
    width = x.shape[-1]
    rows = x.numel() // width
    if rows:
        traceable(_rows_forward)[(rows,)](
            x, delta, scale, scale, total, normal, rows,
            EPS=eps, CENTRED=False, ADD=True, WIDTH=width, BLOCK=triton.next_power_of_2(width), num_warps=WARPS,
        )  # fmt: skip
    return total, normal


@library.triton_op("scdd::add_rms_norm_backward", mutates_args=())
def _rms_backward(total: Tensor, scale: Tensor, d_total: Tensor, d_normal: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    total, scale, d_total, d_normal = (t.contiguous() for t in (total, scale, d_total, d_normal))
    width = total.shape[-1]
    rows = total.numel() // width
    shares = _shares(width)
    d_x = torch.empty_like(total)
    d_scale = torch.empty(shares, width, dtype=torch.float32, device=total.device)
    traceable(_rows_backward)[(shares,)](
        total, scale, d_total, d_normal, d_x, d_scale, d_scale, rows, shares,
        EACH=-(-rows // shares), EPS=eps, CENTRED=False, WIDTH=width, **_split(width), num_warps=WARPS,
    )  # fmt: skip
    return d_x, d_scale.sum(0)


def _rms_remember(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(output[0], inputs[2])
    ctx.eps = inputs[3]


def _rms_differentiate(ctx: Any, d_total: Tensor, d_normal: Tensor) -> tuple[Tensor | None, ...]:
    total, scale = ctx.saved_tensors
    d_x, d_scale = torch.ops.scdd.add_rms_norm_backward(total, scale, d_total, d_normal, ctx.eps)
    return d_x, d_x, d_scale.to(scale.dtype), None


_rms_forward.register_autograd(_rms_differentiate, setup_context=_rms_remember)


# -- the first norm of a network, which nothing is added to: without gradients ------------------------------------------


def norm(x: Tensor, scale: Tensor, shift: Tensor | None, eps: float = EPSILON) -> Tensor:
    """The norm of x itself: a layer norm with a shift, RMSNorm without one. Not differentiated."""
    x, scale, centred = x.contiguous(), scale.contiguous(), shift is not None
    shift = scale if shift is None else shift.contiguous()
    normal, width = torch.empty_like(x), x.shape[-1]
    rows, groups = x.numel() // width, scale.numel() // width
    if rows:
        _rows_forward[(rows,)](
            x, x, scale, shift, normal, normal, rows // groups,
            EPS=eps, CENTRED=centred, ADD=False, WIDTH=width, BLOCK=triton.next_power_of_2(width),
            num_warps=WARPS,
        )  # fmt: skip
    return normal


@triton.jit
def _normalised(x, j, EPS: tl.constexpr, CENTRED: tl.constexpr, WIDTH: tl.constexpr):
    """(Row, minus its mean if centred, over its deviation; one over that deviation); zero beyond the row's end."""
    if CENTRED:
        mean = tl.sum(x, 0) / WIDTH
        x = tl.where(j < WIDTH, x - mean, 0.0)
    inverse = 1.0 / tl.sqrt(tl.sum(x * x, 0) / WIDTH + EPS)
    return x * inverse, inverse


@triton.jit
def _rows_forward(
    x_, delta_, scale_, shift_, total_, normal_, group,
    EPS: tl.constexpr, CENTRED: tl.constexpr, ADD: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    j = tl.arange(0, BLOCK)
    inside = j < WIDTH
    at = row.to(tl.int64) * WIDTH + j
    affine = (row // group) * WIDTH + j
    x = tl.load(x_ + at, mask=inside, other=0.0).to(tl.float32)
    if ADD:
        x += tl.load(delta_ + at, mask=inside, other=0.0).to(tl.float32)
        # What the backward pass will read back is what is normalised here.
        stored = x.to(total_.dtype.element_ty)
        tl.store(total_ + at, stored, mask=inside)
        x = stored.to(tl.float32)
    normal, _ = _normalised(x, j, EPS, CENTRED, WIDTH)
    normal *= tl.load(scale_ + affine, mask=inside, other=0.0).to(tl.float32)
    if CENTRED:
        normal += tl.load(shift_ + affine, mask=inside, other=0.0).to(tl.float32)
    tl.store(normal_ + at, normal.to(normal_.dtype.element_ty), mask=inside)


@triton.jit
def _part_backward(total_, d_total_, d_normal_, at, inside):
    """Part of a row, with its gradients as a norm and as what is added to, float32; zero outside."""
    x = tl.load(total_ + at, mask=inside, other=0.0).to(tl.float32)
    above = tl.load(d_normal_ + at, mask=inside, other=0.0).to(tl.float32)
    return x, above, tl.load(d_total_ + at, mask=inside, other=0.0).to(tl.float32)


@triton.jit
def _rows_backward(
    total_, scale_, d_total_, d_normal_, d_x_, d_scale_, d_shift_, group, shares,
    EACH: tl.constexpr, EPS: tl.constexpr, CENTRED: tl.constexpr, WIDTH: tl.constexpr, MAIN: tl.constexpr, REST: tl.constexpr,
):  # fmt: skip
    # A row has MAIN columns, a power of two, and at most REST more: of 576 as one block of 1,024 nearly half would be arithmetic on
    # nothing, and it is arithmetic that bounds this kernel.
    program = tl.program_id(0)
    number = program // shares
    first = (program % shares) * EACH
    i, j = tl.arange(0, MAIN), MAIN + tl.arange(0, REST)
    affine = scale_ + number * WIDTH
    scale, scale2 = tl.load(affine + i).to(tl.float32), tl.load(affine + j, mask=j < WIDTH, other=0.0).to(tl.float32)
    d_scale, d_shift = tl.zeros((MAIN,), tl.float32), tl.zeros((MAIN,), tl.float32)
    d_scale2, d_shift2 = tl.zeros((REST,), tl.float32), tl.zeros((REST,), tl.float32)
    for k in tl.range(0, EACH, num_stages=2):
        row = first + k
        at = (number.to(tl.int64) * group + row) * WIDTH
        inside, inside2 = (i < WIDTH) & (row < group), (j < WIDTH) & (row < group)
        x, above, beside = _part_backward(total_, d_total_, d_normal_, at + i, inside)
        x2, above2, beside2 = _part_backward(total_, d_total_, d_normal_, at + j, inside2)
        if CENTRED:
            mean = (tl.sum(x, 0) + tl.sum(x2, 0)) / WIDTH
            x, x2 = x - mean, tl.where(j < WIDTH, x2 - mean, 0.0)
        inverse = 1.0 / tl.sqrt((tl.sum(x * x, 0) + tl.sum(x2 * x2, 0)) / WIDTH + EPS)
        normal, normal2 = x * inverse, x2 * inverse
        pull, pull2 = above * scale, above2 * scale2
        along = (tl.sum(pull * normal, 0) + tl.sum(pull2 * normal2, 0)) / WIDTH
        d_scale += above * normal
        d_scale2 += above2 * normal2
        d_x, d_x2 = pull - normal * along, pull2 - normal2 * along
        if CENTRED:
            d_shift += above
            d_shift2 += above2
            level = (tl.sum(pull, 0) + tl.sum(pull2, 0)) / WIDTH
            d_x, d_x2 = d_x - level, d_x2 - level
        tl.store(d_x_ + at + i, (d_x * inverse + beside).to(d_x_.dtype.element_ty), mask=inside)
        tl.store(d_x_ + at + j, (d_x2 * inverse + beside2).to(d_x_.dtype.element_ty), mask=inside2)
    share = program.to(tl.int64) * WIDTH
    tl.store(d_scale_ + share + i, d_scale)
    tl.store(d_scale_ + share + j, d_scale2, mask=j < WIDTH)
    if CENTRED:
        tl.store(d_shift_ + share + i, d_shift)
        tl.store(d_shift_ + share + j, d_shift2, mask=j < WIDTH)
