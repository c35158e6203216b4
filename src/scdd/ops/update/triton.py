"""AdamW and the moving average as one kernel over all parameters: 36 bytes a weight and nothing twice.

The kernel finds its tensors through a table of addresses, so that hundreds of small parameters cost one launch.
"""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl
from torch import Tensor

if TYPE_CHECKING:
    from scdd.ops.update import Rates, Slots

BLOCK = 2048
WARPS = 4


def update(slots: Slots, scale: Tensor, rates: Rates) -> None:
    """See `ops.update.update`."""
    groups = [group for group in slots if group]
    addresses = [tensor.data_ptr() for group in groups for tensor in group]
    device = slots.weights[0].device
    table = torch.tensor(addresses, dtype=torch.int64, pin_memory=device.type == "cuda")
    sizes, owners, numbers = _chunks(tuple(w.numel() for w in slots.weights), BLOCK, device)
    whole1, whole2 = rates.corrections
    _update[(owners.shape[0],)](
        table.to(device, non_blocking=True),
        sizes,
        owners,
        numbers,
        scale,
        len(slots.weights),
        1 - rates.learning_rate * rates.weight_decay,
        rates.learning_rate / whole1,
        1 / math.sqrt(whole2),
        1 - rates.betas[0],
        rates.betas[1],
        1 - rates.betas[1],
        rates.epsilon,
        rates.pull,
        HAS_SHADOW=bool(slots.shadow),
        ALIGNED=all(address % 16 == 0 for address in addresses),
        BLOCK=BLOCK,
        num_warps=WARPS,
    )


@functools.lru_cache(maxsize=8)
def _chunks(sizes: tuple[int, ...], block: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """(Sizes of the tensors; for each chunk of `block` numbers its tensor; and which of that tensor's chunks it is)."""
    counts = torch.tensor([-(-size // block) for size in sizes])
    owners = torch.arange(len(sizes)).repeat_interleave(counts)
    firsts = (counts.cumsum(0) - counts).repeat_interleave(counts)
    numbers = torch.arange(owners.shape[0]) - firsts
    return torch.tensor(sizes).to(device), owners.int().to(device), numbers.int().to(device)


@triton.jit
def _update(
    table, sizes, owners, numbers, scale_, tensors, keep, step, spread, beta1_rest, beta2, beta2_rest, epsilon, pull,
    HAS_SHADOW: tl.constexpr, ALIGNED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    chunk = tl.program_id(0)
    entry = table + tl.load(owners + chunk)
    start = tl.load(numbers + chunk).to(tl.int64) * BLOCK
    size = tl.load(sizes + tl.load(owners + chunk))
    weights = _tensor(entry, ALIGNED)
    gradients = _tensor(entry + tensors, ALIGNED)
    first = _tensor(entry + 2 * tensors, ALIGNED)
    second = _tensor(entry + 3 * tensors, ALIGNED)
    shadow = weights
    if HAS_SHADOW:
        shadow = _tensor(entry + 4 * tensors, ALIGNED)
    scale = tl.load(scale_).to(tl.float32)
    if scale == scale:  # no number: the step is left out
        # Whole chunks go without a mask, which would keep loads narrow.
        if start + BLOCK <= size:
            _chunk(weights, gradients, first, second, shadow, start, size, scale, keep, step, spread, beta1_rest, beta2,
                   beta2_rest, epsilon, pull, HAS_SHADOW, BLOCK, False)  # fmt: skip
        else:
            _chunk(weights, gradients, first, second, shadow, start, size, scale, keep, step, spread, beta1_rest, beta2,
                   beta2_rest, epsilon, pull, HAS_SHADOW, BLOCK, True)  # fmt: skip


@triton.jit
def _tensor(entry, ALIGNED: tl.constexpr):
    address = tl.load(entry).to(tl.pointer_type(tl.float32))
    if ALIGNED:
        address = tl.multiple_of(address, 16)
    return address


@triton.jit
def _chunk(
    weights, gradients, first, second, shadow, start, size, scale, keep, step, spread, beta1_rest, beta2, beta2_rest,
    epsilon, pull, HAS_SHADOW: tl.constexpr, BLOCK: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    j = start + tl.arange(0, BLOCK)
    inside = None
    if MASKED:
        inside = j < size
    w = tl.load(weights + j, mask=inside)
    g = tl.load(gradients + j, mask=inside) * scale
    m = tl.load(first + j, mask=inside)
    v = tl.load(second + j, mask=inside)
    m += beta1_rest * (g - m)
    v = beta2 * v + beta2_rest * g * g
    w = w * keep - step * m / (tl.sqrt_rn(v) * spread + epsilon)
    tl.store(weights + j, w, mask=inside)
    tl.store(first + j, m, mask=inside)
    tl.store(second + j, v, mask=inside)
    if HAS_SHADOW:
        s = tl.load(shadow + j, mask=inside)
        tl.store(shadow + j, s + pull * (w - s), mask=inside)
