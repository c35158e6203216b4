"""The paper's equations once more, in numpy, straight from the page: what the code is held to.

Nothing here comes from `scdd`. K ordinary tokens, mask id m, V = K + 1 ids; a time is a pair (γ, ρ), a rate of change
a pair (γ′, ρ′). Matrices have a row for where one comes from and a column for where one goes. All is in extended
precision, so that the page's 1 − ρ and ρ_s − ρ_t may be written as they stand.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

Real = np.longdouble
Array = NDArray[np.longdouble]
Pair = tuple[Real, Real]
TIGHT = 2e-12 if np.finfo(Real).eps < 1e-18 else 1e-8  # some machines have no long double


def unit(token: int, V: int) -> Array:
    return np.eye(V, dtype=Real)[token]


def uniform(V: int, m: int) -> Array:
    return (np.ones(V, dtype=Real) - unit(m, V)) / (V - 1)


def marginal(x: Array, at: Pair, m: int) -> Array:
    """`eq:marginal`, for x one-hot or soft."""
    (gamma, rho), V = at, len(x)
    return gamma * (rho * x + (1 - rho) * uniform(V, m)) + (1 - gamma) * unit(m, V)


def ratios(s: Pair, t: Pair) -> Pair:
    """(γ_{t|s}, ρ_{t|s}), with the convention 0/0 = 0."""
    return (t[0] / s[0] if s[0] else Real(0)), (t[1] / s[1] if s[1] else Real(0))


@cache
def forward(kind: str, V: int, m: int, s: Pair, t: Pair) -> Array:
    """q(z_t | z_s) of `eq:forward` (SCDD), `eq:gidd_forward2` (GIDD) or `eq:mdlm-forward` (MDLM)."""
    K, (gamma, rho) = V - 1, ratios(s, t)
    out = np.zeros((V, V), dtype=Real)
    for z_s in range(V):
        if kind == "GIDD":
            to_mask = (1 - t[0]) - gamma * rho * (1 - s[0])
            out[z_s] = gamma * rho * unit(z_s, V) + t[0] * (1 - rho) * uniform(V, m) + to_mask * unit(m, V)
        elif kind == "MDLM":
            out[z_s] = gamma * unit(z_s, V) + (1 - gamma) * unit(m, V)
        else:
            for z_t in range(V):
                if z_s == m:
                    out[z_s, z_t] = float(z_t == m)
                elif z_t == m:
                    out[z_s, z_t] = 1 - gamma
                else:
                    out[z_s, z_t] = gamma * ((z_s == z_t) * rho + (1 - rho) / K)
    return out


@cache
def rate(kind: str, V: int, m: int, at: Pair, slope: Pair) -> Array:
    """R_t by `eq:forward_rate`, `eq:gidd-rate2` or `eq:mdlm_forward_rate_matrix`, entry (z_s, z_t)."""
    a, b = slope[0] / at[0], slope[1] / at[1]
    out = np.zeros((V, V), dtype=Real)
    for z_s in range(V):
        here = unit(z_s, V)
        if kind == "GIDD":
            mixed = at[0] * b * uniform(V, m) + ((1 - at[0]) * b + a) * unit(m, V)
            out[z_s] = (b + a) * here - mixed
        elif kind == "MDLM":
            out[z_s] = a * (here - unit(m, V))
        elif z_s != m:
            out[z_s] = (a + b) * here - (b * uniform(V, m) + a * unit(m, V))
    return out


def bayes(kind: str, x: Array, z_t: int, s: Pair, t: Pair, m: int) -> Array:
    """q(z_s | z_t, x) ∝ q(z_t | z_s)·q(z_s | x) (`eq:gidd-backward`); x one-hot or soft."""
    joint = forward(kind, len(x), m, s, t)[:, z_t] * marginal(x, s, m)
    return joint / joint.sum()


def backward(x: Array, z_t: int, s: Pair, t: Pair, m: int) -> Array:
    """`eq:backward` / `eq:backwardParam`, SCDD's posterior as printed."""
    V, K = len(x), len(x) - 1
    (gamma_s, rho_s), (gamma_t, rho_t) = s, t
    _, rho = ratios(s, t)
    out = np.zeros(V, dtype=Real)
    for z_s in range(V):
        signal = rho_s * x[z_s] + (1 - rho_s) / K
        if z_t != m:
            if z_s != m:
                out[z_s] = signal / (rho_t * x[z_t] + (1 - rho_t) / K) * (rho * (z_s == z_t) + (1 - rho) / K)
        elif z_s == m:
            out[z_s] = (1 - gamma_s) / (1 - gamma_t)
        else:
            out[z_s] = (gamma_s - gamma_t) / (1 - gamma_t) * signal
    return out


def backward_rate(x: Array, z_t: int, at: Pair, slope: Pair, m: int) -> Array:
    """`eq:backward_rate`, SCDD's reverse generator as printed."""
    V, K = len(x), len(x) - 1
    (gamma, rho), (dgamma, drho) = at, slope
    f = rho * x + (1 - rho) / K
    out = np.zeros(V, dtype=Real)
    for z_s in range(V):
        if z_t != m:
            if z_s == z_t:
                out[z_s] = drho / rho / K * (1 - f[z_t]) / f[z_t]
            elif z_s != m:
                out[z_s] = -drho / rho / K * f[z_s] / f[z_t]
        else:
            out[z_s] = dgamma / (1 - gamma) if z_s == m else -dgamma / (1 - gamma) * f[z_s]
    return out


