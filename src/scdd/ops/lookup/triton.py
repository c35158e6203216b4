"""What the rows of a batch need to know before a step, in one launch: one program a row."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 1024  # columns at a time
WARPS = 4


def lookup(
    tables: tuple[Tensor, Tensor], at: Tensor, heat: Tensor | None, columns: int
) -> tuple[Tensor, Tensor, Tensor | None]:
    """See `ops.lookup.lookup`. The temperatures lie side by side then, as the head's kernels want them."""
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
