"""The head product, a bounded number of rows at a time."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from scdd.core import Head

CHUNK_BYTES = {
    "cuda": 448 << 20,
    "cpu": 16 << 20,
}  # one chunk's logits: big enough to fill a GPU, small beside the rest


EVEN = 16


def evened(rows: Tensor) -> Tensor:
    """Row numbers filled up to a multiple of 16 by repeating the last one.

    A CPU's matrix product takes other paths for a few rows, which round otherwise. With at least 16 a row's logits do not
    depend on how many other rows are asked for at the same time, hence not on who shares the batch.
    """
    lack = -len(rows) % EVEN
    return torch.cat([rows, rows[-1:].expand(lack)]) if lack and len(rows) else rows


def chunks(count: int, columns: int, like: Tensor) -> Iterator[slice]:
    """Slices over `count` rows such that rows × columns of `like`'s dtype stay within the device's chunk."""
    limit = CHUNK_BYTES.get(like.device.type, CHUNK_BYTES["cpu"])
    rows = max(1, limit // (columns * like.element_size()))
    if rows >= EVEN:
        rows -= rows % (128 if rows >= 128 else EVEN)
    pieces = -(-count // rows) if count else 0
    even = -(-count // max(pieces, 1))
    step = min(rows, -(-even // 128) * 128) if rows >= 128 else rows  # equal chunks: no small, slow last one
    for start in range(0, count, max(step, 1)):
        yield slice(start, min(start + step, count))


def raw_logits(hidden: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """hidden @ weightᵀ + bias over all Vp columns, −∞ where `compute_weights` put it; dtype as `hidden`."""
    return torch.addmm(bias, hidden, weight.T)


def compute_weights(hidden: Tensor, head: Head) -> tuple[Tensor, Tensor]:
    """The head's weight and bias in the dtype of the activations (float32 master weights stay as they are).

    The bias is −∞ at the mask and on the padding: the product itself leaves them no probability and no gradient, and
    nobody after it has to know which columns they are.
    """
    weight = head.weight.detach().to(hidden.dtype)
    given = weight.new_zeros(weight.shape[0]) if head.bias is None else head.bias.detach().to(hidden.dtype)
    column = torch.arange(weight.shape[0], device=weight.device)
    forbidden = (column == head.vocab.mask_id) | (column >= head.vocab.size)
    return weight, given.masked_fill(forbidden, -torch.inf)
