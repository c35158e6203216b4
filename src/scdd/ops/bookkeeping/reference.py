"""The same in plain PyTorch: what CPUs run, and what the kernels are held to."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from scdd.ops.bookkeeping import Decided, Rows

KEPT, UNMASKED, CORRECTED, REMASKED = 0, 1, 2, 3  # what happened to a position: `samplers.step.KINDS`


def lookup(
    tables: tuple[Tensor, Tensor], at: Tensor, heat: Tensor | None, columns: int
) -> tuple[Tensor, Tensor, Tensor | None]:
    """See `ops.bookkeeping.lookup`."""
    return tables[0][at], tables[1][at], None if heat is None else heat.expand(-1, columns)


def record(rows: Rows, decided: Decided, mask_id: int, into: Tensor | None = None) -> tuple[Rows, Tensor]:
    """See `ops.bookkeeping.record`; all in new tensors, whatever `into` is."""
    tokens = torch.where(rows.updatable, decided.tokens, rows.tokens)
    was, now, changed = rows.tokens != mask_id, tokens != mask_id, tokens != rows.tokens
    moved = torch.where(now, torch.where(was, CORRECTED, UNMASKED), REMASKED) * changed
    standing = rows.log_p if decided.standing is None else decided.standing
    done = rows.done if decided.finished is None else rows.done | decided.finished
    after = rows._replace(
        tokens=tokens,
        updatable=rows.updatable if done is rows.done else rows.updatable & ~done[:, None],
        log_p=torch.where(changed, decided.log_p, standing).to(torch.float32),
        log_p_when_drawn=torch.where(changed, decided.log_p, rows.log_p_when_drawn).to(torch.float32),
        counts=rows.counts + (moved[..., None] == torch.arange(1, 4, device=moved.device)).sum(1),
        nfe=rows.nfe + (~rows.done).to(torch.int64),
        done=done,
        calls=decided.calls,
        at=rows.at + decided.pace,
    )
    return after, moved.to(torch.int8)
