"""Attention inside documents, block of keys by block of keys, without gradients. Nothing is copied or masked beforehand.

A program has one row of the batch, one head of keys and some queries: those of all heads that share these keys, positions
first. It sees that row alone, and its blocks depend on lengths and widths alone, so neither the batch nor a row's place in
it changes a bit. In long rows, keys that none of its queries may look at are left out in whole blocks: they would add
exact zeros. So are keys outside of all their windows, but for the row's first block, where the token is that all see.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from scdd.ops.triton_rows import LOG2E

FULL, LEAST = 64, 16  # rows of a tensor core's whole product; the least that one takes
IDS = 512  # document numbers that are looked through at a time


class Shape(NamedTuple):
    """Of a program: queries, keys at a time, warps, and loads in flight."""

    queries: int
    keys: int
    warps: int
    stages: int


SHAPE: Shape | None = None
"""Instead of `shape`'s choice, for measurements."""
SKIPS = 256
"""Keys from which on blocks of them may be left out; in fewer the search costs more than it spares. Results are the same."""


def shape(queries: int, keys: int, width: int, half: bool) -> Shape:
    """For so many queries (of all heads that share their keys), keys and channels; nothing else may be looked at here."""
    if SHAPE is not None:
        return SHAPE
    if not half:  # no tensor cores: everything is in registers
        return Shape(32, 32, 4, 1)
    if min(queries, keys) <= 32:
        return Shape(32, 32, 2, 1)
    if queries < 2048 or width > 64:
        return Shape(64, 64, 4, 2)
    return Shape(128, 64, 8, 3)


def attention(
    q: Tensor, k: Tensor, v: Tensor, documents: Tensor | None = None, causal: bool = False, window: int | None = None
) -> Tensor:
    """See `ops.documents.attention`. The result is [B, L, H, Dh] in memory."""
    batch, heads, length, width = q.shape
    shared, keys = k.shape[1], k.shape[2]
    out = torch.empty(batch, length, heads, width, dtype=q.dtype, device=q.device).transpose(1, 2)
    if not out.numel():
        return out
    groups = heads // shared
    own = shape(groups * length, keys, width, q.dtype != torch.float32)
    blocks = triton.cdiv(groups * length, own.queries)
    ids = documents if documents is not None else q  # nobody reads it then
    _attention[(batch * shared * blocks,)](
        q, k, v, out, ids, *q.stride(), *k.stride(), *v.stride(), *out.stride(), *ids.stride()[:2],
        blocks, shared, length, keys, window or 0, width**-0.5 * LOG2E.value,
        GROUPS=groups, WIDTH=width, WIDE=max(LEAST, triton.next_power_of_2(width)),
        QUERIES=own.queries, KEYS=own.keys, REST=_rest(keys, own.keys), IDS=IDS,
        PACKED=documents is not None, CAUSAL=causal, WINDOWED=window is not None, SKIPS=documents is not None and keys >= SKIPS,
        num_warps=own.warps, num_stages=own.stages,
    )  # fmt: skip
    return out


def _rest(keys: int, block: int) -> int:
    """Size of the block for what whole ones leave: served rows have 8 tokens more than a power of two."""
    rest = keys % block
    return max(LEAST, triton.next_power_of_2(rest)) if rest else 0


