"""Random numbers, and which of mask, noise, model and keep they choose: one launch where plain PyTorch takes seventy."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from scdd.core import Transition, Vocab

BLOCK = 256
WARPS = 4


def outcomes(
    move: Transition, z_t: Tensor, updatable: Tensor, vocab: Vocab, keys: Tensor, calls: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """`samplers.base.outcomes` for z_t [B, L], uniform noise, and rows that have drawn random numbers `calls` times; and how often by now."""
    rows, columns = z_t.shape
    parts = [part.expand(rows, columns) for part in move]
    strides = [stride for part in parts for stride in part.stride()]
    drawn = torch.empty((rows, columns), dtype=torch.bool, device=z_t.device)
    which = torch.empty((rows, columns), dtype=torch.float64, device=z_t.device)
    other = torch.empty((rows, columns), dtype=torch.int64, device=z_t.device)
    log_p = torch.empty((rows, columns), dtype=torch.float32, device=z_t.device)
    after = torch.empty_like(calls) if rows * columns else calls + 1
    if rows * columns:
        _outcomes[(rows, triton.cdiv(columns, BLOCK))](
            z_t.contiguous(), updatable.contiguous(), keys, calls, *parts, *strides,
            drawn, which, other, log_p, after, columns, vocab.mask_id, vocab.K, BLOCK=BLOCK, num_warps=WARPS,
        )  # fmt: skip
    return drawn, which, other, log_p, after


@triton.jit
def _hash(value):
    """splitmix64's finaliser, as `core.rng` has it."""
    value = value + 0x9E3779B97F4A7C15
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB
    return value ^ (value >> 31)


@triton.jit
def _uniform(call, place):
    """A number in [0, 1) with 53 random bits."""
    return (_hash(call ^ _hash(place.to(tl.uint64))) >> 11).to(tl.float64) * 1.1102230246251565e-16


@triton.jit
def _outcomes(
    z_, updatable_, keys, calls, keep_, model_, uniform_, mask_,
    keep_r, keep_c, model_r, model_c, uniform_r, uniform_c, mask_r, mask_c,
    drawn_, which_, other_, log_p_, after_, columns, mask_id, K, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    j = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = j < columns
    at = row.to(tl.int64) * columns + j
    key = tl.load(keys + row).to(tl.uint64, bitcast=True)
    number = tl.load(calls + row) + 1
    call = _hash(key + number.to(tl.uint64, bitcast=True) * 0x9E3779B97F4A7C15)
    first = _uniform(call, 3 * j)
    noise = (_uniform(call, 3 * j + 2) * K).to(tl.int64)
    noise = tl.minimum(noise, K - 1)
    noise = noise + (noise >= mask_id).to(tl.int64)
    z = tl.load(z_ + at, mask=inside, other=0)
    free = tl.load(updatable_ + at, mask=inside, other=0).to(tl.int32) != 0
    keep = tl.load(keep_ + row * keep_r + j * keep_c, mask=inside, other=0.0)
    model = tl.load(model_ + row * model_r + j * model_c, mask=inside, other=0.0)
    uniform = tl.load(uniform_ + row * uniform_r + j * uniform_c, mask=inside, other=0.0)
    mask = tl.load(mask_ + row * mask_r + j * mask_c, mask=inside, other=0.0)
    masked = free & (first < mask)
    noised = free & (first >= mask) & (first < mask + uniform)
    moves = free & (first >= mask) & (first >= mask + uniform)
    drawn = moves & ((first < mask + uniform + model) | (keep <= 0.0))
    tl.store(drawn_ + at, drawn, mask=inside)
    tl.store(which_ + at, _uniform(call, 3 * j + 1), mask=inside)
    tl.store(other_ + at, tl.where(masked, mask_id, tl.where(noised, noise, z)), mask=inside)
    tl.store(log_p_ + at, tl.where(masked, -float("inf"), float("nan")), mask=inside)
    if tl.program_id(1) == 0:
        tl.store(after_ + row, number)
