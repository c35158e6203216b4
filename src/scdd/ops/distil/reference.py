"""The divergence from a teacher, dense and differentiable."""

from __future__ import annotations

import torch
from torch import Tensor

from scdd.core import Head
from scdd.ops.distil import Teacher
from scdd.ops.head import reference as reference_head


def divergences(hidden: Tensor, head: Head, z_t: Tensor, teacher: Teacher) -> Tensor:
    """τ²·weight·KL(teacher ‖ student) [N], both at temperature τ, in float64."""
    tau, mask = teacher.temperature, head.vocab.mask_id
    sides = (
        reference_head.logits(teacher.hidden, teacher.head, z_t).detach(),
        reference_head.logits(hidden, head, z_t),
    )
    scores = [reference_head.forbid_mask(side.to(torch.float64) / tau, mask) for side in sides]
    log_p, log_q = (torch.log_softmax(score, dim=-1) for score in scores)
    possible = log_p > -torch.inf
    ratio = torch.where(possible, log_p, 0.0) - torch.where(possible, log_q, 0.0)
    return tau**2 * teacher.weight.to(torch.float64) * (log_p.exp() * ratio).sum(-1)