# Few kernels for all lengths, and one wherever in memory a row of documents begins.
@triton.jit(
    do_not_specialize=["ids_b", "blocks", "shared", "length", "keys", "window"], do_not_specialize_on_alignment=["ids_"]
)
def _attention(
    q_, k_, v_, out_, ids_, q_b, q_h, q_l, q_d, k_b, k_h, k_l, k_d, v_b, v_h, v_l, v_d, out_b, out_h, out_l, out_d, ids_b, ids_l,
    blocks, shared, length, keys, window, scale,
    GROUPS: tl.constexpr, WIDTH: tl.constexpr, WIDE: tl.constexpr,
    QUERIES: tl.constexpr, KEYS: tl.constexpr, REST: tl.constexpr, IDS: tl.constexpr,
    PACKED: tl.constexpr, CAUSAL: tl.constexpr, WINDOWED: tl.constexpr, SKIPS: tl.constexpr,
):  # fmt: skip
    block = tl.program_id(0) % blocks
    head = (tl.program_id(0) // blocks) % shared
    row = (tl.program_id(0) // blocks // shared).to(tl.int64)
    k_ += row * k_b + head * k_h
    v_ += row * v_b + head * v_h
    ids_ += row * ids_b
    i = block * QUERIES + tl.arange(0, QUERIES)
    d = tl.arange(0, WIDE)
    at, member = i // GROUPS, head * GROUPS + i % GROUPS
    inside = (at < length)[:, None] & (d < WIDTH)[None, :]
    q = tl.load(q_ + row * q_b + at[:, None] * q_l + member[:, None] * q_h + d[None, :] * q_d, mask=inside, other=0.0)
    own = at
    if PACKED:
        own = tl.load(ids_ + at * ids_l, mask=at < length, other=0).to(tl.int32)
    first, last = 0, keys
    if SKIPS:
        first, last = _seen(ids_, ids_l, own, at < length, keys, IDS)
    if CAUSAL:
        last = tl.minimum(last, tl.max(at, 0) + 1)
    if WINDOWED:
        first = tl.maximum(first, tl.min(at, 0) - window)
        last = tl.minimum(last, tl.max(at, 0) + window + 1)
    best = tl.full((QUERIES,), float("-inf"), tl.float32)
    total = tl.zeros((QUERIES,), tl.float32)
    mixed = tl.zeros((QUERIES, WIDE), tl.float32)
    whole = keys // KEYS * KEYS
    if WINDOWED:  # noqa: SIM102 (the compiler is to leave it out)
        if first >= KEYS:  # its block is not among those below
            best, total, mixed = _block(
                best, total, mixed, q, own, at, k_, k_l, k_d, v_, v_l, v_d, ids_, ids_l, 0, keys, window, scale,
                WIDTH, WIDE, KEYS, False, PACKED, CAUSAL, WINDOWED,
            )  # fmt: skip
    if REST > 0:  # first: its loads then wait together with the queries'
        best, total, mixed = _block(
            best, total, mixed, q, own, at, k_, k_l, k_d, v_, v_l, v_d, ids_, ids_l, whole, keys, window, scale,
            WIDTH, WIDE, REST, True, PACKED, CAUSAL, WINDOWED,
        )  # fmt: skip
    for start in tl.range(first // KEYS * KEYS, tl.minimum(last, whole), KEYS):
        best, total, mixed = _block(
            best, total, mixed, q, own, at, k_, k_l, k_d, v_, v_l, v_d, ids_, ids_l, start, keys, window, scale,
            WIDTH, WIDE, KEYS, False, PACKED, CAUSAL, WINDOWED,
        )  # fmt: skip
    mixed *= (1.0 / tl.where(total > 0, total, 1.0))[:, None]  # empty beyond the row's end alone
    out_ += row * out_b + at[:, None] * out_l + member[:, None] * out_h + d[None, :] * out_d
    tl.store(out_, mixed.to(out_.dtype.element_ty), mask=inside)


@triton.jit
def _seen(ids_, ids_l, own, real, keys, IDS: tl.constexpr):
    """Where the keys begin and end whose documents are among those of the queries, or between them."""
    low = tl.min(tl.where(real, own, 2147483647), 0)
    high = tl.max(tl.where(real, own, -2147483648), 0)
    first, last = keys, 0
    for start in tl.range(0, keys, IDS):
        j = start + tl.arange(0, IDS)
        ids = tl.load(ids_ + j * ids_l, mask=j < keys, other=0).to(tl.int32)
        hit = (j < keys) & (ids >= low) & (ids <= high)
        first = tl.minimum(first, tl.min(tl.where(hit, j, keys), 0))
        last = tl.maximum(last, tl.max(tl.where(hit, j + 1, 0), 0))
    return first, last


@triton.jit
def _block(
    best, total, mixed, q, own, at, k_, k_l, k_d, v_, v_l, v_d, ids_, ids_l, start, keys, window, scale,
    WIDTH: tl.constexpr, WIDE: tl.constexpr, KEYS: tl.constexpr, ENDS: tl.constexpr,
    PACKED: tl.constexpr, CAUSAL: tl.constexpr, WINDOWED: tl.constexpr,
):  # fmt: skip
    """One more block of keys: (the largest score so far, the sum of exp2((score − largest) · scale), the values so weighted)."""
    j = start + tl.arange(0, KEYS)
    d = tl.arange(0, WIDE)
    if ENDS or WIDTH < WIDE:
        inside = (j < keys)[:, None] & (d < WIDTH)[None, :]
        k = tl.load(k_ + j[:, None] * k_l + d[None, :] * k_d, mask=inside, other=0.0)
        v = tl.load(v_ + j[:, None] * v_l + d[None, :] * v_d, mask=inside, other=0.0)
    else:
        k = tl.load(k_ + j[:, None] * k_l + d[None, :] * k_d)
        v = tl.load(v_ + j[:, None] * v_l + d[None, :] * v_d)
    scores = tl.dot(q, tl.trans(k), input_precision="ieee")
    if PACKED:
        if ENDS:
            theirs = tl.load(ids_ + j * ids_l, mask=j < keys, other=0).to(tl.int32)
        else:
            theirs = tl.load(ids_ + j * ids_l).to(tl.int32)
        scores = tl.where(own[:, None] == theirs[None, :], scores, float("-inf"))
    if CAUSAL:
        scores = tl.where(at[:, None] >= j[None, :], scores, float("-inf"))
    if WINDOWED:
        near = tl.abs(at[:, None] - j[None, :]) <= window
        scores = tl.where(near | (j == 0)[None, :], scores, float("-inf"))
    if ENDS:
        scores = tl.where((j < keys)[None, :], scores, float("-inf"))
    top = tl.maximum(best, tl.max(scores, 1))
    base = tl.where(top == float("-inf"), 0.0, top * scale)  # a query that has seen no key yet
    weights = tl.exp2(scores * scale - base[:, None])
    fade = tl.exp2(best * scale - base)
    total = total * fade + tl.sum(weights, 1)
    mixed = tl.dot(weights.to(v.dtype), v, mixed * fade[:, None], input_precision="ieee")
    return top, total, mixed
