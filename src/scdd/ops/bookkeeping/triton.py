"""`lookup` in one launch, where plain PyTorch takes four, and `record` in one, where it takes twenty: a program a row."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from scdd.ops.bookkeeping import Decided, Rows
from scdd.ops.bookkeeping.reference import CORRECTED, REMASKED, UNMASKED

BLOCK = 1024  # columns at a time
WARPS = 4
_UNMASKED, _CORRECTED, _REMASKED = tl.constexpr(UNMASKED), tl.constexpr(CORRECTED), tl.constexpr(REMASKED)


def lookup(
    tables: tuple[Tensor, Tensor], at: Tensor, heat: Tensor | None, columns: int
) -> tuple[Tensor, Tensor, Tensor | None]:
    """See `ops.bookkeeping.lookup`. The temperatures lie side by side then, as the head's kernels want them."""
    rows, tables = at.shape[0], (tables[0].contiguous(), tables[1].contiguous())
    found = [torch.empty((rows, table.shape[1]), dtype=table.dtype, device=at.device) for table in tables]
    heats = None if heat is None else torch.empty((rows, columns), dtype=heat.dtype, device=at.device)
    if rows:
        _lookup[(rows,)](
            *tables, at, tables[0] if heat is None else heat.contiguous(), *found, found[0] if heats is None else heats,
            columns, REALS=tables[0].shape[1], NUMBERS=tables[1].shape[1],
            WIDTH=triton.next_power_of_2(max(table.shape[1] for table in tables)), HEATS=heats is not None,
            BLOCK=min(BLOCK, triton.next_power_of_2(max(columns, 1))), num_warps=WARPS,
        )  # fmt: skip
    return found[0], found[1], heats


def record(rows: Rows, decided: Decided, mask_id: int, into: Tensor | None = None) -> tuple[Rows, Tensor]:
    """See `ops.bookkeeping.record`."""
    ends, shape = decided.finished is not None, rows.tokens.shape
    rows = Rows(*(each.contiguous() for each in rows))  # no copies: they are whole tensors
    if into is None:
        moved = torch.empty(shape, dtype=torch.int8, device=rows.tokens.device)
        after = Rows(*(torch.empty_like(each) for each in rows))
        if not ends:  # these stay, so that nobody copies them
            after = after._replace(updatable=rows.updatable, done=rows.done)
    else:
        moved, after = into, rows
    if shape[0]:
        told = [decided.tokens, decided.log_p, rows.log_p if decided.standing is None else decided.standing]
        _record[(shape[0],)](
            *rows, *(each.expand(shape).contiguous() for each in told),
            rows.done if decided.finished is None else decided.finished.contiguous(), decided.calls, decided.pace,
            *after, moved, shape[1], mask_id, ENDS=ends, BLOCK=min(BLOCK, triton.next_power_of_2(max(shape[1], 1))), num_warps=WARPS,
        )  # fmt: skip
    return after, moved


@triton.jit
def _lookup(
    reals_, numbers_, at_, heat_, to_reals, to_numbers, to_heat, columns,
    REALS: tl.constexpr, NUMBERS: tl.constexpr, WIDTH: tl.constexpr, HEATS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    at = tl.load(at_ + row)
    i = tl.arange(0, WIDTH)
    tl.store(to_reals + row * REALS + i, tl.load(reals_ + at * REALS + i, mask=i < REALS), mask=i < REALS)
    tl.store(to_numbers + row * NUMBERS + i, tl.load(numbers_ + at * NUMBERS + i, mask=i < NUMBERS), mask=i < NUMBERS)
    if HEATS:
        heat = tl.load(heat_ + row)
        for start in range(0, columns, BLOCK):
            j = start + tl.arange(0, BLOCK)
            tl.store(to_heat + row * columns + j, heat + tl.zeros((BLOCK,), tl.float64), mask=j < columns)


@triton.jit
def _record(
    tokens_, updatable_, log_p_, when_drawn_, counts_, nfe_, done_, calls_, at_,
    new_, new_log_p_, standing_, finished_, new_calls_, pace_,
    to_tokens, to_updatable, to_log_p, to_when_drawn, to_counts, to_nfe, to_done, to_calls, to_at, moved_,
    columns, mask_id, ENDS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    done = tl.load(done_ + row).to(tl.int32) != 0
    ended = done | (tl.load(finished_ + row).to(tl.int32) != 0) if ENDS else done
    nfe = tl.load(nfe_ + row) + tl.where(done, 0, 1)
    count1, count2, count3 = tl.load(counts_ + 3 * row), tl.load(counts_ + 3 * row + 1), tl.load(counts_ + 3 * row + 2)
    calls, at = tl.load(new_calls_ + row), tl.load(at_ + row) + tl.load(pace_ + row)
    unmasked = tl.zeros((BLOCK,), tl.int32)
    corrected = tl.zeros((BLOCK,), tl.int32)
    remasked = tl.zeros((BLOCK,), tl.int32)
    for start in range(0, columns, BLOCK):
        j = start + tl.arange(0, BLOCK)
        inside = j < columns
        place = row.to(tl.int64) * columns + j
        old = tl.load(tokens_ + place, mask=inside, other=0)
        free = tl.load(updatable_ + place, mask=inside, other=0).to(tl.int32) != 0
        new = tl.load(new_ + place, mask=inside, other=0).to(tl.int64)
        new = tl.where(free, new, old)
        log_p = tl.load(new_log_p_ + place, mask=inside, other=0.0).to(tl.float32)
        standing = tl.load(standing_ + place, mask=inside, other=0.0).to(tl.float32)
        when_drawn = tl.load(when_drawn_ + place, mask=inside, other=0.0)
        changed = new != old
        kind = tl.where(new != mask_id, tl.where(old != mask_id, _CORRECTED, _UNMASKED), _REMASKED)
        kind = tl.where(changed, kind, 0)
        unmasked += (kind == _UNMASKED).to(tl.int32)
        corrected += (kind == _CORRECTED).to(tl.int32)
        remasked += (kind == _REMASKED).to(tl.int32)
        tl.debug_barrier()  # rows that are written over: no thread writes where another one has yet to read
        tl.store(to_tokens + place, new, mask=inside)
        tl.store(to_log_p + place, tl.where(changed, log_p, standing), mask=inside)
        tl.store(to_when_drawn + place, tl.where(changed, log_p, when_drawn), mask=inside)
        tl.store(moved_ + place, kind.to(tl.int8), mask=inside)
        if ENDS:
            tl.store(to_updatable + place, free & (ended == 0), mask=inside)
    tl.store(to_counts + 3 * row, count1 + tl.sum(unmasked, 0))
    tl.store(to_counts + 3 * row + 1, count2 + tl.sum(corrected, 0))
    tl.store(to_counts + 3 * row + 2, count3 + tl.sum(remasked, 0))
    tl.store(to_nfe + row, nfe)
    tl.store(to_calls + row, calls)
    tl.store(to_at + row, at)
    if ENDS:
        tl.store(to_done + row, ended)
