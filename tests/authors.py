"""What the code behind the paper does, from its definitions and by brute force: nothing here is shared with the package.

Masses of a token at time t: clean (1 − t)/(1 + c), noise c/(1 + c), mask the rest, c = p_u/(1 − p_u)·2·√(t(1 − t)) at the
paper's exponent 1 and t_peak 0.5. Sampling asks for them at 0.999·t, the loss at t.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
SCALE, END = 0.999, 1e-5


def masses(t: float, p_u: float) -> tuple[float, float, float]:
    """(Clean, noise, mask)."""
    c = p_u / (1 - p_u) * 2 * math.sqrt(t * (1 - t))
    return (1 - t) / (1 + c), c / (1 + c), 1 - (1 - t + c) / (1 + c)


def forward(x_theta: Array, t: float, p_u: float, m: int) -> Array:
    """q_t(· | x_θ) over all V ids."""
    clean, noise, mask = masses(t, p_u)
    out = clean * x_theta + noise / (len(x_theta) - 1)
    out[m] = mask
    return out


def kernel(s: float, t: float, p_u: float, V: int, m: int) -> Array:
    """q(z_t | z_s), entry (z_s, z_t): kept, redrawn among the K, or masked for good."""
    (clean_s, noise_s, _), (clean_t, noise_t, _) = masses(s, p_u), masses(t, p_u)
    seen, kept = (clean_t + noise_t) / (clean_s + noise_s), clean_t / clean_s
    out = np.full((V, V), (seen - kept) / (V - 1)) + kept * np.eye(V)
    out[:, m] = 1 - seen
    out[m] = 0.0
    out[m, m] = 1.0
    return out


def nucleus(p: Array, top_p: float) -> Array:
    """Tokens from the likeliest down while their sum is at most top_p, the first in any case; the rest is cut off."""
    order = sorted(range(len(p)), key=lambda v: -p[v])
    kept, total = np.zeros_like(p), 0.0
    for place, v in enumerate(order):
        total += p[v]
        if place == 0 or total <= top_p:
            kept[v] = p[v]
    return kept / kept.sum()


def step(x_theta: Array, z: int, t: float, dt: float, p_u: float, m: int) -> Array:
    """The law of z_s for one position: Bayes' rule over all v, from a step t → t − dt."""
    late, early = SCALE * t, max(SCALE * (t - dt), 0.0)
    joint = forward(x_theta, early, p_u, m) * kernel(early, late, p_u, len(x_theta), m)[:, z]
    return joint / joint.sum()


def grid(steps: int) -> Array:
    """The times of a walk, steps + 1 of them."""
    return np.linspace(1.0, END, steps + 1)


def recovered(table: Array, z: int, steps: int, top_p: float, p_u: float, m: int) -> Array:
    """The law of a token after recovery, for a network that reads its own position: one step, then an argmax everywhere."""
    before = step(nucleus(table[z], top_p), z, grid(steps)[-2], (1 - END) / steps, p_u, m)
    after = np.zeros_like(before)
    for v, chance in enumerate(before):
        after[int(np.argmax(table[v]))] += chance
    return after


def cross_entropy(x: int, x_theta: Array, z: int, s: float, t: float, p_u: float, m: int) -> float:
    """Their loss at one position, without its T: −Σ_{v≠m} q(v | z, x)·log of the masses that x_θ puts at v, over z's at t.

    It is `eq:loss_zt` but for γ: the equation has shares of what is no mask, ρ and 1 − ρ, and their code masses, γ·ρ and γ·(1 − ρ).
    """
    V = len(x_theta)
    hot = np.eye(V)[x]

    def mixed(p: Array, at: float) -> Array:
        clean, noise, _ = masses(at, p_u)
        return clean * p + noise / (V - 1)

    truth = forward(hot, s, p_u, m) * kernel(s, t, p_u, V, m)[:, z]
    truth /= truth.sum()
    below = 1.0 if z == m else mixed(x_theta, t)[z]
    ordinary = [v for v in range(V) if v != m and truth[v] > 0]
    return -sum(float(truth[v]) * math.log(mixed(x_theta, s)[v] / below) for v in ordinary)


def steps_drawn(T: int = 1000) -> list[tuple[float, float]]:
    """(s, t) of every step that is drawn, all equally often: i = 2 … T for the paper's T, the last one moved off the end."""
    late = [min(i / T, 0.9999) for i in range(2, T + 1)]
    return [(t - 1 / T, t) for t in late]


def perfect(p_u: float, K: int, T: int = 1000) -> float:
    """Nats a token that are reported for a denoiser that knows x: the constants that were dropped, over three kinds of z_t."""
    total = 0.0
    for s, t in steps_drawn(T):
        (cs, us, _), (ct, ut, mt) = masses(s, p_u), masses(t, p_u)
        gs, gt = cs + us, ct + ut
        right, other = math.log(cs + us / K), math.log(us / K)
        kept, moved = ct / cs, (gt / gs - ct / cs) / K
        # from a mask; from x itself; from one of the K − 1 others
        total += mt * -(gs - gt) / (1 - gt) * ((cs + us / K) / gs * right + (K - 1) * us / K / gs * other)
        for here, chance in ((True, ct + ut / K), (False, (K - 1) * ut / K)):
            below = math.log(ct * here + ut / K)
            from_right = (cs + us / K) * (moved + kept * here)
            from_other = us / K * ((K - 1) * moved + kept * (not here))
            mean = (from_right * right + from_other * other) / (from_right + from_other)
            total -= chance * (mean - below)
    return total * T / (T - 1)


def mean_reported(table: Array, xs: Sequence[int], p_u: float, m: int, T: int = 1000) -> float:
    """The mean of what is reported for tokens xs and a network that reads its own position, over times and noise."""
    total = 0.0
    for s, t in steps_drawn(T):
        for x in xs:
            chance = forward(np.eye(len(table))[x], t, p_u, m)
            total += sum(chance[z] * cross_entropy(x, table[z], z, s, t, p_u, m) for z in range(len(table)))
    return total / len(xs) * T / (T - 1)


def mean_reported_masked(x_theta: Array, x: int, T: int = 1000) -> float:
    """The same of their MDLM for one token, given what the network says at a mask: masked at 0.999·t, and what a mask at t may become
    by s weighs it; a visible token costs nothing."""
    total = 0.0
    for s, t in steps_drawn(T):
        total += SCALE * t * (t - s) / t * -math.log(x_theta[x])
    return total * T / (T - 1)
