"""A row's likely tokens alone, as one list for all rows: most of a vocabulary weighs nothing, and is passed over once.

`chunked` has the dense way to the same nucleus (`by_bins`), which rows take whose likely tokens do not suffice.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from scdd.ops.common import invert

BINS = 512  # of the score, so fine that few tokens share one


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


def nucleus(scores: Tensor, least: Tensor, log_total: Tensor, top_p: float) -> tuple[Tensor, Tensor, Tensor]:
    """(Threshold, mass from it on, whether both are known), [n] each, as `chunked` describes them.

    All tokens below (1 − top_p)/V together weigh less than 1 − top_p, so the crossing lies above. The others are weighed by bins
    of their score, and the one bin of the crossing is sorted.
    """
    count, depth = len(scores), math.log(scores.shape[1] / (1 - top_p)) + 1.0  # 1: rounding must not decide
    likely = Likely.of(scores, log_total - depth)
    relative = likely.score - log_total.index_select(0, likely.row)
    bins = (relative * (-BINS / depth)).clamp_(0, BINS - 1).long()
    weight = torch.bincount(likely.row * BINS + bins, relative.double().exp_(), count * BINS).view(count, BINS)
    upto = weight.cumsum(1)
    better = upto - weight
    crossing = ((better < top_p).sum(1, keepdim=True) - 1).clamp_(min=0)
    inside = likely.where(bins == crossing[:, 0].index_select(0, likely.row)).rows(count)[0]
    ordered = inside.sort(dim=1, descending=True).values
    mass = (ordered - log_total[:, None]).double().exp_()
    threshold, kept = cross(ordered, mass, least, top_p, better.gather(1, crossing))
    return threshold, kept, (upto[:, -1] >= top_p) & (ordered[:, 0] > -torch.inf)


def cross(
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


def draw(scores: Tensor, threshold: Tensor, log_total: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
    """(Tokens, log x_θ) of `invert` among the tokens at or above the threshold. The others add zeros to its sums: nothing moves."""
    kept, columns = Likely.of(scores, threshold).rows(len(scores))
    place, log_p = invert(kept.sub_(log_total[:, None]).double(), u)
    return columns.gather(1, place[:, None])[:, 0], log_p
