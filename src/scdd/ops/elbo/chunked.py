"""Losses and gradients of one chunk of logits, in torch, in place."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from scdd.core import ElboCoefficients, Head

MOST_LOG_R = 80.0  # exp of it fits in float32; rows without a floor (log_r = ∞) never use r


class Relative(NamedTuple):
    """log κ of noise that is not uniform, κ = K·π: of every token [Vp], of x [n] and of z_t [n]."""

    every: Tensor
    of_x: Tensor
    of_z: Tensor


def row_loss(
    logits: Tensor,
    head: Head,
    x: Tensor,
    z_t: Tensor,
    rows: ElboCoefficients,
    with_grad: bool,
    noise: Tensor | None = None,
) -> Tensor:
    """Losses [n] from logits [n, Vp]; with_grad leaves d(sum of losses)/d(logits) in `logits`. `noise` is log(K·π) [V]."""
    work = logits if logits.dtype == torch.float32 else logits.float()
    if head.input_bias is not None:
        work.scatter_add_(1, z_t[:, None], head.input_bias.detach().to(work.dtype).expand(len(z_t), 1))
    seen = torch.where(z_t == head.vocab.mask_id, x, z_t)
    lse = torch.logsumexp(work, dim=1)
    log_p_x = work.gather(1, x[:, None])[:, 0] - lse
    log_p_z = work.gather(1, seen[:, None])[:, 0] - lse
    p = work.sub_(lse[:, None]).exp_()
    relative = None
    if noise is not None:
        every = torch.nn.functional.pad(noise.to(work.dtype), (0, work.shape[1] - len(noise)))
        relative = Relative(every, every[x], every[seen])
    share, S = None, torch.zeros_like(lse)
    if bool((rows.w_o != 0).any()):  # MDLM and plain cross-entropy have no floor: no second V-wide pass
        if relative is None:
            share = p * rows.log_r.clamp(max=MOST_LOG_R).exp()[:, None]
            S = torch.log1p(share).sum(1)
        else:
            share = p * (rows.log_r[:, None] - relative.every).clamp(max=MOST_LOG_R).exp()
            S = torch.log1p(share) @ relative.every.exp()
    losses, g_x, g_z = closed_form(rows, z_t == x, log_p_x, log_p_z, S, relative)
    if with_grad:
        if share is not None:
            share.div_(share + 1.0)
            if relative is not None:
                share.mul_(relative.every.exp())
        _gradient(p, share, rows.w_o, x, seen, g_x, g_z)
        if work is not logits:
            logits.copy_(work)
    return losses


def _gradient(p: Tensor, share: Tensor | None, w_o: Tensor, x: Tensor, seen: Tensor, g_x: Tensor, g_z: Tensor) -> None:
    """p becomes g_x·(1_x − p) + g_z·(1_z − p) − w_o·(ρ_v − p·Σρ), ρ_v = r·p_v/(1 + r·p_v), which is `share`."""
    total = g_x + g_z
    if share is not None:
        p.mul_((w_o * share.sum(1) - total)[:, None])
        p.addcmul_(share, w_o[:, None], value=-1.0)
    else:
        p.mul_(-total[:, None])
    p.scatter_add_(1, x[:, None], g_x[:, None])
    p.scatter_add_(1, seen[:, None], g_z[:, None])


def closed_form(
    rows: ElboCoefficients, same: Tensor, log_p_x: Tensor, log_p_z: Tensor, S: Tensor, relative: Relative | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """(Losses, their derivatives by log x_θ(x), by log x_θ(z_t)); that by S is −w_o. The formula is `core.ElboCoefficients`'s."""
    floor, used = rows.log_r != torch.inf, (rows.w_t != 0) | (rows.w_e != 0)
    log_r_x, log_r_z, log_r_t, w_o_x = rows.log_r, rows.log_r, rows.log_r_t, rows.w_o
    if relative is not None:
        log_r_x, log_r_z = rows.log_r - relative.of_x, rows.log_r - relative.of_z
        log_r_t, w_o_x = rows.log_r_t - relative.of_z, rows.w_o * relative.of_x.exp()
    gain_x = torch.nn.functional.softplus(log_p_x + log_r_x.clamp(max=MOST_LOG_R))
    gain_z = torch.nn.functional.softplus(log_p_z + log_r_z.clamp(max=MOST_LOG_R))
    gain_t = torch.nn.functional.softplus(log_p_z + log_r_t.clamp(max=MOST_LOG_R))
    y = torch.where(same, log_mixture(log_p_z, log_r_t), gain_t)
    y = torch.where(used, y, 0.0)
    rest = rows.w_o * (S - gain_x) if relative is None else rows.w_o * S - w_o_x * gain_x
    floored = torch.where(floor, rows.w_z * gain_z + rest, 0.0)
    losses = -rows.w_x * log_mixture(log_p_x, log_r_x) - floored + rows.w_t * y + rows.w_e * torch.expm1(-y)
    slope_x, slope_z = torch.sigmoid(log_p_x + log_r_x), torch.sigmoid(log_p_z + log_r_z)
    slope_t = torch.sigmoid(log_p_z + log_r_t)
    g_z = -rows.w_z * slope_z + torch.where(used, (rows.w_t - rows.w_e * torch.exp(-y)) * slope_t, 0.0)
    return losses, (w_o_x - rows.w_x) * slope_x, g_z


def log_mixture(log_p: Tensor, log_r: Tensor) -> Tensor:
    """ℓ(p) = log((1 + r·p)/(1 + r)) = log(p + (1 − p)·b), b = 1/(1 + r), with its digits kept at p near 1.

    The plain difference of two logs loses them there, and the loss multiplies what is left by T.
    """
    b = torch.sigmoid(-log_r)
    rest = -torch.expm1(log_p)  # 1 − p
    near = torch.log1p(-rest * torch.sigmoid(log_r))
    far = torch.logaddexp(log_p, torch.log(rest * b))
    return torch.where(log_p > -0.7, near, far)
