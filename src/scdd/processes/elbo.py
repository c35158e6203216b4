"""The ELBO as coefficients: any process's loss is a closed form of log x_θ(x), log x_θ(z_t) and S (`core.ElboCoefficients`).

Functions of tensors alone: a process hands over its levels, its kernel's row and how z_t relates to x (`Relation`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from scdd.core import ElboCoefficients, Kernel, Levels

MASKED, NOISED, MOST = 2.0, 1.0, 2.0  # bounded weights on masked and on noised tokens, and their cap


class Relation(NamedTuple):
    """How each z_t relates to its x, among K ordinary tokens."""

    same: Tensor  # z_t = x
    visible: Tensor  # z_t ≠ m
    inverse: Tensor  # 1/q_t(z_t | x), 0 for a z_t that x cannot have become
    K: int
    weight_x: Tensor | float = 1.0  # K·π(x), which is 1 for uniform noise
    weight_z: Tensor | float = 1.0  # K·π(z_t)
    bump: tuple[float, float] | None = None  # B and the exponent of `eq:gidd-noise`, where the schedule has them


def discrete_coefficients(row: Kernel, at_s: Levels, at_t: Levels, relation: Relation) -> ElboCoefficients:
    """KL(q(z_s | z_t, x) ‖ p_θ(z_s | z_t)), the summand of `eq:NELBO`, from the kernel's row.

    The true posterior q(v) takes three values: at v = x, at v = z_t ≠ x, and q_o anywhere else. With the floor
    β = γ_s(1 − ρ_s)/K and signal α = γ_s·ρ_s of q_s, log q_s(v | x_θ) is log β + D(x_θ(v)), and every log β cancels.
    Noise other than uniform has a floor β·K·π(v) of its own at each v, which `core.ElboCoefficients` accounts for.
    The cross-entropies `eq:loss_zt` (`eq:loss_v`, `eq:loss_m`) are this less a constant of the data.
    """
    same, visible, inverse, K = relation[:4]
    alpha, beta = at_s.gamma * at_s.rho, at_s.gamma * at_s.one_minus_rho / K
    stay = row.keep * inverse
    enter = row.other * inverse
    return ElboCoefficients(
        log_r=_log_signal(at_s, K),
        log_r_t=_log_signal(at_t, K),
        w_x=(enter + torch.where(same, stay, 0.0)) * (alpha + beta * relation.weight_x),
        w_z=torch.where(visible & ~same, stay * beta * relation.weight_z, 0.0),
        w_o=enter * beta,
        w_t=(visible & (inverse > 0)).to(torch.float64),
        w_e=torch.zeros_like(inverse),
    )


def divergence_coefficients(at: Levels, relation: Relation, weights: tuple[Tensor, Tensor]) -> ElboCoefficients:
    """w_kl·KL(f_t(·|x) ‖ f_t(·|x_θ)) + w_is·IS(q_t(z_t|x) ‖ q_t(z_t|x_θ)), f_t = ρ_t·x + (1 − ρ_t)·u.

    `eq:contLoss` (`eq:loss_continuous`, which drop constants) and `eq:gidd-loss` are both of this form; IS is the
    Itakura–Saito divergence, 0 at masked positions. `weights` are (w_kl, w_is).
    """
    w_kl, w_is = weights
    log_r = _log_signal(at, relation.K)
    floor = at.one_minus_rho / relation.K
    w_is = torch.where(relation.visible & (relation.inverse > 0), w_is, 0.0)
    return ElboCoefficients(
        log_r,
        log_r,
        w_x=w_kl * (at.rho + floor * relation.weight_x),
        w_z=torch.zeros_like(w_kl),
        w_o=w_kl * floor,
        w_t=w_is,
        w_e=w_is,
    )


Weights = Callable[[Kernel, Levels, Relation], tuple[Tensor, Tensor]]
"""(w_kl, w_is) of `divergence_coefficients`, from a process's rates."""


