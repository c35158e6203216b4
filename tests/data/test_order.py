from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scdd.data.loader import Permutation


@given(n=st.integers(1, 3000), seed=st.integers(0, 2**63), epoch=st.integers(0, 100))
def test_every_element_comes_once(n: int, seed: int, epoch: int) -> None:
    order = Permutation(n, seed, epoch)(np.arange(n))
    assert sorted(order.tolist()) == list(range(n))


def test_any_place_can_be_asked_for_alone() -> None:
    order = Permutation(1000, 3)
    whole = order(np.arange(1000))
    assert [int(order(np.array([i]))[0]) for i in range(0, 1000, 37)] == whole[::37].tolist()


def test_keys_give_different_orders_and_neighbours_part() -> None:
    first, second = Permutation(10_000, 1, 0)(np.arange(10_000)), Permutation(10_000, 1, 1)(np.arange(10_000))
    assert (first == second).mean() < 0.01
    # A shuffle: about one pair of neighbours in n/2 stays together, and places and elements do not correlate.
    assert (np.abs(np.diff(first)) == 1).mean() < 0.01
    assert abs(np.corrcoef(np.arange(10_000), first)[0, 1]) < 0.05


def test_all_orders_of_three_are_about_as_frequent() -> None:
    counts: dict[tuple[int, ...], int] = {}
    for seed in range(6000):
        order = tuple(Permutation(3, seed)(np.arange(3)).tolist())
        counts[order] = counts.get(order, 0) + 1
    assert len(counts) == 6
    assert all(850 < count < 1150 for count in counts.values())


def test_the_order_is_fixed_for_good() -> None:
    """Runs must resume with later versions: this order may never change."""
    assert Permutation(10, 42, 0)(np.arange(10)).tolist() == ORDER_OF_TEN


def test_huge_ranges_need_no_memory() -> None:
    order = Permutation(10**12 + 39, 5)
    found = order(np.array([0, 1, 10**12]))
    assert len(set(found.tolist())) == 3
    assert found.max() < 10**12 + 39


def test_places_outside_are_refused() -> None:
    with pytest.raises(IndexError):
        Permutation(5, 1)(np.array([5]))


ORDER_OF_TEN = [0, 3, 2, 4, 1, 5, 6, 7, 8, 9]
