"""The negative ELBO, reference implementation: whole, per position, from dense logits."""

from __future__ import annotations

import torch
from torch import Tensor

from scdd.core import CLEAN
from scdd.ops.elbo.reference import loss
from scdd.ops.head.reference import forbid_mask
from scdd.processes.base import Process, Time


def nelbo(process: Process, logits: Tensor, x: Tensor, z_t: Tensor, t: Time, s: Time | None = None) -> Tensor:
    """Per position: KL(q(z_s | z_t, x) ‖ p_θ(z_s | z_t)) of `eq:NELBO`, or without s its rate, `eq:contLoss`.

    Exactly the divergence, constants kept, so 0 at x_θ = x; float64 [B, L] from logits [B, L, V]. The diffusion
    term is the sum over all steps of a grid (or the integral over t); `reconstruction` adds the rest, the prior 0.
    """
    rows, noise = process.elbo_coefficients(x, z_t, t, s), process.noise_scores(logits.device)
    return loss(logits, x, z_t, rows, process.vocab.mask_id, noise)


def reconstruction(process: Process, logits_0: Tensor, x: Tensor, z_0: Tensor, t_0: Time) -> Tensor:
    """−log p_θ(x | z_0) of `eq:NELBO` per position: the last reverse step, from t_0 to the clean data.

    There γ = ρ = 1, so what is not kept is drawn from x_θ: nothing is uniform, nothing is masked.
    """
    x_theta = torch.softmax(forbid_mask(logits_0.to(torch.float64), process.vocab.mask_id), dim=-1)
    p_z = x_theta.gather(-1, z_0[..., None])[..., 0]
    p_x = x_theta.gather(-1, x[..., None])[..., 0]
    move = process.transition(z_0, p_z, CLEAN, t_0)
    return -torch.log(move.keep * (z_0 == x) + move.model * p_x)
