"""Means with errors, confidence intervals and tests: the little statistics that every table here needs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scdd.core.errors import UserError, missing_extra
from scdd.core.stats import ratio_error

Array = NDArray[np.float64]
NORMAL = 1.96  # standard errors to either side of a 95 % interval


class Mean(NamedTuple):
    """A mean, its standard error, and of how many independent values."""

    value: float
    error: float
    units: int


def mean(values: Sequence[float] | Array) -> Mean:
    """The plain mean; its error is unknown (NaN) for a single value."""
    a = np.asarray(values, dtype=np.float64)
    if not len(a):
        return Mean(math.nan, math.nan, 0)
    error = float(a.std(ddof=1) / math.sqrt(len(a))) if len(a) > 1 else math.nan
    return Mean(float(a.mean()), error, len(a))


def share_error(share: float, count: int) -> float:
    """The standard error of a share of `count` independent cases; unknown (NaN) for a single one.

    Where all or none are right the spread is 0 and says nothing: there it is half of the 95 % Wilson interval, over 1.96.
    """
    if count < 2:
        return math.nan
    if 0 < share < 1:
        return math.sqrt(share * (1 - share) / (count - 1))
    return NORMAL / (2 * (count + NORMAL**2))


def ratio(above: Sequence[float] | Array, below: Sequence[float] | Array) -> Mean:
    """Σ above / Σ below over independent units, with the first-order error of a ratio."""
    a, b = np.asarray(above, dtype=np.float64), np.asarray(below, dtype=np.float64)
    total = float(b.sum())
    if not total:
        return Mean(math.nan, math.nan, len(a))
    value = float(a.sum()) / total
    return Mean(value, ratio_error(float(((a - value * b) ** 2).sum()), len(a), total), len(a))


def bootstrap(
    statistic: Callable[[NDArray[np.int64]], float], count: int, seed: int = 0, rounds: int = 1000
) -> tuple[float, float]:
    """The 95 % percentile interval of `statistic`, which is given the indices of the units that were drawn."""
    if count < 2:
        return (math.nan, math.nan)
    rng = np.random.default_rng(seed)
    values = [statistic(rng.integers(count, size=count)) for _ in range(rounds)]
    low, high = np.percentile(values, [2.5, 97.5])
    return float(low), float(high)


def perplexity(nats: Sequence[float] | Array, tokens: Sequence[float] | Array, seed: int = 0) -> dict[str, Any]:
    """exp(Σ nats / Σ tokens) over texts, with error and bootstrap interval."""
    a, k = np.asarray(nats, dtype=np.float64), np.asarray(tokens, dtype=np.float64)
    per_token = ratio(a, k)
    low, high = bootstrap(lambda i: float(a[i].sum() / max(k[i].sum(), 1.0)), len(a), seed)
    ppl = exp(per_token.value)
    return {"ppl": ppl, "error": ppl * per_token.error, "low": exp(low), "high": exp(high), "texts": len(a)}


def exp(nats: float) -> float:
    """e^nats, infinite where a float cannot hold it."""
    return math.exp(nats) if nats < 700 else math.inf


def paired_t(a: Sequence[float], b: Sequence[float]) -> float:
    """p of the two-sided paired t-test that the means are equal; 1 where all differences are 0."""
    d = np.asarray(a, dtype=np.float64) - np.asarray(b, dtype=np.float64)
    if len(d) < 2:
        return math.nan
    if np.ptp(d) == 0:
        return 1.0 if d[0] == 0 else 0.0
    return float(scipy_stats().ttest_1samp(d, 0.0).pvalue)


def binomial(wins: int, count: int) -> float:
    """p of the two-sided test that either side wins as often; ties are to be left out of `count`."""
    return float(scipy_stats().binomtest(wins, count).pvalue) if count else math.nan


def difference(a: tuple[Sequence[float], Sequence[float]], b: tuple[Sequence[float], Sequence[float]]) -> float:
    """p of the two-sided test that two ratios Σnats/Σtokens over independent texts are equal (normal limit)."""
    first, second = ratio(*a), ratio(*b)
    error = math.hypot(first.error, second.error)
    if not error > 0:
        return math.nan if math.isnan(error) else float(first.value == second.value)
    return math.erfc(abs(first.value - second.value) / error / math.sqrt(2))


def scipy_stats() -> Any:
    """scipy.stats, or the sentence that says what to install."""
    try:
        return import_module("scipy.stats")
    except ImportError as error:
        raise UserError(missing_extra("Significance tests need scipy", "eval")) from error
