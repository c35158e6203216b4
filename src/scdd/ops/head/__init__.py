"""What a sampler asks of the head: log x_θ of the tokens that stand there, draws where tokens move, the likeliest tokens."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from scdd.core import Head
from scdd.core.rng import Randomness, uniforms
from scdd.ops.common import NO_FILTERS, Filters, choose, chunks, compute_weights, evened, raw_logits
from scdd.ops.head import chunked, reference

# Logits up to this size are handed on to `redraw`, which then needs no product and no host sync.
KEEP_BYTES = 1 << 30


class HeadStats(NamedTuple):
    """log_total: log of the kept tokens' weight (logsumexp without filters); log_p_z: log x_θ(z_t), −∞ if cut.

    At masked positions x_θ(m) = 0, so log_p_z is −∞; the fast paths then do not compute log_total (NaN there, and
    perhaps where z_t is cut).
    """

    log_total: Tensor  # [N]
    log_p_z: Tensor  # [N]
    logits: Tensor | None  # [N, Vp] as the fast path left them, or None where they would not fit


def head_stats(hidden: Tensor, head: Head, z_t: Tensor, filters: Filters = NO_FILTERS, impl: str = "auto") -> HeadStats:
    """Statistics of x_θ after `filters` at hidden [N, D], z_t [N]; float32 (float64 from the reference)."""
    chosen = _chosen(impl, hidden, filters)
    if chosen == "reference":
        return HeadStats(*reference.head_stats(hidden, head, z_t, filters), None)
    if chosen == "triton":
        return _on_device(hidden, head, z_t, filters)
    return HeadStats(*chunked.head_stats(hidden, head, z_t, filters), None)


def _chosen(impl: str, hidden: Tensor, filters: Filters) -> str:
    """The kernels know the crossing nucleus alone; the others are torch's work, on any device."""
    chosen = choose(impl, hidden)
    return "chunked" if chosen == "triton" and filters.other_nucleus else chosen


def _on_device(hidden: Tensor, head: Head, z_t: Tensor, filters: Filters) -> HeadStats:
    from scdd.ops.head.triton import row_stats

    weight, bias = compute_weights(hidden, head)
    count, columns = hidden.shape[0], weight.shape[0]
    log_total = torch.empty(count, dtype=torch.float32, device=hidden.device)
    log_p_z = torch.empty_like(log_total)
    step = max(1, KEEP_BYTES // (columns * hidden.element_size()))
    logits = None
    for start in range(0, count, step):
        part = slice(start, min(start + step, count))
        logits = raw_logits(hidden[part], weight, bias)
        row_stats(logits, head, z_t[part], filters.of(part), log_total[part], log_p_z[part])
    return HeadStats(log_total, log_p_z, logits if count <= step else None)


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
    chosen = _chosen(impl, hidden, filters)
    if chosen == "triton":
        from scdd.ops.head.triton_draw import row_draw

        if logits is not None:
            return Draw(*row_draw(logits, head, u, z_t, filters, moves))
    rows = moves.nonzero()[:, 0]
    if chosen == "chunked":
        rows = evened(rows)
    picked, filters = None if z_t is None else z_t[rows], filters.of(rows)
    if chosen == "reference":
        drawn, drawn_log_p = reference.redraw(hidden[rows], head, u[rows], picked, filters)
    elif chosen == "triton":
        scores = raw_logits(hidden[rows], *compute_weights(hidden, head))
        drawn, drawn_log_p = row_draw(scores, head, u[rows], picked, filters, torch.ones_like(rows, dtype=torch.bool))
    else:
        drawn, drawn_log_p = chunked.redraw(hidden[rows], head, u[rows], picked, filters)
    tokens = torch.full(moves.shape, -1, dtype=torch.int64, device=hidden.device)
    log_p = torch.full(moves.shape, -torch.inf, dtype=torch.float32, device=hidden.device)
    tokens[rows], log_p[rows] = drawn, drawn_log_p.to(log_p.dtype)
    return Draw(tokens, log_p)


def redrawn(
    logits: Tensor, head: Head, moves: Tensor, u: Tensor, filters: Filters, z_t: Tensor, otherwise: Draw
) -> Draw:
    """`redraw` from the logits that `head_stats` left on a GPU, with what is `otherwise` at the positions that stay: in the same launch."""
    from scdd.ops.head.triton_draw import row_draw

    return Draw(*row_draw(logits, head, u, z_t, filters, moves, otherwise))


class Top(NamedTuple):
    """The k likeliest tokens of x_θ, best first, unfiltered; and x_θ of the token that stands there."""

    tokens: Tensor  # [N, k] int64
    log_p: Tensor  # [N, k] float32
    log_p_z: Tensor  # [N] float32, log x_θ(z_t), −∞ at masks


def top(hidden: Tensor, head: Head, z_t: Tensor, k: int = 1) -> Top:
    """Top tokens at hidden [N, D], z_t [N], on any device: corrections ask this rarely, so torch's topk will do."""
    weight, bias = compute_weights(hidden, head)
    count = z_t.shape[0]
    tokens = torch.empty((count, k), dtype=torch.int64, device=hidden.device)
    log_p = torch.empty((count, k), dtype=torch.float32, device=hidden.device)
    log_p_z = torch.empty(count, dtype=torch.float32, device=hidden.device)
    for part in chunks(count, weight.shape[0], hidden):
        scores = chunked.scaled_logits(hidden[part], weight, bias, head, z_t[part], NO_FILTERS)
        total = torch.logsumexp(scores, dim=1)
        best = torch.topk(scores, k, dim=1)
        tokens[part], log_p[part] = best.indices, best.values - total[:, None]
        log_p_z[part] = scores.gather(1, z_t[part, None])[:, 0] - total
    return Top(tokens, log_p, log_p_z)


def all_logits(hidden: Tensor, head: Head, z_t: Tensor) -> Tensor:
    """[N, V] float32 logits at hidden [N, D], z_t [N], −∞ at the mask: for rules of one's own, since nothing here needs them."""
    return chunked.scaled_logits(hidden, *compute_weights(hidden, head), head, z_t, NO_FILTERS)
