"""What a step reads of the tables of all steps, and what it leaves of its rows: new tokens, what is known of them, how many moved so far."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from scdd.ops.bookkeeping import reference
from scdd.ops.common import choose


class Rows(NamedTuple):
    """What a step changes of B rows of L positions; the names are those of `samplers.base.State` and `samplers.step.Present`."""

    tokens: Tensor  # [B, L] int64
    updatable: Tensor  # [B, L] bool
    log_p: Tensor  # [B, L] float32
    log_p_when_drawn: Tensor  # [B, L] float32
    counts: Tensor  # [B, 3] int64
    nfe: Tensor  # [B] int64
    done: Tensor  # [B] bool
    calls: Tensor  # [B] int64
    at: Tensor  # [B] int64


class Decided(NamedTuple):
    """What the step says of them."""

    tokens: Tensor  # [B, L]: they count where a row may change
    log_p: Tensor  # [B, L], of those tokens
    standing: Tensor | None  # [B, L]: log x_θ of the tokens from before, if somebody looked
    finished: Tensor | None  # [B] bool: rows that end with this step, if any can
    calls: Tensor  # [B] int64: random numbers drawn by now
    pace: Tensor  # [B] int64: steps that each row takes


def lookup(
    tables: tuple[Tensor, Tensor], at: Tensor, heat: Tensor | None, columns: int, impl: str = "auto"
) -> tuple[Tensor, Tensor, Tensor | None]:
    """(Rows `at` [B] of both tables, [S, R] float64 and [S, N] int64; heat [B, 1] as [B, columns], if there is any)."""
    if choose(impl, at) == "triton":
        from scdd.ops.bookkeeping.triton import lookup as fused

        return fused(tables, at, heat, columns)
    return reference.lookup(tables, at, heat, columns)


def record(
    rows: Rows, decided: Decided, mask_id: int, into: Tensor | None = None, impl: str = "auto"
) -> tuple[Rows, Tensor]:
    """(The rows after the step, [B, L] int8 what moved).

    `into` [B, L] int8 is for what moved, if memory is to be used again: a kernel then writes over the rows as well, and the tensors that
    come back are those that were given.
    """
    if choose(impl, rows.tokens) == "triton":
        from scdd.ops.bookkeeping.triton import record as fused

        return fused(rows, decided, mask_id, into)
    return reference.record(rows, decided, mask_id, into)
