"""What sampling asks of the head, plainly and densely: the definitions that every fast path agrees with."""

from __future__ import annotations

import torch
from torch import Tensor

from scdd.core import Head
from scdd.ops.common import NO_FILTERS, Filters, invert
from scdd.ops.nucleus import lowest_kept


def logits(hidden: Tensor, head: Head, z_t: Tensor | None = None) -> Tensor:
    """[N, V] float64 logits with −∞ at the mask: x_θ gives it no probability (Zero Masking Probabilities)."""
    weight = head.wide_weight(torch.float64)
    out = hidden.to(torch.float64) @ weight.T
    if head.bias is not None:
        out = out + head.bias[: head.vocab.size].to(torch.float64)
    if head.input_bias is not None:
        if z_t is None:
            raise ValueError("this head adds a bias at the input token, so it needs z_t")
        here = torch.nn.functional.one_hot(z_t, head.vocab.size).to(torch.float64)
        out = out + head.input_bias.to(torch.float64) * here
    return forbid_mask(out, head.vocab.mask_id)


def forbid_mask(logits: Tensor, mask_id: int) -> Tensor:
    """A copy of `logits` with −∞ at the mask's column; the caller's tensor stays as it was."""
    columns = torch.arange(logits.shape[-1], device=logits.device)
    return logits.masked_fill(columns == mask_id, -torch.inf)


def head_stats(hidden: Tensor, head: Head, z_t: Tensor, filters: Filters = NO_FILTERS) -> tuple[Tensor, Tensor]:
    """(Log of the kept tokens' total weight, log x_θ(z_t) after the filters), [N] float64 each."""
    scores = logits(hidden, head, z_t)
    log_p = filtered(scores, filters)
    kept = torch.where(torch.isfinite(log_p), scores / filters.divisor, -torch.inf)
    return torch.logsumexp(kept, dim=-1), log_p.gather(-1, z_t[:, None])[:, 0]


def filtered(logits: Tensor, filters: Filters) -> Tensor:
    """The reference that every fast path agrees with: log x_θ after `filters`, [..., V] float64, −∞ where cut; logits already −∞ where forbidden."""
    scaled = logits.to(torch.float64) / filters.divisor
    if filters.top_k is not None:
        kth = torch.topk(scaled, min(filters.top_k, scaled.shape[-1]), dim=-1).values[..., -1:]
        scaled = scaled.masked_fill(scaled < kth, -torch.inf)
    if filters.top_p < 1.0:
        least = lowest_kept(scaled, filters.top_p, filters.nucleus)
        scaled = scaled.masked_fill(scaled < least[..., None], -torch.inf)
    return torch.log_softmax(scaled, dim=-1)


def redraw(
    hidden: Tensor, head: Head, u: Tensor, z_t: Tensor | None = None, filters: Filters = NO_FILTERS
) -> tuple[Tensor, Tensor]:
    """(Tokens, their log x_θ) for uniform numbers u [N]: the first id at which the cumulative mass passes u."""
    log_p = filtered(logits(hidden, head, z_t), filters)
    return invert(log_p, u)
