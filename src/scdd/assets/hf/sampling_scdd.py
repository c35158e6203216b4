"""The reverse process, one position at a time: what happens to it between the times t and s < t.

Symbols: x clean token, z_t noisy token, m mask, K ordinary tokens; γ_t = P(z_t ≠ m), ρ_t = P(z_t retains x | z_t ≠ m).
A position keeps its token, takes one from the network's prediction x_θ, takes one of the K at random, or is masked. The
four probabilities are exact (Bayes' rule on the forward kernel with x_θ put for x) and need only x_θ(z_t).
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor


class Levels(NamedTuple):
    """γ, ρ and their complements, which come from closed forms of their own: 1 − ρ would lose digits."""

    gamma: Tensor
    rho: Tensor
    lost: Tensor  # 1 − γ
    noise: Tensor  # 1 − ρ


class Transition(NamedTuple):
    """P(keep z_t), P(draw from x_θ), P(draw uniformly), P(mask)."""

    keep: Tensor
    model: Tensor
    uniform: Tensor
    mask: Tensor

    def to(self, device: torch.device) -> Transition:
        """In float32 on another device."""
        return Transition(*(part.to(device, torch.float32) for part in self))


def levels(schedule: dict[str, Any], t: float) -> Levels:
    """γ_t and ρ_t of a schedule as recipe.yaml describes it."""
    time = torch.tensor(t, dtype=torch.float64)
    kind = schedule.get("kind", "peaked")
    if kind == "peaked":
        return _peaked(schedule, time)
    if kind == "masked":
        shape = "cosine" if schedule.get("shape") == "cosine" else "polynomial"
        parts = {"gamma": {"kind": shape}, "rho": {"kind": "constant"}}
    elif kind == "decoupled":
        parts = {"gamma": {"kind": "polynomial"}, "rho": {"kind": "cosine"}, **schedule}
    else:
        raise ValueError(f"There is no schedule {kind!r}: sample this model with scdd.")
    (gamma, lost), (rho, noise) = (_curve(parts[name], time) for name in ("gamma", "rho"))
    return Levels(gamma, rho, lost, noise)


def _peaked(schedule: dict[str, Any], t: Tensor) -> Levels:
    """Uniform noise with its peak at t_peak: c = B·t^a·(1 − t)^b, γ = (1 + c − t)/(1 + c), ρ = (1 − t)/(1 + c − t)."""
    p_u, exponent, peak = (schedule.get(k, v) for k, v in (("p_u", 0.2), ("exponent", 1.0), ("t_peak", 0.5)))
    a, b = exponent * peak, exponent * (1.0 - peak)
    scale = p_u / (1.0 - p_u) / (peak**a * (1.0 - peak) ** b)
    c = scale * t**a * (1.0 - t) ** b
    gamma, lost = (1.0 - t + c) / (1.0 + c), t / (1.0 + c)
    if scale == 0.0:
        return Levels(gamma, torch.ones_like(t), lost, torch.zeros_like(t))
    ratio = scale * t**a * (1.0 - t) ** (b - 1.0)  # c / (1 − t)
    return Levels(gamma, 1.0 / (1.0 + ratio), lost, 1.0 / (1.0 + 1.0 / ratio))


def _curve(curve: dict[str, Any], t: Tensor) -> tuple[Tensor, Tensor]:
    """(value, 1 − value) of a curve that falls from 1 at t = 0 to `end` at t = 1."""
    if curve["kind"] == "constant":
        return torch.ones_like(t), torch.zeros_like(t)
    drop = 1.0 - curve.get("end", 0.0)
    if curve["kind"] == "cosine":
        lost = torch.sin(0.5 * math.pi * t)
        left = torch.where(t < 0.5, 1.0 - lost, 2.0 * torch.sin(0.25 * math.pi * (1.0 - t)).square())
    else:
        power = curve.get("power", 1.0)
        lost, left = t**power, -torch.expm1(power * torch.log(t))
    return 1.0 - drop + drop * left, drop * lost


CLEAN = Levels(*(torch.tensor(value, dtype=torch.float64) for value in (1.0, 1.0, 0.0, 0.0)))


def transition(kind: str, z_t: Tensor, p_z: Tensor, at: tuple[Levels, Levels], vocab: tuple[int, int]) -> Transition:
    """The step from t to s, `at` = (levels at s, levels at t), from p_z = x_θ(z_t); `vocab` = (ids in all, the mask's)."""
    (size, mask_id), (s, t) = vocab, at
    ordinary, is_mask = size - 1, z_t == mask_id
    (seen, hidden), (kept, noised) = (
        _survival(s.gamma, t.gamma, s.lost, t.lost),
        _survival(s.rho, t.rho, s.noise, t.noise),
    )
    # The forward kernel q(z_t | z_s = v), for each z_t: keep·1[v = z_t] + other·1[v ≠ m] + from_mask·1[v = m].
    if kind == "gidd":
        other = torch.where(is_mask, hidden + seen * noised * s.lost, t.gamma * noised / ordinary)
        keep, from_mask = (seen * kept).expand_as(other), other
    else:  # SCDD; MDLM is the same without noise
        keep = torch.where(is_mask, 0.0, seen * kept)
        other = torch.where(is_mask, hidden, seen * noised / ordinary)
        from_mask = is_mask.to(torch.float64)

    def likelihood(level: Levels) -> Tensor:
        visible = level.gamma * (level.rho * p_z.to(torch.float64) + level.noise / ordinary)
        return torch.where(is_mask, level.lost, visible)

    below = likelihood(t)
    possible = below > 0
    inverse = torch.where(possible, 1.0, 0.0) / torch.where(possible, below, 1.0)
    # A state that x_θ holds impossible is kept if the kernel can keep it, else redrawn.
    stuck = (~possible & (keep > 0)).to(torch.float64)
    redraw = other * s.gamma * inverse
    return Transition(
        keep=keep * likelihood(s) * inverse + stuck,
        model=redraw * s.rho + (~possible).to(torch.float64) - stuck,
        uniform=redraw * s.noise,
        mask=from_mask * s.lost * inverse,
    )


def _survival(value_s: Tensor, value_t: Tensor, lost_s: Tensor, lost_t: Tensor) -> tuple[Tensor, Tensor]:
    """(value_t/value_s, 1 − value_t/value_s), the drop taken where it does not cancel."""
    alive = value_s > 0
    divisor = torch.where(alive, value_s, 1.0)
    drop = torch.where(value_s > 0.5, lost_t - lost_s, value_s - value_t)
    return torch.where(alive, value_t / divisor, 0.0), torch.where(alive, drop / divisor, 1.0)


GRIDS = {
    "uniform": lambda u: 1.0 - u,
    "quadratic": lambda u: (1.0 - u) ** 2,
    "cosine": lambda u: math.cos(0.5 * math.pi * u),
}


def times(kind: str, steps: int) -> list[float]:
    """`steps` + 1 falling times from 1 to 0."""
    return [*(GRIDS[kind](i / steps) for i in range(steps)), 0.0]


def filtered(logits: Tensor, temperature: float, top_p: float, top_k: int | None = None) -> Tensor:
    """x_θ after temperature, top-k and nucleus, [..., V]."""
    if top_k is not None:
        least = logits.topk(min(top_k, logits.shape[-1])).values[..., -1:]
        logits = logits.masked_fill(logits < least, -torch.inf)
    p = (logits / temperature).softmax(-1)
    if top_p < 1.0:
        ranked, order = p.sort(-1, descending=True)
        ranked = torch.where(ranked.cumsum(-1) - ranked < top_p, ranked, 0.0)
        p = torch.zeros_like(p).scatter(-1, order, ranked)
        p = p / p.sum(-1, keepdim=True)
    return p


def start(
    schedule: dict[str, Any], shape: tuple[int, int], vocab: tuple[int, int], generator: torch.Generator
) -> Tensor:
    """z_1: masks, but for the share γ_1 of random tokens that some schedules end with."""
    size, mask_id = vocab
    noise = _ordinary(torch.randint(size - 1, shape, generator=generator, device=generator.device), mask_id)
    visible = torch.rand(shape, generator=generator, device=generator.device) < float(levels(schedule, 1.0).gamma)
    return torch.where(visible, noise, mask_id)


def step(z_t: Tensor, move: Transition, p: Tensor, mask_id: int, generator: torch.Generator) -> Tensor:
    """z_s drawn by `move`, with tokens from p = x_θ [B, L, V] where the model is asked."""
    place = {"generator": generator, "device": z_t.device}
    drawn = torch.multinomial(p.flatten(0, 1), 1, generator=generator).view_as(z_t)
    noise = _ordinary(torch.randint(p.shape[-1] - 1, z_t.shape, **place), mask_id)
    u = torch.rand(z_t.shape, **place)
    masked = u < move.mask
    noised = u < move.mask + move.uniform
    changed = (u < move.mask + move.uniform + move.model) | (move.keep <= 0)
    return torch.where(masked, mask_id, torch.where(noised, noise, torch.where(changed, drawn, z_t)))


def _ordinary(ordinal: Tensor, mask_id: int) -> Tensor:
    """Ids of ordinary tokens by their number: they step over the mask's."""
    return ordinal + (ordinal >= mask_id).to(ordinal.dtype)