def kl(q: Array, p: Array) -> Real:
    """Σ q log(q/p), where 0 log 0 = 0."""
    return Real(sum(a * np.log(a / b) for a, b in zip(q, p, strict=True) if a > 0))


def generalised_kl(Q: Array, P: Array, here: int) -> Real:
    """Σ_{v≠here} P − Q + Q log(Q/P): the rate of KL between two jump processes that leave `here` at rates Q and P."""
    pairs = [(a, b) for v, (a, b) in enumerate(zip(Q, P, strict=True)) if v != here]
    return Real(sum(b - a + (a * np.log(a / b) if a > 0 else 0.0) for a, b in pairs))


def cross_entropy(x: int, x_theta: Array, z_t: int, s: Pair, t: Pair, m: int) -> Real:
    """One summand of `eq:loss_zt` (without its T): `eq:loss_v` where z_t is visible, `eq:loss_m` where it is masked."""
    V, K = len(x_theta), len(x_theta) - 1
    (gamma_s, rho_s), (gamma_t, rho_t) = s, t
    _, rho = ratios(s, t)
    hot, total = unit(x, V), Real(0)
    for v in range(V):
        if v == m:
            continue
        true, model = rho_s * hot[v] + (1 - rho_s) / K, rho_s * x_theta[v] + (1 - rho_s) / K
        if z_t != m:
            weight = true / (rho_t * hot[z_t] + (1 - rho_t) / K) * (rho * (v == z_t) + (1 - rho) / K)
            log = np.log(model / (rho_t * x_theta[z_t] + (1 - rho_t) / K)) if weight else 0.0
        else:
            weight = (gamma_s - gamma_t) / (1 - gamma_t) * true
            log = np.log(model) if weight else 0.0
        total -= weight * log
    return total


def continuous(x: int, x_theta: Array, z_t: int, at: Pair, slope: Pair, m: int) -> Real:
    """The bracket of `eq:contLoss` = `eq:loss_continuous`, as printed (so up to a constant in x_θ)."""
    V, K = len(x_theta), len(x_theta) - 1
    (gamma, rho), (dgamma, drho) = at, slope
    true, model = rho * unit(x, V) + (1 - rho) / K, rho * x_theta + (1 - rho) / K
    ordinary = [v for v in range(V) if v != m]
    if z_t == m:
        return Real(sum(dgamma / (1 - gamma) * true[v] * np.log(model[v]) for v in ordinary))
    jumps = sum(true[v] * drho / rho / K / true[z_t] * np.log(model[v] / model[z_t]) for v in ordinary if v != z_t)
    return jumps - drho * (1 / K - x_theta[z_t]) / model[z_t]


class Gidd:
    """GIDD by its own α_t, β_t·π_t and their derivatives, `eq:gidd-noise`, written without γ and ρ."""

    def __init__(self, p_u: float, exponent: float, t_peak: float, V: int, m: int) -> None:
        self.a, self.b = exponent * t_peak, exponent * (1 - t_peak)
        self.B = p_u / (1 - p_u) / (t_peak**self.a * (1 - t_peak) ** self.b)
        self.V, self.u, self.m = V, uniform(V, m), unit(m, V)

    def c(self, t: float) -> tuple[float, float]:
        c = self.B * t**self.a * (1 - t) ** self.b
        return c, (c * (self.a / t - self.b / (1 - t)) if 0 < t < 1 else float("nan"))

    def alpha(self, t: float) -> float:
        return (1 - t) / (1 + self.c(t)[0])

    def mixed(self, t: float) -> Array:
        """β_t·π_t."""
        return (t * self.m + self.c(t)[0] * self.u) / (1 + self.c(t)[0])

    def kernel(self, s: float, t: float) -> Array:
        """`eq:gidd-forward` with `eq:gidd-params`."""
        ratio = self.alpha(t) / self.alpha(s)
        return ratio * np.eye(self.V) + (self.mixed(t) - ratio * self.mixed(s))[None, :]

    def flow(self, t: float) -> Array:
        """β_t·π_t′ − (α_t′/α_t)·π_t."""
        c, dc = self.c(t)
        C, alpha = 1 + c, self.alpha(t)
        dalpha = (-C - (1 - t) * dc) / C**2
        dmixed = ((self.m + dc * self.u) * C - (t * self.m + c * self.u) * dc) / C**2  # (β·π)′
        beta, dbeta = 1 - alpha, -dalpha
        pi = self.mixed(t) / beta
        dpi = (dmixed - dbeta * pi) / beta
        return beta * dpi - dalpha / alpha * pi

    def rate(self, t: float) -> Array:
        """`eq:gidd-rate`."""
        c, dc = self.c(t)
        dlog = -1 / (1 - t) - dc / (1 + c)
        return dlog * np.eye(self.V) + self.flow(t)[None, :]

    def marginal(self, x: Array, t: float) -> Array:
        """`eq:gidd-marginal`."""
        return self.alpha(t) * x + self.mixed(t)

    def loss(self, x: int, x_theta: Array, z: int, t: float) -> float:
        """`eq:gidd-loss` with the weight `eq:gidd-weight`, C left out."""
        q, p = self.marginal(unit(x, self.V), t), self.marginal(x_theta, t)
        ratio = q[z] / p[z]
        return float(self.flow(t)[z] / q[z] * (kl(q, p) + ratio - np.log(ratio) - 1))