def continuous_weights(rates: Kernel, at: Levels, relation: Relation) -> tuple[Tensor, Tensor]:
    """The weights that make `divergence_coefficients` the continuous-time ELBO, from rates alone (`eq:gidd-weight`)."""
    flow, share = _flow(rates, at)
    return flow * relation.inverse * share, flow * relation.inverse


def gidd_plus_weights(rates: Kernel, at: Levels, relation: Relation) -> tuple[Tensor, Tensor]:
    """GIDD+ as published: bounded weights on KL(q_t(·|x) ‖ q_t(·|x_θ)) + IS, where the KL over all V ids is γ_t·KL(f_t)."""
    weight = _bounded(at, relation)
    return weight * at.gamma, weight


def scdd_plus_weights(rates: Kernel, at: Levels, relation: Relation) -> tuple[Tensor, Tensor]:
    """The same bounded weights on SCDD's own divergence, KL(f_t) + IS: 1/γ_t times GIDD+'s at a mask."""
    weight = _bounded(at, relation)
    return weight, weight


def dynamic_weights(rates: Kernel, at: Levels, relation: Relation) -> tuple[Tensor, Tensor]:
    """The bounded weights on the divergence that each process has by itself: gidd+ for GIDD, scdd+ for SCDD and MDLM."""
    weight, (_, share) = _bounded(at, relation), _flow(rates, at)
    return weight * share, weight


def gidd_code_weights(rates: Kernel, at: Levels, relation: Relation) -> tuple[Tensor, Tensor]:
    """GIDD+ as its code has it: sigmoid(−t) stands for the log-SNR, and V for K, in the weight of clean tokens.

    So that one is (B/V)·exp(exponent/2·sigmoid(−t)), nearly constant, at most 2; masks have 2 and noise 1, as published.
    The time is read off the levels, where it is the share of masks in what is not noise.
    """
    assert relation.bump is not None, "`DiffusionObjective` refuses such a schedule"
    scale, exponent = relation.bump
    t = at.one_minus_gamma / (at.one_minus_gamma + at.gamma * at.rho)
    clean = (scale / (relation.K + 1) * torch.exp(0.5 * exponent * torch.sigmoid(-t))).clamp(max=MOST)
    weight = torch.where(relation.same, clean, torch.where(relation.visible, NOISED, MASKED))
    return weight * at.gamma, weight


WEIGHTS: dict[str, Weights] = {
    "elbo": continuous_weights,
    "dynamic": dynamic_weights,
    "gidd+": gidd_plus_weights,
    "gidd+code": gidd_code_weights,
    "scdd+": scdd_plus_weights,
}
"""By name, and defined for every process: two of one schedule have the same loss under "gidd+", "gidd+code" and "scdd+"."""


def _bounded(at: Levels, relation: Relation) -> Tensor:
    """2 on masked tokens, 1 on noised ones, and on clean ones what the ELBO gives beside a noised one, at most 2.

    That last ratio is (1 − ρ_t)·π(x)/ρ_t, with uniform noise about B/K for `eq:gidd-noise`.
    """
    clean = (at.one_minus_rho / (relation.K * at.rho) * relation.weight_x).clamp(max=MOST)
    return torch.where(relation.same, clean, torch.where(relation.visible, NOISED, MASKED))


def _log_signal(at: Levels, K: int) -> Tensor:
    """log r = log(ρ·K/(1 − ρ)), the signal over the floor; +∞ without uniform noise, −∞ without signal."""
    return torch.log(at.rho) - torch.log(at.one_minus_rho / K)


def _flow(rates: Kernel, at: Levels) -> tuple[Tensor, Tensor]:
    """(Rate into z_t from elsewhere times where it comes from, its share from ordinary tokens)."""
    ordinary = rates.other * at.gamma
    flow = ordinary + rates.from_mask * at.one_minus_gamma
    return flow, torch.where(flow > 0, ordinary / torch.where(flow > 0, flow, 1.0), 1.0)
