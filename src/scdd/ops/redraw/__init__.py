"""Draws from the filtered x_θ at the positions that move, and at no others."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from scdd.core import Head
from scdd.core.rng import Randomness, uniforms
from scdd.ops.filters import NO_FILTERS, Filters
from scdd.ops.impl import choose
from scdd.ops.logits import compute_weights, evened, raw_logits
from scdd.ops.redraw import reference


class Draw(NamedTuple):
    """Where a position moves: the drawn token and its log x_θ; elsewhere token −1 and log −∞."""

    tokens: Tensor  # [N] int64
    log_p: Tensor  # [N]


def redraw(
    hidden: Tensor,
    head: Head,
    moves: Tensor,
    source: Tensor | Randomness = None,
    filters: Filters = NO_FILTERS,
    z_t: Tensor | None = None,
    logits: Tensor | None = None,
    impl: str = "auto",
) -> Draw:
    """One draw of x_θ for each position with moves [N] true.

    `source` gives the randomness: a generator, or uniform numbers [N] (float64) when draws must not depend on how
    samples are batched. The draw inverts the cumulative mass in float64: float32 Gumbel-max is biased. `logits`, as
    `head_stats` leaves them on a GPU, saves the product and the host sync that picks rows.
    """
    u = source if isinstance(source, Tensor) else uniforms(moves.shape, source, hidden.device)
    chosen = choose(impl, hidden)
    tokens = torch.full(moves.shape, -1, dtype=torch.int64, device=hidden.device)
    log_p = torch.full(moves.shape, -torch.inf, dtype=torch.float32, device=hidden.device)
    if chosen == "triton":
        from scdd.ops.redraw.triton import row_draw

        if logits is not None:
            row_draw(logits, head, u, z_t, filters, moves, tokens, log_p)
            return Draw(tokens, log_p)
    rows = moves.nonzero()[:, 0]
    if chosen == "chunked":
        rows = evened(rows)
    picked = None if z_t is None else z_t[rows]
    if chosen == "reference":
        some, some_log_p = reference.redraw(hidden[rows], head, u[rows], picked, filters)
    elif chosen == "triton":
        some, some_log_p = _picked(hidden[rows], head, u[rows], picked, filters)
    else:
        from scdd.ops.redraw.chunked import redraw as chunked

        some, some_log_p = chunked(hidden[rows], head, u[rows], picked, filters)
    tokens[rows], log_p[rows] = some, some_log_p.to(log_p.dtype)
    return Draw(tokens, log_p)


def _picked(hidden: Tensor, head: Head, u: Tensor, z_t: Tensor | None, filters: Filters) -> Draw:
    """Triton draws at every row of `hidden`, whose logits are made here."""
    from scdd.ops.redraw.triton import row_draw

    every = torch.ones(hidden.shape[0], dtype=torch.bool, device=hidden.device)
    tokens = torch.empty(hidden.shape[0], dtype=torch.int64, device=hidden.device)
    log_p = torch.empty(hidden.shape[0], dtype=torch.float32, device=hidden.device)
    row_draw(raw_logits(hidden, *compute_weights(hidden, head)), head, u, z_t, filters, every, tokens, log_p)
    return Draw(tokens, log_p)
