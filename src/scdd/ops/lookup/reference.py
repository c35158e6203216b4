"""Rows of tables in plain PyTorch: what the kernel is held to."""

from __future__ import annotations

from torch import Tensor


def lookup(
    tables: tuple[Tensor, Tensor], at: Tensor, heat: Tensor | None, columns: int
) -> tuple[Tensor, Tensor, Tensor | None]:
    """See `ops.lookup.lookup`."""
    return tables[0][at], tables[1][at], None if heat is None else heat.expand(-1, columns)
