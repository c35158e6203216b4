"""The divergence from a teacher and its gradient, for one chunk of both sides' logits, in torch."""

from __future__ import annotations

import torch
from torch import Tensor


def divergence(logits: Tensor, told: Tensor, weight: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """(τ²·weight·KL(p ‖ q) [n] float32, its gradient by `logits`, τ·weight·(q − p), in their type).

    q and p are the softmax of `logits` and of `told` [n, V] over τ. Both are −∞ at the same tokens, which have no part.
    """
    ours, theirs = logits.float() / temperature, told.float() / temperature
    lse_q, lse_p = torch.logsumexp(ours, 1), torch.logsumexp(theirs, 1)
    p = (theirs - lse_p[:, None]).exp()
    apart = torch.where(theirs > -torch.inf, theirs - ours, 0.0)
    losses = (p * apart).sum(1) - lse_p + lse_q
    q = (ours - lse_q[:, None]).exp()
    scale = weight * temperature
    return scale * temperature * losses, (scale[:, None] * (q - p)).to(logits.dtype)
