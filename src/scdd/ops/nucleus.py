"""Nucleus rules by their definitions: sorted, summed and compared in float64. `Filters.nucleus` names them."""

from __future__ import annotations

import torch
from torch import Tensor

from scdd.ops.common import NucleusRule


def crossing(scores: Tensor, top_p: float) -> Tensor:
    """Holtzman's nucleus: the smallest set of likeliest tokens whose mass reaches top_p."""
    ordered, mass = _sorted(scores)
    above = mass.cumsum(-1) - mass
    last = ((above < top_p).sum(-1, keepdim=True) - 1).clamp(min=0)
    return ordered.gather(-1, last)[..., 0]


def below(scores: Tensor, top_p: float) -> Tensor:
    """The largest set of likeliest tokens whose mass does not exceed top_p, or the best alone: the crossing token goes."""
    ordered, mass = _sorted(scores)
    # what a token and all its equals weigh with those above: the sum up to the last of its equals
    following = torch.cat([ordered[..., 1:], torch.full_like(ordered[..., :1], -torch.inf)], dim=-1)
    whole = torch.where(following < ordered, mass.cumsum(-1), torch.inf)
    whole = whole.flip(-1).cummin(-1).values.flip(-1)
    last = ((whole <= top_p).sum(-1, keepdim=True) - 1).clamp(min=0)
    return ordered.gather(-1, last)[..., 0]


RULES: dict[str, NucleusRule] = {"crossing": crossing, "below": below}


def lowest_kept(scores: Tensor, top_p: float, rule: str | NucleusRule) -> Tensor:
    """The lowest score that a rule, by its name or its own, leaves in each row; the best token's at the most."""
    given = scores.to(torch.float64)
    found = (RULES[rule] if isinstance(rule, str) else rule)(given, top_p)
    return torch.minimum(found, given.amax(-1)).to(scores.dtype)


def _sorted(scores: Tensor) -> tuple[Tensor, Tensor]:
    ordered = torch.sort(scores, dim=-1, descending=True).values
    return ordered, torch.softmax(ordered, dim=-1)
