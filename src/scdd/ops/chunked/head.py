"""Head statistics in torch, for the visible positions only."""

from __future__ import annotations

import torch
from torch import Tensor

from scdd.core import Head
from scdd.ops.filters import Filters
from scdd.ops.logits import chunks, compute_weights, evened, raw_logits

CANDIDATES = (128, 1024)  # a nucleus is looked for among so many best tokens before a row is sorted whole


def head_stats(hidden: Tensor, head: Head, z_t: Tensor, filters: Filters) -> tuple[Tensor, Tensor]:
    """(log_total, log_p_z) as `ops.head_stats` describes them."""
    weight, bias = compute_weights(hidden, head)
    log_total = torch.full(z_t.shape, torch.nan, dtype=torch.float32, device=hidden.device)
    log_p_z = torch.full_like(log_total, -torch.inf)
    visible = evened((z_t != head.vocab.mask_id).nonzero()[:, 0])
    for part in chunks(len(visible), weight.shape[0], hidden):
        rows = visible[part]
        scores = scaled_logits(hidden[rows], weight, bias, head, z_t[rows], filters)
        threshold, log_total[rows] = cut(scores, filters)
        here = scores.gather(1, z_t[rows, None])[:, 0]
        log_p_z[rows] = torch.where(here >= threshold, here - log_total[rows], -torch.inf)
    return log_total, log_p_z


def scaled_logits(
    hidden: Tensor, weight: Tensor, bias: Tensor, head: Head, z_t: Tensor | None, filters: Filters
) -> Tensor:
    """Float32 logits over temperature [n, V], −∞ at the mask."""
    scores = raw_logits(hidden, weight, bias).float()[:, : head.vocab.size]
    if head.input_bias is not None:
        if z_t is None:
            raise ValueError("this head adds a bias at the input token, so it needs z_t")
        scores.scatter_add_(1, z_t[:, None], head.input_bias.detach().float().expand(len(z_t), 1))
    return scores.div_(filters.temperature)


def cut(scores: Tensor, filters: Filters) -> tuple[Tensor, Tensor]:
    """(Threshold on the score, log of the weight at or above it), [n] each."""
    log_total = torch.logsumexp(scores, dim=1)
    threshold = torch.full_like(log_total, -torch.inf)
    if filters.top_k is not None:
        threshold = torch.topk(scores, min(filters.top_k, scores.shape[1]), dim=1).values[:, -1]
        log_total = _weight_above(scores, threshold)
    if filters.top_p < 1.0:
        threshold = torch.maximum(threshold, _nucleus(scores, log_total, filters.top_p))
        log_total = _weight_above(scores, threshold)
    return threshold, log_total


def _weight_above(scores: Tensor, threshold: Tensor) -> Tensor:
    return torch.logsumexp(scores.masked_fill(scores < threshold[:, None], -torch.inf), dim=1)


def _nucleus(scores: Tensor, log_total: Tensor, top_p: float) -> Tensor:
    """The lowest score whose strictly better tokens weigh less than top_p of the total."""
    threshold, rows = torch.empty_like(log_total), torch.arange(len(scores), device=scores.device)
    for candidates in (*CANDIDATES, scores.shape[1]):
        count = min(candidates, scores.shape[1])
        best = torch.topk(scores[rows], count, dim=1).values
        threshold[rows], found = _crossing(best, log_total[rows], top_p)
        rows = rows[~found]
        if len(rows) == 0 or count == scores.shape[1]:
            break
    return threshold


def _crossing(ordered: Tensor, log_total: Tensor, top_p: float) -> tuple[Tensor, Tensor]:
    """(Score of the token that crosses top_p, whether the crossing lies within `ordered`)."""
    mass = (ordered - log_total[:, None]).to(torch.float64).exp()
    total = mass.cumsum(1)
    last = ((total - mass < top_p).sum(1) - 1).clamp(min=0)
    return ordered.gather(1, last[:, None])[:, 0], total[:, -1] >= top_p
