"""Attention over short rows, forward and backward; the products around it stay the library's.

Queries, keys and values stay where one product wrote them, [B, L, (H + 2·Hk)·D]: queries and keys are turned there in
place, every kernel reads its heads from there, and backward writes gradients to the same places of another such tensor,
turned back on the way out of registers. Two kernels do the backward pass, one a block of queries and one a block of
keys, which computes the softmax twice and needs no sums across programs: nothing is cleared, converted or added up
afterwards, and the order of every sum is fixed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor, library
from torch.nn import functional as F

from scdd.ops.triton_rows import LOG2E, traceable

if TYPE_CHECKING:
    from scdd.ops.attention import Heads


class Shape(NamedTuple):
    """Of a kernel: queries and keys at a time, warps, and loads in flight."""

    queries: int
    keys: int
    warps: int
    stages: int


FORWARD = Shape(64, 64, 4, 3)
QUERIES = Shape(64, 64, 4, 3)  # the backward kernel that has the queries' gradients
KEYS = Shape(32, 64, 4, 3)  # and the one that has the keys' and values'
TURNED = 64  # heads of tokens that a program turns
TURNING_WARPS = 4


def mixed_values(x: Tensor, weight: Tensor, bias: Tensor | None, rotary: tuple[Tensor, Tensor], heads: Heads) -> Tensor:
    """See `ops.attention.mixed_values`."""
    cos, sin = rotary
    mixed: Tensor = torch.ops.scdd.mixed_values(x, weight, bias, cos, sin, heads.queries, heads.keys)[0]
    return mixed


@library.triton_op("scdd::mixed_values", mutates_args=())
def _forward(
    x: Tensor, weight: Tensor, bias: Tensor | None, cos: Tensor, sin: Tensor, heads: int, kv_heads: int
) -> tuple[Tensor, Tensor, Tensor]:
    """(Mixed values; queries ‖ keys ‖ values, turned; log2 of the softmax's sums [B, H, L]), the last two for backward."""
    batch, length, _ = x.shape
    qkv = F.linear(x, weight.to(x.dtype), None if bias is None else bias.to(x.dtype))
    width = qkv.shape[-1] // (heads + 2 * kv_heads)
    turned = batch * length * (heads + kv_heads)
    cos, sin = cos.contiguous(), sin.contiguous()
    traceable(_turn)[(triton.cdiv(turned, TURNED),)](
        qkv, cos, sin, length, turned,
        HEADS=heads, KV_HEADS=kv_heads, WIDTH=width, BLOCK=TURNED, num_warps=TURNING_WARPS,
    )  # fmt: skip
    mixed = x.new_empty(batch, length, heads * width)
    sums = torch.empty(batch, heads, length, dtype=torch.float32, device=x.device)
    shape = FORWARD
    traceable(_mix)[(triton.cdiv(length, shape.queries), batch * heads)](
        qkv, mixed, sums, length,
        HEADS=heads, KV_HEADS=kv_heads, WIDTH=width, SCALE=width**-0.5, QUERIES=shape.queries, KEYS=shape.keys,
        EVEN=length % max(shape.queries, shape.keys) == 0, num_warps=shape.warps, num_stages=shape.stages,
    )  # fmt: skip
    return mixed, qkv, sums


@library.triton_op("scdd::mixed_values_backward", mutates_args=())
def _backward(
    d_mixed: Tensor, mixed: Tensor, qkv: Tensor, sums: Tensor, cos: Tensor, sin: Tensor, heads: int, kv_heads: int
) -> Tensor:
    """The gradient of queries ‖ keys ‖ values before they were turned."""
    batch, length, _ = d_mixed.shape
    d_mixed, cos, sin = d_mixed.contiguous(), cos.contiguous(), sin.contiguous()
    width = qkv.shape[-1] // (heads + 2 * kv_heads)
    d_qkv, dots = torch.empty_like(qkv), torch.empty_like(sums)
    common = {"HEADS": heads, "KV_HEADS": kv_heads, "WIDTH": width, "SCALE": width**-0.5}
    shape = QUERIES
    traceable(_mix_backward_queries)[(triton.cdiv(length, shape.queries), batch * heads)](
        qkv, mixed, d_mixed, sums, dots, d_qkv, cos, sin, length,
        QUERIES=shape.queries, KEYS=shape.keys, EVEN=length % max(shape.queries, shape.keys) == 0,
        num_warps=shape.warps, num_stages=shape.stages, **common,
    )  # fmt: skip
    shape = KEYS
    traceable(_mix_backward_keys)[(triton.cdiv(length, shape.keys), batch * kv_heads)](
        qkv, d_mixed, sums, dots, d_qkv, cos, sin, length,
        QUERIES=shape.queries, KEYS=shape.keys, EVEN=length % max(shape.queries, shape.keys) == 0,
        num_warps=shape.warps, num_stages=shape.stages, **common,
    )  # fmt: skip
    return d_qkv


def _remember(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    x, weight, bias, cos, sin, heads, kv_heads = inputs
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(x, weight, cos, sin, *output)
    ctx.heads, ctx.bias_dtype = (heads, kv_heads), None if bias is None else bias.dtype


def _differentiate(ctx: Any, d_mixed: Tensor, _: Tensor | None, __: Tensor | None) -> tuple[Tensor | None, ...]:
    x, weight, cos, sin, mixed, qkv, sums = ctx.saved_tensors
    d_qkv = torch.ops.scdd.mixed_values_backward(d_mixed, mixed, qkv, sums, cos, sin, *ctx.heads)
    rows = d_qkv.view(-1, d_qkv.shape[-1])
    d_x = (rows @ weight.to(x.dtype)).view(x.shape)
    d_weight = (rows.T @ x.reshape(-1, x.shape[-1])).to(weight.dtype)
    d_bias = None if ctx.bias_dtype is None else rows.sum(0, dtype=torch.float32).to(ctx.bias_dtype)
    return d_x, d_weight, d_bias, None, None, None, None


_forward.register_autograd(_differentiate, setup_context=_remember)


@triton.jit
def _turn(
    qkv_, cos_, sin_, length, count,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Channel pairs (i, i + WIDTH/2) of all queries and keys by their positions' angles, in place."""
    HALF: tl.constexpr = WIDTH // 2
    n = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    token = n // (HEADS + KV_HEADS)
    head = n % (HEADS + KV_HEADS)
    i = tl.arange(0, HALF)
    inside = (n < count)[:, None]
    angle = (token % length)[:, None] * HALF + i[None, :]
    cos = tl.load(cos_ + angle, mask=inside, other=0.0)
    sin = tl.load(sin_ + angle, mask=inside, other=0.0)
    first = token.to(tl.int64) * ((HEADS + 2 * KV_HEADS) * WIDTH) + head * WIDTH
    at = qkv_ + first[:, None] + i[None, :]
    a = tl.load(at, mask=inside, other=0.0).to(tl.float32)
    b = tl.load(at + HALF, mask=inside, other=0.0).to(tl.float32)
    tl.store(at, (a * cos - b * sin).to(qkv_.dtype.element_ty), mask=inside)
    tl.store(at + HALF, (b * cos + a * sin).to(qkv_.dtype.element_ty), mask=inside)


@triton.jit
def _tile(base, row: tl.constexpr, start, length, COUNT: tl.constexpr, WIDTH: tl.constexpr, EVEN: tl.constexpr):
    """Positions start … of a head, [COUNT, WIDTH]; zero beyond the end."""
    n = start + tl.arange(0, COUNT)
    at = base + n[:, None] * row + tl.arange(0, WIDTH)[None, :]
    if EVEN:
        return tl.load(at)
    return tl.load(at, mask=(n < length)[:, None], other=0.0)


@triton.jit
def _mix(
    qkv_, mixed_, sums_, length,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, WIDTH: tl.constexpr, SCALE: tl.constexpr,
    QUERIES: tl.constexpr, KEYS: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """One block of a head's queries: their softmax over all keys, in base 2, and the values it weighs.

    SCALE is a constant since a compiled network hands numbers over in float64, and all that follows would be so.
    """
    ROW: tl.constexpr = (HEADS + 2 * KV_HEADS) * WIDTH
    start = tl.program_id(0) * QUERIES
    number = tl.program_id(1)
    batch = number // HEADS
    head = number % HEADS
    base = qkv_ + batch.to(tl.int64) * length * ROW
    keys = base + (HEADS + head // (HEADS // KV_HEADS)) * WIDTH
    q = _tile(base + head * WIDTH, ROW, start, length, QUERIES, WIDTH, EVEN)
    factor = SCALE * LOG2E
    best = tl.full((QUERIES,), -1e30, tl.float32)
    total = tl.zeros((QUERIES,), tl.float32)
    mixed = tl.zeros((QUERIES, WIDTH), tl.float32)
    for first in tl.range(0, length, KEYS):
        k = _tile(keys, ROW, first, length, KEYS, WIDTH, EVEN)
        scores = tl.dot(q, tl.trans(k))
        if not EVEN:
            scores = tl.where((first + tl.arange(0, KEYS) < length)[None, :], scores, -float("inf"))
        higher = tl.maximum(best, tl.max(scores, 1) * factor)
        p = tl.exp2(scores * factor - higher[:, None])
        fade = tl.exp2(best - higher)
        total = total * fade + tl.sum(p, 1)
        v = _tile(keys + KV_HEADS * WIDTH, ROW, first, length, KEYS, WIDTH, EVEN)
        mixed = tl.dot(p.to(v.dtype), v, mixed * fade[:, None])
        best = higher
    m = start + tl.arange(0, QUERIES)
    tl.store(sums_ + number.to(tl.int64) * length + m, best + tl.log2(total), mask=m < length)
    at = mixed_ + (batch.to(tl.int64) * length + m)[:, None] * (HEADS * WIDTH) + head * WIDTH
    mixed = mixed / total[:, None]
    tl.store(at + tl.arange(0, WIDTH)[None, :], mixed.to(mixed_.dtype.element_ty), mask=(m < length)[:, None])


@triton.jit
def _mix_backward_queries(
    qkv_, mixed_, d_mixed_, sums_, dots_, d_qkv_, cos_, sin_, length,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, WIDTH: tl.constexpr, SCALE: tl.constexpr,
    QUERIES: tl.constexpr, KEYS: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """The gradient of one block of a head's queries; and, for the keys' kernel, each position's result · its gradient."""
    ROW: tl.constexpr = (HEADS + 2 * KV_HEADS) * WIDTH
    start = tl.program_id(0) * QUERIES
    number = tl.program_id(1)
    batch = number // HEADS
    head = number % HEADS
    base = qkv_ + batch.to(tl.int64) * length * ROW
    keys = base + (HEADS + head // (HEADS // KV_HEADS)) * WIDTH
    there = batch.to(tl.int64) * length * (HEADS * WIDTH) + head * WIDTH
    m = start + tl.arange(0, QUERIES)
    inside = m < length
    q = _tile(base + head * WIDTH, ROW, start, length, QUERIES, WIDTH, EVEN)
    mixed = _tile(mixed_ + there, HEADS * WIDTH, start, length, QUERIES, WIDTH, EVEN)
    d_mixed = _tile(d_mixed_ + there, HEADS * WIDTH, start, length, QUERIES, WIDTH, EVEN)
    dots = tl.sum(mixed.to(tl.float32) * d_mixed.to(tl.float32), 1)
    tl.store(dots_ + number.to(tl.int64) * length + m, dots, mask=inside)
    sums = tl.load(sums_ + number.to(tl.int64) * length + m, mask=inside, other=float("inf"))
    factor = SCALE * LOG2E
    d_q = tl.zeros((QUERIES, WIDTH), tl.float32)
    for first in tl.range(0, length, KEYS):
        # Keys beyond the end are zero, and so is what they add.
        k = _tile(keys, ROW, first, length, KEYS, WIDTH, EVEN)
        v = _tile(keys + KV_HEADS * WIDTH, ROW, first, length, KEYS, WIDTH, EVEN)
        p = tl.exp2(tl.dot(q, tl.trans(k)) * factor - sums[:, None])
        d_scores = p * (tl.dot(d_mixed, tl.trans(v)) - dots[:, None])
        d_q = tl.dot(d_scores.to(k.dtype), k, d_q)
    at = d_qkv_ + batch.to(tl.int64) * length * ROW + m[:, None] * ROW + head * WIDTH
    _store_turned_back(at, d_q * SCALE, cos_, sin_, m, length, QUERIES, WIDTH)


@triton.jit
def _mix_backward_keys(
    qkv_, d_mixed_, sums_, dots_, d_qkv_, cos_, sin_, length,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, WIDTH: tl.constexpr, SCALE: tl.constexpr,
    QUERIES: tl.constexpr, KEYS: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """The gradients of one block of a head's keys and values, over all queries of all heads that it serves."""
    ROW: tl.constexpr = (HEADS + 2 * KV_HEADS) * WIDTH
    GROUP: tl.constexpr = HEADS // KV_HEADS
    start = tl.program_id(0) * KEYS
    batch = tl.program_id(1) // KV_HEADS
    head = tl.program_id(1) % KV_HEADS
    base = qkv_ + batch.to(tl.int64) * length * ROW
    there = d_mixed_ + batch.to(tl.int64) * length * (HEADS * WIDTH)
    k = _tile(base + (HEADS + head) * WIDTH, ROW, start, length, KEYS, WIDTH, EVEN)
    v = _tile(base + (HEADS + KV_HEADS + head) * WIDTH, ROW, start, length, KEYS, WIDTH, EVEN)
    factor = SCALE * LOG2E
    d_k = tl.zeros((KEYS, WIDTH), tl.float32)
    d_v = tl.zeros((KEYS, WIDTH), tl.float32)
    blocks = tl.cdiv(length, QUERIES)
    for step in tl.range(0, GROUP * blocks):
        mine = head * GROUP + step // blocks
        first = (step % blocks) * QUERIES
        m = first + tl.arange(0, QUERIES)
        number = (batch.to(tl.int64) * HEADS + mine) * length
        q = _tile(base + mine * WIDTH, ROW, first, length, QUERIES, WIDTH, EVEN)
        # Queries beyond the end have no probability anywhere.
        sums = tl.load(sums_ + number + m, mask=m < length, other=float("inf"))
        dots = tl.load(dots_ + number + m, mask=m < length, other=0.0)
        p = tl.exp2(tl.dot(k, tl.trans(q)) * factor - sums[None, :])  # [KEYS, QUERIES]
        d_mixed = _tile(there + mine * WIDTH, HEADS * WIDTH, first, length, QUERIES, WIDTH, EVEN)
        d_v = tl.dot(p.to(q.dtype), d_mixed, d_v)
        d_scores = p * (tl.dot(v, tl.trans(d_mixed)) - dots[None, :])
        d_k = tl.dot(d_scores.to(q.dtype), q, d_k)
    n = start + tl.arange(0, KEYS)
    at = d_qkv_ + batch.to(tl.int64) * length * ROW + n[:, None] * ROW + (HEADS + head) * WIDTH
    _store_turned_back(at, d_k * SCALE, cos_, sin_, n, length, KEYS, WIDTH)
    at += KV_HEADS * WIDTH + tl.arange(0, WIDTH)[None, :]
    tl.store(at, d_v.to(d_qkv_.dtype.element_ty), mask=(n < length)[:, None])


@triton.jit
def _store_turned_back(at, d, cos_, sin_, n, length, COUNT: tl.constexpr, WIDTH: tl.constexpr):
    """The gradient [COUNT, WIDTH] before the turn, stored from `at` on, positions n."""
    HALF: tl.constexpr = WIDTH // 2
    a, b = tl.split(tl.permute(tl.reshape(d, (COUNT, 2, HALF)), (0, 2, 1)))
    i = tl.arange(0, HALF)[None, :]
    inside = (n < length)[:, None]
    cos = tl.load(cos_ + n[:, None] * HALF + i, mask=inside, other=0.0)
    sin = tl.load(sin_ + n[:, None] * HALF + i, mask=inside, other=0.0)
    tl.store(at + i, (a * cos + b * sin).to(at.dtype.element_ty), mask=inside)
    tl.store(at + HALF + i, (b * cos - a * sin).to(at.dtype.element_ty), mask=inside)
