"""Tests over seeds against enumeration, scipy and simulation."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest

from scdd.evals.measure.seeds import Difference, holm, paired, permutation, sign_flips, welch

scipy_stats = pytest.importorskip("scipy.stats")
RNG = np.random.default_rng(0)
GROUPS = [
    (RNG.normal(0.3, 1.0, n).tolist(), RNG.normal(0.0, 2.0, m).tolist()) for n, m in ((2, 2), (3, 3), (3, 5), (4, 2))
]


@pytest.mark.parametrize(("a", "b"), GROUPS)
def test_welch_is_scipys(a: list[float], b: list[float]) -> None:
    found = welch(a, b)
    for side, p in (("less", found.p_below()), ("greater", found.p_above())):
        assert p == pytest.approx(scipy_stats.ttest_ind(a, b, equal_var=False, alternative=side).pvalue, rel=1e-12)
    shifted = scipy_stats.ttest_ind([x - 0.7 for x in a], b, equal_var=False, alternative="less").pvalue
    assert found.p_below(0.7) == pytest.approx(shifted, rel=1e-9)
    low, high = scipy_stats.ttest_ind(a, b, equal_var=False).confidence_interval()
    assert found.half_width() == pytest.approx((high - low) / 2, rel=1e-9)


@pytest.mark.parametrize("n", [2, 3, 6])
def test_paired_is_scipys(n: int) -> None:
    a, b = RNG.normal(0.3, 1.0, n).tolist(), RNG.normal(0.0, 1.0, n).tolist()
    for side, p in (("less", paired(a, b).p_below()), ("greater", paired(a, b).p_above())):
        assert p == pytest.approx(scipy_stats.ttest_rel(a, b, alternative=side).pvalue, rel=1e-12)


@pytest.mark.parametrize(("a", "b"), GROUPS)
def test_permutations_are_all_counted(a: list[float], b: list[float]) -> None:
    """Every way to hand out the names, written out by places; and scipy's own enumeration."""
    pooled, seen = np.array([*a, *b]), abs(np.mean(a) - np.mean(b))
    as_far = []
    for places in combinations(range(len(pooled)), len(a)):
        chosen = np.zeros(len(pooled), dtype=bool)
        chosen[list(places)] = True
        as_far.append(abs(pooled[chosen].mean() - pooled[~chosen].mean()) >= seen - 1e-9)
    assert permutation(a, b) == pytest.approx(np.mean(as_far))
    if len(a) == len(b):  # elsewhere scipy doubles one side, which is another two-sided test
        theirs = scipy_stats.permutation_test((a, b), lambda x, y: np.mean(x) - np.mean(y), n_resamples=np.inf)
        assert permutation(a, b) == pytest.approx(theirs.pvalue)


def test_signs_are_all_counted() -> None:
    for n in (2, 3, 5):
        d = RNG.normal(0.5, 1.0, n)
        theirs = scipy_stats.permutation_test(
            (d, np.zeros(n)), lambda x, y: np.mean(x - y), permutation_type="samples", n_resamples=np.inf
        )
        assert sign_flips(d.tolist(), [0.0] * n) == pytest.approx(theirs.pvalue)
    assert sign_flips([1, 2, 3], [0, 0, 0]) == 0.25, "three seeds cannot do better"
    assert permutation([1, 2, 3], [4, 5, 6]) == 0.1


def test_ties_are_as_far() -> None:
    assert permutation([0.1 + 0.2, 0.3], [0.3, 0.3]) == 1.0
    assert sign_flips([0.3, 0.3], [0.1 + 0.2, 0.3]) == 1.0


def test_holm_is_the_closure_of_bonferroni() -> None:
    """A claim is rejected if every set of claims that it is in is, by the smallest p times the set's size."""
    for _ in range(20):
        ps = RNG.uniform(0, 0.2, 5).tolist()
        for i, adjusted in enumerate(holm(ps)):
            sets = [s for size in range(1, 6) for s in combinations(range(5), size) if i in s]
            assert adjusted == pytest.approx(min(1.0, max(min(1.0, len(s) * min(ps[j] for j in s)) for s in sets)))
    known = holm([0.01, math.nan, 0.03])
    assert known[0] == pytest.approx(0.02)
    assert math.isnan(known[1])
    assert known[2] == pytest.approx(0.03)
    assert holm([]) == []


@pytest.mark.parametrize(("n", "alpha"), [(2, 0.05), (3, 0.05), (3, 0.005)])
def test_power_by_simulation(n: int, alpha: float) -> None:
    """At the difference that is said to be found four times in five, the paired test finds it four times in five."""
    rng = np.random.default_rng(1)
    needed = Difference(0.0, math.sqrt(1 / n), n - 1).detectable(alpha)
    d = rng.normal(needed, 1.0, (100_000, n))
    t = d.mean(1) / (d.std(1, ddof=1) / math.sqrt(n))
    found = np.abs(t) > scipy_stats.t.ppf(1 - alpha / 2, n - 1)
    assert found.mean() == pytest.approx(0.8, abs=0.006)


def test_no_spread_is_no_test() -> None:
    same = 0.1 + 0.2
    for found in (
        welch([same, 0.3], [0.5, 0.5]),
        paired([same, 0.3], [0.5, 0.5]),
        welch([1.0], [2.0, 3.0]),
        paired([1.0], [2.0]),
    ):
        assert math.isnan(found.p_below())
        assert math.isnan(found.p_above())
        assert math.isnan(found.half_width())
        assert math.isnan(found.detectable())
    assert paired([1.0], [2.0]).value == -1.0
