"""The ELBO as coefficients: any process's loss is a closed form of log x_θ(x), log x_θ(z_t) and S (`core.ElboCoefficients`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from scdd.core import ElboCoefficients, Levels

if TYPE_CHECKING:
    from scdd.processes.base import Process, Time

MASKED, NOISED, MOST = 2.0, 1.0, 2.0  # GIDD+'s weights on masked and on noised tokens, and their cap


def discrete_coefficients(process: Process, x: Tensor, z_t: Tensor, s: Time, t: Time) -> ElboCoefficients:
    """KL(q(z_s | z_t, x) ‖ p_θ(z_s | z_t)), the summand of `eq:NELBO`.

    The true posterior q(v) takes three values: at v = x, at v = z_t ≠ x, and q_o anywhere else. With the floor
    β = γ_s(1 − ρ_s)/K and signal α = γ_s·ρ_s of q_s, log q_s(v | x_θ) is log β + D(x_θ(v)), and every log β cancels.
    The cross-entropies `eq:loss_zt` (`eq:loss_v`, `eq:loss_m`) are this less a constant of the data.
    """
    at_s, at_t = process.levels(s).like(z_t), process.levels(t).like(z_t)
    row = process.kernel(z_t, s, t)
    same, visible, inverse = _relations(process, x, z_t, t)
    alpha, beta = at_s.gamma * at_s.rho, at_s.gamma * at_s.one_minus_rho / process.vocab.K
    stay = row.keep * inverse
    enter = row.other * inverse
    return ElboCoefficients(
        log_r=_log_signal(at_s, process.vocab.K),
        log_r_t=_log_signal(at_t, process.vocab.K),
        w_x=(enter + torch.where(same, stay, 0.0)) * (alpha + beta),
        w_z=torch.where(visible & ~same, stay * beta, 0.0),
        w_o=enter * beta,
        w_t=(visible & (inverse > 0)).to(torch.float64),
        w_e=torch.zeros_like(inverse),
    )


def divergence_coefficients(
    process: Process, x: Tensor, z_t: Tensor, t: Time, w_kl: Tensor, w_is: Tensor
) -> ElboCoefficients:
    """w_kl·KL(f_t(·|x) ‖ f_t(·|x_θ)) + w_is·IS(q_t(z_t|x) ‖ q_t(z_t|x_θ)), f_t = ρ_t·x + (1 − ρ_t)·u.

    `eq:contLoss` (`eq:loss_continuous`, which drop constants) and `eq:gidd-loss` are both of this form; IS is the
    Itakura–Saito divergence, 0 at masked positions.
    """
    at = process.levels(t).like(z_t)
    _, visible, inverse = _relations(process, x, z_t, t)
    log_r = _log_signal(at, process.vocab.K)
    floor = at.one_minus_rho / process.vocab.K
    w_is = torch.where(visible & (inverse > 0), w_is, 0.0)
    return ElboCoefficients(
        log_r,
        log_r,
        w_x=w_kl * (at.rho + floor),
        w_z=torch.zeros_like(w_kl),
        w_o=w_kl * floor,
        w_t=w_is,
        w_e=w_is,
    )


def continuous_weights(process: Process, x: Tensor, z_t: Tensor, t: Time) -> tuple[Tensor, Tensor]:
    """The weights (w_kl, w_is) that make `divergence_coefficients` the continuous-time ELBO, from rates alone (`eq:gidd-weight`)."""
    flow, share = _flow(process, z_t, t)
    _, _, inverse = _relations(process, x, z_t, t)
    return flow * inverse * share, flow * inverse


def dynamic_weights(process: Process, x: Tensor, z_t: Tensor, t: Time) -> tuple[Tensor, Tensor]:
    """GIDD+'s weights: 2 on masked tokens, 1 on noised ones, and on clean ones what the ELBO gives beside a noised one.

    That last ratio is (1 − ρ_t)/(K·ρ_t), about B/K for `eq:gidd-noise`; all is capped at 2.
    """
    at = process.levels(t).like(z_t)
    clean = (at.one_minus_rho / (process.vocab.K * at.rho)).clamp(max=MOST)
    weight = torch.where(z_t == x, clean, torch.where(z_t == process.vocab.mask_id, MASKED, NOISED))
    _, share = _flow(process, z_t, t)
    return weight * share, weight


def _relations(process: Process, x: Tensor, z_t: Tensor, t: Time) -> tuple[Tensor, Tensor, Tensor]:
    """(z_t = x, z_t ≠ m, 1/q_t(z_t | x)), the last 0 for a z_t that x cannot have become."""
    same = z_t == x
    below = process.likelihood(z_t, same.to(torch.float64), t)
    inverse = torch.where(below > 0, 1.0 / torch.where(below > 0, below, 1.0), 0.0)
    return same, z_t != process.vocab.mask_id, inverse


def _log_signal(at: Levels, K: int) -> Tensor:
    """log r = log(ρ·K/(1 − ρ)), the signal over the floor; +∞ without uniform noise, −∞ without signal."""
    return torch.log(at.rho) - torch.log(at.one_minus_rho / K)


def _flow(process: Process, z_t: Tensor, t: Time) -> tuple[Tensor, Tensor]:
    """(Rate into z_t from elsewhere times where it comes from, its share from ordinary tokens)."""
    at = process.levels(t).like(z_t)
    row = process.rates(z_t, t)
    ordinary = row.other * at.gamma
    flow = ordinary + row.from_mask * at.one_minus_gamma
    return flow, torch.where(flow > 0, ordinary / torch.where(flow > 0, flow, 1.0), 1.0)
