from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats as scipy_stats

from scdd.evals.measure import stats
from scdd.evals.measure.diversity import distinct, diversity, entropy, in_words, repetition
from scdd.evals.report.tables import stars


def test_mean_and_ratio() -> None:
    assert stats.mean([1.0, 2.0, 3.0]).value == 2.0
    assert stats.mean([1.0, 2.0, 3.0]).error == pytest.approx(1 / math.sqrt(3))
    assert math.isnan(stats.mean([1.0]).error)
    # equal weights make a ratio the mean of its parts
    rng = np.random.default_rng(0)
    a = rng.normal(size=40)
    found = stats.ratio(a * 5, [5.0] * 40)
    assert found.value == pytest.approx(stats.mean(a).value)
    assert found.error == pytest.approx(stats.mean(a).error)


def test_the_error_of_a_share() -> None:
    """Usual between the ends; at them, where the spread is 0, and for a single case, no certainty."""
    rights = [1.0] * 3 + [0.0] * 7
    assert stats.share_error(0.3, 10) == pytest.approx(stats.mean(rights).error)
    for n in (2, 10, 200):
        wilson = scipy_stats.binomtest(0, n).proportion_ci(method="wilson")
        expected = (wilson.high - wilson.low) / 2 / 1.96
        assert stats.share_error(0.0, n) == stats.share_error(1.0, n) == pytest.approx(expected, rel=1e-3)
        assert 0 < stats.share_error(0.0, n) < stats.share_error(1 / n, n)
    assert all(math.isnan(stats.share_error(share, 1)) for share in (0.0, 1.0))


def test_the_errors_cover() -> None:
    """Bootstrap intervals and ratio errors hold the truth about as often as they promise."""
    rng = np.random.default_rng(1)
    inside = within = 0
    for trial in range(150):
        k = rng.integers(20, 60, size=60).astype(float)
        a = k * 3.0 + rng.normal(size=60) * np.sqrt(k) * 2
        found = stats.perplexity(a, k, seed=trial)
        inside += found["low"] <= math.exp(3.0) <= found["high"]
        within += abs(math.log(found["ppl"]) - 3.0) < 1.96 * found["error"] / found["ppl"]
    assert 0.88 <= inside / 150 <= 0.99
    assert 0.88 <= within / 150 <= 0.99


def test_tests_agree_with_the_textbook() -> None:
    rng = np.random.default_rng(2)
    a, b = rng.normal(size=30), rng.normal(size=30) + 0.4
    assert stats.paired_t(list(a), list(b)) == pytest.approx(scipy_stats.ttest_rel(a, b).pvalue)
    assert stats.binomial(60, 100) == pytest.approx(scipy_stats.binomtest(60, 100).pvalue)
    assert stats.paired_t([1.0, 2.0], [1.0, 2.0]) == 1.0
    assert stats.paired_t([2.0, 3.0], [1.0, 2.0]) == 0.0
    assert (stars(0.005), stars(0.03), stars(0.2)) == ("**", "*", "")


def test_difference_of_ratios_is_calibrated() -> None:
    """Under equality, p below 0.05 in about one case of twenty."""
    rng = np.random.default_rng(3)
    hits = 0
    for _ in range(400):
        k = [rng.integers(20, 60, size=50).astype(float) for _ in range(2)]
        a = [list(x * 2 + rng.normal(size=50) * 3) for x in k]
        hits += stats.difference((a[0], list(k[0])), (a[1], list(k[1]))) < 0.05
    assert 0.02 < hits / 400 < 0.09


def test_words_are_counted_alike_whatever_the_tokens() -> None:
    found = in_words(["a B c", "A b  b d", "a b"], first=3)
    assert (found["words"], found["texts"]) == (3, 2), "a text of two words is not counted"
    assert found["entropy"]["value"] == pytest.approx((math.log(3) + math.log(3) - 2 / 3 * math.log(2)) / 2)
    assert found["distinct_2"]["value"] == 1.0
    assert in_words(["a b"], first=3) == {"words": 3, "texts": 0}


def test_entropy_and_repetition() -> None:
    assert entropy([7] * 10) == 0.0
    assert entropy(list(range(8))) == pytest.approx(math.log(8))
    assert entropy([]) == 0.0
    assert distinct([1, 2, 1, 2, 1], 2) == 0.5
    assert distinct([1], 2) == 1.0
    assert repetition([1, 2, 1, 2]) == 0.5
    assert repetition([1, 2, 3, 1], window=2) == 0.0, "what is far away does not count"
    assert repetition([1, 2, 3, 1], window=3) == 0.25
    found = diversity([[1, 1, 1], [1, 2, 3]])
    assert found["entropy"]["value"] == pytest.approx(math.log(3) / 2)
    assert found["entropy_low"] == 0.0
