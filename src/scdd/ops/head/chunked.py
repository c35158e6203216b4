"""Head statistics (for the visible positions only) and draws in torch, a chunk of rows at a time."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from scdd.core import Head
from scdd.ops.common import Filters, chunks, compute_weights, evened, invert, raw_logits
from scdd.ops.head import sparse
from scdd.ops.nucleus import lowest_kept

if TYPE_CHECKING:
    from scdd.ops.int8 import Matrix

BINS = 64  # of the score


def head_stats(hidden: Tensor, head: Head, z_t: Tensor, filters: Filters) -> tuple[Tensor, Tensor]:
    """(log_total, log_p_z) as `ops.head_stats` describes them."""
    weight, bias = compute_weights(hidden, head)
    log_total = torch.full(z_t.shape, torch.nan, dtype=torch.float32, device=hidden.device)
    log_p_z = torch.full_like(log_total, -torch.inf)
    visible = evened((z_t != head.vocab.mask_id).nonzero()[:, 0])
    for part in chunks(len(visible), weight.shape[0], hidden):
        rows = visible[part]
        scores = scaled_logits(hidden[rows], weight, bias, head, z_t[rows], filters.of(rows))
        threshold, log_total[rows] = cut(scores, filters)
        here = scores.gather(1, z_t[rows, None])[:, 0]
        log_p_z[rows] = torch.where(here >= threshold, here - log_total[rows], -torch.inf)
    return log_total, log_p_z


def scaled_logits(
    hidden: Tensor, weight: Tensor | Matrix, bias: Tensor, head: Head, z_t: Tensor | None, filters: Filters
) -> Tensor:
    """Float32 logits over temperature [n, V], −∞ at the mask."""
    scores = raw_logits(hidden, weight, bias).float()[:, : head.vocab.size]
    if head.input_bias is not None:
        if z_t is None:
            raise ValueError("this head adds a bias at the input token, so it needs z_t")
        scores.scatter_add_(1, z_t[:, None], head.input_bias.detach().float().expand(len(z_t), 1))
    divisor = filters.divisor
    if not isinstance(divisor, Tensor):  # on a GPU torch multiplies by a number's inverse, and divides by a tensor
        divisor = scores.new_full((1, 1), divisor)
    return scores.div_(divisor.to(scores.dtype))


def cut(scores: Tensor, filters: Filters) -> tuple[Tensor, Tensor]:
    """(Threshold on the score, log of the weight at or above it), [n] each."""
    log_total = torch.logsumexp(scores, dim=1)
    threshold = torch.full_like(log_total, -torch.inf)
    if filters.top_k is not None:
        threshold = torch.topk(scores, min(filters.top_k, scores.shape[1]), dim=1).values[:, -1]
        log_total = torch.logsumexp(scores.masked_fill(scores < threshold[:, None], -torch.inf), dim=1)
    if not filters.top_p < 1.0:
        return threshold, log_total
    if not filters.other_nucleus:
        return _nucleus(scores, threshold, log_total, filters.top_p)
    if filters.nucleus == "below":
        threshold = _above_crossing(
            scores, *_nucleus(scores, threshold, log_total, filters.top_p), log_total, filters.top_p
        )
    else:
        left = scores.masked_fill(scores < threshold[:, None], -torch.inf)
        threshold = torch.maximum(threshold, lowest_kept(left, filters.top_p, filters.nucleus))
    return threshold, torch.logsumexp(scores.masked_fill(scores < threshold[:, None], -torch.inf), dim=1)


def _above_crossing(scores: Tensor, crossing: Tensor, kept: Tensor, log_total: Tensor, top_p: float) -> Tensor:
    """The threshold of the nucleus "below": the next score above the crossing token's, where that one goes too far."""
    higher = torch.where(scores > crossing[:, None], scores, torch.inf).amin(1)
    stays = ((kept - log_total).double().exp() <= top_p) | torch.isinf(higher)
    return torch.where(stays, crossing, higher)


def _nucleus(scores: Tensor, least: Tensor, log_total: Tensor, top_p: float) -> tuple[Tensor, Tensor]:
    """(The lowest score whose strictly better tokens weigh less than top_p of the total, the log weight from it on).

    Tokens below `least` have been cut already and are not in the total. Rows are done after a look at their likely tokens;
    where rounding leaves too few of them, by all. Ties at the threshold belong to it.
    """
    threshold, kept, known = sparse.nucleus(scores, least, log_total, top_p)
    rows = (~known).nonzero()[:, 0]
    if len(rows):
        threshold[rows], kept[rows] = by_bins(scores[rows], least[rows], log_total[rows], top_p)
    return threshold, log_total + kept.log().to(log_total.dtype)


def by_bins(scores: Tensor, least: Tensor, log_total: Tensor, top_p: float) -> tuple[Tensor, Tensor]:
    """The same for any row, with all of its tokens: weigh them by bins of their score, then sort one bin.

    All tokens below (1 − top_p)/V together weigh less than 1 − top_p, so the crossing lies above; they share a last bin.
    """
    depth = math.log(scores.shape[1] / (1 - top_p))
    relative = scores - log_total[:, None]
    bins = (relative * (-BINS / depth)).clamp_(0, BINS).long()
    mass = relative.double().exp_()
    weight = mass.new_zeros(len(scores), BINS + 1).scatter_add_(1, bins, mass)
    better = weight.cumsum(1) - weight
    crossing = ((better < top_p).sum(1, keepdim=True) - 1).clamp_(0, BINS)
    inside = bins == crossing
    best, where = torch.topk(scores.masked_fill(~inside, -torch.inf), int(inside.sum(1).max()), dim=1)
    before = better.gather(1, crossing)
    return sparse.cross(best, torch.where(best > -torch.inf, mass.gather(1, where), 0.0), least, top_p, before)


def redraw(hidden: Tensor, head: Head, u: Tensor, z_t: Tensor | None, filters: Filters) -> tuple[Tensor, Tensor]:
    """(Tokens, log x_θ) at every row of `hidden`; only the draw itself is in float64."""
    weight, bias = compute_weights(hidden, head)
    tokens = torch.empty(hidden.shape[0], dtype=torch.int64, device=hidden.device)
    log_p = torch.empty(hidden.shape[0], dtype=torch.float64, device=hidden.device)
    for part in chunks(hidden.shape[0], weight.shape[0], hidden):
        picked = None if z_t is None else z_t[part]
        scores = scaled_logits(hidden[part], weight, bias, head, picked, filters.of(part))
        threshold, log_total = cut(scores, filters)
        if filters.cuts:
            tokens[part], log_p[part] = sparse.draw(scores, threshold, log_total, u[part])
        else:
            tokens[part], log_p[part] = invert(scores.sub_(log_total[:, None]).to(torch.float64), u[part])
    return tokens, log_p
