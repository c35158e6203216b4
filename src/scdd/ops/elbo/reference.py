"""The per-position loss of `core.ElboCoefficients`, dense and differentiable."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import softplus as torch_softplus

from scdd.core import ElboCoefficients, Head
from scdd.ops.head import reference as reference_head


class Statistics(NamedTuple):
    """All that the loss needs to know of x_θ at a position."""

    log_p_x: Tensor  # log x_θ(x)
    log_p_z: Tensor  # log x_θ(z_t); at masked positions that of x, which no weight there uses
    S: Tensor  # Σ_{v≠m} log(1 + r·x_θ(v)); 0 where there is no floor


def elbo(
    hidden: Tensor, head: Head, x: Tensor, z_t: Tensor, rows: ElboCoefficients, noise: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """(Sum of the losses with gradients, the losses [N] without); hidden [N, D], x and z_t [N], rows [N]."""
    losses = loss(reference_head.logits(hidden, head, z_t), x, z_t, rows, head.vocab.mask_id, noise)
    return losses.sum(), losses.detach()


def loss(
    logits: Tensor, x: Tensor, z_t: Tensor, rows: ElboCoefficients, mask_id: int, noise: Tensor | None = None
) -> Tensor:
    """Losses [...] from logits [..., V], differentiable in the logits, whatever rows, z_t and t; `noise` is log(K·π) [V]."""
    log_p = torch.log_softmax(reference_head.forbid_mask(logits.to(torch.float64), mask_id), dim=-1)
    seen = torch.where(z_t == mask_id, x, z_t)
    relative = torch.zeros(logits.shape[-1], dtype=torch.float64, device=logits.device) if noise is None else noise
    statistics = Statistics(
        log_p_x=log_p.gather(-1, x[..., None])[..., 0],
        log_p_z=log_p.gather(-1, seen[..., None])[..., 0],
        S=(relative.exp() * _gain(log_p, _finite(rows.log_r)[..., None] - relative)).sum(-1),
    )
    return position_loss(rows, z_t == x, statistics, (relative[x], relative[seen]))


def position_loss(
    rows: ElboCoefficients, same: Tensor, at: Statistics, relative: tuple[Tensor, Tensor] | None = None
) -> Tensor:
    """The closed form in `core.ElboCoefficients`; unselected branches are made finite first, so that no gradient is 0·∞.

    `relative` is log κ of x and of z_t, 0 for uniform noise.
    """
    floor, floor_t = rows.log_r != torch.inf, rows.log_r_t != torch.inf
    of_x, of_z = relative or (torch.zeros_like(rows.log_r), torch.zeros_like(rows.log_r))
    log_r, log_r_t = _finite(rows.log_r) - of_x, _finite(rows.log_r_t) - of_z
    gain_x = _gain(at.log_p_x, log_r)
    log_x = torch.where(floor, gain_x - _softplus(log_r), at.log_p_x)
    gain_t = _gain(at.log_p_z, log_r_t)
    y = torch.where(floor_t, torch.where(same, gain_t - _softplus(log_r_t), gain_t), at.log_p_z)
    y = torch.where((rows.w_t != 0) | (rows.w_e != 0), y, torch.zeros_like(y))
    gain_z = _gain(at.log_p_z, _finite(rows.log_r) - of_z)
    floored = rows.w_z * gain_z + rows.w_o * (at.S - of_x.exp() * gain_x)
    return -rows.w_x * log_x - torch.where(floor, floored, 0.0) + rows.w_t * y + rows.w_e * torch.expm1(-y)


def _gain(log_p: Tensor, log_r: Tensor) -> Tensor:
    """D(p) = log(1 + r·p)."""
    return _softplus(log_p + log_r)


def _softplus(value: Tensor) -> Tensor:
    """log(1 + e^value) to the last digit: torch's own default drops e^{-value}, 2e-9, from value = 20 on."""
    return torch_softplus(value, threshold=40.0)


def _finite(log_r: Tensor) -> Tensor:
    return torch.where(torch.isinf(log_r) & (log_r > 0), 0.0, log_r)
