"""The likeliest tokens of each row, for whoever compares the token that stands there with the best one."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from scdd.core import Head
from scdd.ops.filters import NO_FILTERS
from scdd.ops.head.chunked import scaled_logits
from scdd.ops.logits import chunks, compute_weights


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
        scores = scaled_logits(hidden[part], weight, bias, head, z_t[part], NO_FILTERS)
        total = torch.logsumexp(scores, dim=1)
        best = torch.topk(scores, k, dim=1)
        tokens[part], log_p[part] = best.indices, best.values - total[:, None]
        log_p_z[part] = scores.gather(1, z_t[part, None])[:, 0] - total
    return Top(tokens, log_p, log_p_z)
