"""Tests with training runs as the unit: what a few seeds can decide, and what they cannot.

Two ways to compare. Welch's t-test for systems of different weights: seeds are independent draws, variances may differ. The
paired t-test for two numbers of the same weights. Beside both stands the exact permutation test, which assumes nothing of
the distribution; with three seeds it cannot fall below 0.1 (0.25 paired), two-sided, so it decides nothing by itself.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations, product

import numpy as np

from scdd.evals.measure.stats import scipy_stats

TOLERANCE = 1e-12  # relative: equal values and sums differ by rounding
QUANTILES = 4096


@dataclass(frozen=True)
class Difference:
    """A mean difference of two groups of seeds with its standard error and degrees of freedom; NaN where there is none."""

    value: float
    error: float
    df: float

    def p_below(self, bound: float = 0.0) -> float:
        """One-sided p against the hypothesis that the true difference is `bound` or more: small means it is lower."""
        return self._tail((self.value - bound) / self.error) if self.error > 0 else math.nan

    def p_above(self, bound: float = 0.0) -> float:
        """One-sided p against the hypothesis that the true difference is `bound` or less."""
        return self._tail((bound - self.value) / self.error) if self.error > 0 else math.nan

    def half_width(self, level: float = 0.95) -> float:
        """Half the confidence interval."""
        return float(self.error * scipy_stats().t.ppf(0.5 + level / 2, self.df)) if self.error > 0 else math.nan

    def detectable(self, alpha: float = 0.05, power: float = 0.8) -> float:
        """The true difference that a two-sided test at `alpha` finds with probability `power`, given this error.

        The estimated error is the true one times w = √(χ²/df), so the test finds δ errors where |Z + δ| > t_crit·w; the mean over
        w is taken at evenly spaced quantiles. (scipy's noncentral t is wrong for the large t_crit of few degrees of freedom.)
        """
        if not self.error > 0:
            return math.nan
        stats = scipy_stats()
        levels = (np.arange(QUANTILES) + 0.5) / QUANTILES
        least = stats.t.ppf(1 - alpha / 2, self.df) * np.sqrt(stats.chi2.ppf(levels, self.df) / self.df)

        def found(shift: float) -> float:
            return float((stats.norm.sf(least - shift) + stats.norm.cdf(-least - shift)).mean())

        low, high = 0.0, 1.0
        while found(high) < power:
            low, high = high, 2 * high
        for _ in range(40):
            middle = (low + high) / 2
            low, high = (middle, high) if found(middle) < power else (low, middle)
        return high * self.error

    def _tail(self, t: float) -> float:
        return float(scipy_stats().t.cdf(t, self.df))


def welch(a: Sequence[float], b: Sequence[float]) -> Difference:
    """mean(a) − mean(b) of independent groups, variances unequal (Welch–Satterthwaite degrees of freedom)."""
    x, y = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    value = float(x.mean() - y.mean()) if len(x) and len(y) else math.nan
    if min(len(x), len(y)) < 2:
        return Difference(value, math.nan, math.nan)
    u, v = float(x.var(ddof=1)) / len(x), float(y.var(ddof=1)) / len(y)
    if not math.sqrt(u + v) > TOLERANCE * max(np.abs(x).max(), np.abs(y).max()):
        return Difference(value, 0.0, math.nan)
    df = (u + v) ** 2 / (u**2 / (len(x) - 1) + v**2 / (len(y) - 1))
    return Difference(value, math.sqrt(u + v), df)


def paired(a: Sequence[float], b: Sequence[float]) -> Difference:
    """mean(a − b) of pairs; with a constant for b it is the one-sample test."""
    d = np.asarray(a, dtype=np.float64) - np.asarray(b, dtype=np.float64)
    value = float(d.mean()) if len(d) else math.nan
    if len(d) < 2:
        return Difference(value, math.nan, math.nan)
    error = float(d.std(ddof=1)) / math.sqrt(len(d))
    return Difference(value, error if error > TOLERANCE * np.abs(a).max() else 0.0, len(d) - 1)


def permutation(a: Sequence[float], b: Sequence[float]) -> float:
    """Exact two-sided p that a and b are one population: of all ways to name len(a) of the values a, the share whose means
    differ at least as much."""
    pooled = [*map(float, a), *map(float, b)]
    if not a or not b:
        return math.nan
    total = sum(pooled)

    def apart(chosen: Sequence[float]) -> float:
        return abs(sum(chosen) / len(a) - (total - sum(chosen)) / len(b))

    seen = apart(pooled[: len(a)])
    slack = TOLERANCE * (1 + max(map(abs, pooled)))
    splits = [apart(chosen) >= seen - slack for chosen in combinations(pooled, len(a))]
    return sum(splits) / len(splits)


def sign_flips(a: Sequence[float], b: Sequence[float]) -> float:
    """Exact two-sided p that the pairs' differences are symmetric about 0: over all choices of their signs."""
    d = [x - y for x, y in zip(map(float, a), map(float, b), strict=True)]
    if not d:
        return math.nan
    seen, slack = abs(sum(d)), TOLERANCE * (1 + sum(map(abs, d)))
    flips = [
        abs(sum(s * x for s, x in zip(signs, d, strict=True))) >= seen - slack
        for signs in product((1, -1), repeat=len(d))
    ]
    return sum(flips) / len(flips)


def holm(ps: Sequence[float]) -> list[float]:
    """Holm's adjusted p: the largest of (m − rank)·p so far, at most 1; NaN stays, and does not count."""
    known = sorted((i for i, p in enumerate(ps) if not math.isnan(p)), key=lambda i: ps[i])
    adjusted, worst = [math.nan] * len(ps), 0.0
    for rank, i in enumerate(known):
        worst = max(worst, min(1.0, (len(known) - rank) * ps[i]))
        adjusted[i] = worst
    return adjusted
