"""Head statistics (for the visible positions only) and draws in torch, a chunk of rows at a time."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from scdd.core import Head
from scdd.ops.common import Filters, chunks, compute_weights, evened, invert, raw_logits
from scdd.ops.nucleus import lowest_kept

if TYPE_CHECKING:
    from scdd.ops.int8 import Matrix

BINS = 64  # of the score
FINE = 512  # ... where only likely tokens are weighed, so that few share one


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
    threshold, kept, known = by_likely(scores, least, log_total, top_p)
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
    return crossed(best, torch.where(best > -torch.inf, mass.gather(1, where), 0.0), least, top_p, before)


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
            tokens[part], log_p[part] = draw_likely(scores, threshold, log_total, u[part])
        else:
            tokens[part], log_p[part] = invert(scores.sub_(log_total[:, None]).to(torch.float64), u[part])
    return tokens, log_p


# -- likely tokens alone: most of a vocabulary weighs nothing, and is passed over once ----------------------------------


class Likely(NamedTuple):
    """Tokens at or above a score of their row, in the order of rows and ids."""

    row: Tensor  # [M]
    column: Tensor  # [M]
    score: Tensor  # [M]

    @classmethod
    def of(cls, scores: Tensor, least: Tensor) -> Likely:
        """Of scores [n, V], those not below least [n]; the mask's −∞ never is among them."""
        least = least.clamp_min(torch.finfo(scores.dtype).min)
        place = _places(scores >= least[:, None])
        row = place.div(scores.shape[1], rounding_mode="floor")
        return cls(row, place - row * scores.shape[1], scores.reshape(-1).index_select(0, place))

    def where(self, inside: Tensor) -> Likely:
        """Some of them."""
        place = _places(inside)
        return Likely(*(field.index_select(0, place) for field in self))

    def rows(self, count: int) -> tuple[Tensor, Tensor]:
        """(Scores, ids), [count, most of any row] each, in the order of ids; the rest of a row is −∞."""
        each = torch.bincount(self.row, minlength=count)
        place = torch.arange(len(self.row), device=self.row.device) - (each.cumsum(0) - each).index_select(0, self.row)
        shape = (count, max(1, int(each.max())))
        score = self.score.new_full(shape, -torch.inf)
        column = self.column.new_zeros(shape)
        score[self.row, place], column[self.row, place] = self.score, self.column
        return score, column


def _places(inside: Tensor) -> Tensor:
    """Where a tensor is true, counted through all of it; on a CPU by numpy, which takes a fifth of torch's time."""
    flat = inside.view(-1)
    if flat.device.type != "cpu":
        return flat.nonzero()[:, 0]
    return torch.from_numpy(np.flatnonzero(flat.numpy()))


def by_likely(scores: Tensor, least: Tensor, log_total: Tensor, top_p: float) -> tuple[Tensor, Tensor, Tensor]:
    """(Threshold, mass from it on, whether both are known), [n] each, as `_nucleus` wants them.

    All tokens below (1 − top_p)/V together weigh less than 1 − top_p, so the crossing lies above. The others are weighed by bins
    of their score, and the one bin of the crossing is sorted.
    """
    count, depth = len(scores), math.log(scores.shape[1] / (1 - top_p)) + 1.0  # 1: rounding must not decide
    likely = Likely.of(scores, log_total - depth)
    relative = likely.score - log_total.index_select(0, likely.row)
    bins = (relative * (-FINE / depth)).clamp_(0, FINE - 1).long()
    weight = torch.bincount(likely.row * FINE + bins, relative.double().exp_(), count * FINE).view(count, FINE)
    upto = weight.cumsum(1)
    better = upto - weight
    crossing = ((better < top_p).sum(1, keepdim=True) - 1).clamp_(min=0)
    inside = likely.where(bins == crossing[:, 0].index_select(0, likely.row)).rows(count)[0]
    ordered = inside.sort(dim=1, descending=True).values
    mass = (ordered - log_total[:, None]).double().exp_()
    threshold, kept = crossed(ordered, mass, least, top_p, better.gather(1, crossing))
    return threshold, kept, (upto[:, -1] >= top_p) & (ordered[:, 0] > -torch.inf)


def crossed(
    ordered: Tensor, mass: Tensor, least: Tensor, top_p: float, before: Tensor | float = 0.0
) -> tuple[Tensor, Tensor]:
    """(Score of the token that crosses top_p, or `least` if that is higher; the mass from there on).

    `ordered` follows tokens that weigh `before`; the last score is given where all of them do not weigh enough. Sums go token by
    token: how many other columns a row was given, and hence who shares its batch, moves no bit.
    """
    last = ((before + mass.cumsum(1) - mass < top_p).sum(1) - 1).clamp(min=0)
    threshold = torch.maximum(ordered.gather(1, last[:, None])[:, 0], least)
    inside = torch.where(ordered >= threshold[:, None], mass, 0.0).cumsum(1)[:, -1:]
    return threshold, (before + inside)[:, 0]


def draw_likely(scores: Tensor, threshold: Tensor, log_total: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
    """(Tokens, log x_θ) of `invert` among the tokens at or above the threshold. The others add zeros to its sums: nothing moves."""
    kept, columns = Likely.of(scores, threshold).rows(len(scores))
    place, log_p = invert(kept.sub_(log_total[:, None]).double(), u)
    return columns.gather(1, place[:, None])[:, 0], log_p
