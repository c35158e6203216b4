"""Which step each row is at, out of the tables of all steps, and its temperature at every position."""

from __future__ import annotations

from torch import Tensor

from scdd.ops.common import choose
from scdd.ops.lookup import reference


def lookup(
    tables: tuple[Tensor, Tensor], at: Tensor, heat: Tensor | None, columns: int, impl: str = "auto"
) -> tuple[Tensor, Tensor, Tensor | None]:
    """(Rows `at` [B] of both tables, [S, R] float64 and [S, N] int64; heat [B, 1] as [B, columns], if there is any)."""
    if choose(impl, at) == "triton":
        from scdd.ops.lookup.triton import lookup as fused

        return fused(tables, at, heat, columns)
    return reference.lookup(tables, at, heat, columns)
