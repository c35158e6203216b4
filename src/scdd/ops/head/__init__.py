"""What a sampler asks of the head at every position: log x_θ(z_t) of the token that stands there."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from scdd.core import Head
from scdd.ops.filters import NO_FILTERS, Filters
from scdd.ops.head import reference
from scdd.ops.impl import choose
from scdd.ops.logits import compute_weights, raw_logits

KEEP_BYTES = (
    1 << 30
)  # logits up to this size are handed on to `redraw`, which then needs no product and no host sync


class HeadStats(NamedTuple):
    """log_total: log of the kept tokens' weight (logsumexp without filters); log_p_z: log x_θ(z_t), −∞ if cut.

    At masked positions x_θ(m) = 0, so log_p_z is −∞; the fast paths then do not compute log_total (NaN there, and
    perhaps where z_t is cut).
    """

    log_total: Tensor  # [N]
    log_p_z: Tensor  # [N]
    logits: Tensor | None  # [N, Vp] as the fast path left them, or None where they would not fit


def head_stats(
    hidden: Tensor, head: Head, z_t: Tensor, filters: Filters = NO_FILTERS, impl: str = "auto"
) -> HeadStats:
    """Statistics of x_θ after `filters` at hidden [N, D], z_t [N]; float32 (float64 from the reference)."""
    chosen = choose(impl, hidden)
    if chosen == "reference":
        return HeadStats(*reference.head_stats(hidden, head, z_t, filters), None)
    if chosen == "triton":
        return _on_device(hidden, head, z_t, filters)
    from scdd.ops.head.chunked import head_stats as chunked

    return HeadStats(*chunked(hidden, head, z_t, filters), None)


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
        row_stats(logits, head, z_t[part], filters, log_total[part], log_p_z[part])
    return HeadStats(log_total, log_p_z, logits if count <= step else None)
