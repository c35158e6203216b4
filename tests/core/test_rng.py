"""Keyed numbers: the same alone or in company, uniform, and unrelated across samples, calls, places and seeds."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from scdd.core import UserError
from scdd.core.rng import CounterRNG, first_uniform, integers, uniforms

from ..laws import moderate


def calls(source: CounterRNG, shape: tuple[int, ...], n: int = 3) -> torch.Tensor:
    return torch.stack([uniforms(shape, source) for _ in range(n)])


@moderate
@given(
    seed=st.integers(-(2**63), 2**64 - 1), samples=st.lists(st.integers(0, 10**9), min_size=1, max_size=9, unique=True)
)
def test_alone_or_in_a_batch(seed: int, samples: list[int]) -> None:
    together = calls(CounterRNG(seed, samples), (len(samples), 4))
    for row, sample in enumerate(samples):
        assert torch.equal(calls(CounterRNG(seed, [sample]), (1, 4))[:, 0], together[:, row])
    cut = len(samples) // 2
    groups = [calls(CounterRNG(seed, group), (len(group), 4)) for group in (samples[:cut], samples[cut:])]
    assert torch.equal(torch.cat(groups, 1), together)


def test_a_longer_row_begins_as_a_shorter_one() -> None:
    assert torch.equal(uniforms((3, 8), CounterRNG(1, range(3)))[:, :5], uniforms((3, 5), CounterRNG(1, range(3))))


def splitmix(value: int) -> int:
    """One step of splitmix64 in Python's whole numbers, so that no wrapping can hide a mistake."""
    top = (1 << 64) - 1
    value = (value + 0x9E3779B97F4A7C15) & top
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & top
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & top
    return value ^ (value >> 31)


def test_numbers_are_the_documented_hash() -> None:
    """Pinned, so that no release changes anybody's samples unawares; call after call, the counter wraps."""
    source = CounterRNG(42, [0, 5])
    for call in range(1, 5):
        got = source.bits((2, 3))
        for row, sample in enumerate([0, 5]):
            key = splitmix(splitmix(42) ^ sample)
            stream = splitmix((key + 0x9E3779B97F4A7C15 * call) % (1 << 64))
            for place in range(3):
                assert got[row, place].item() % (1 << 64) == splitmix(stream ^ splitmix(place))


def test_uniform_on_the_unit_interval() -> None:
    numbers = uniforms((50, 2000), CounterRNG(3, range(50)))
    assert numbers.dtype == torch.float64
    assert numbers.min() >= 0
    assert numbers.max() < 1
    assert stats.kstest(numbers.flatten().numpy(), "uniform").pvalue > 1e-4
    assert numbers.unique().numel() == numbers.numel(), "53 bits do not repeat in 100,000 draws"


@pytest.mark.parametrize("bit", [0, 1, 20, 52])
def test_bits_are_fair(bit: int) -> None:
    whole = (uniforms((50, 2000), CounterRNG(4, range(50))) * 2**53).to(torch.int64)
    ones = int(((whole >> bit) & 1).sum())
    assert stats.binomtest(ones, whole.numel()).pvalue > 1e-4


def correlation(a: torch.Tensor, b: torch.Tensor) -> float:
    return float(stats.pearsonr(a.flatten().numpy(), b.flatten().numpy()).pvalue)


def test_unrelated_across_calls_samples_places_and_seeds() -> None:
    source = CounterRNG(7, range(200))
    first, second = uniforms((200, 200), source), uniforms((200, 200), source)
    other = uniforms((200, 200), CounterRNG(8, range(200)))
    pairs = {
        "calls": (first, second),
        "seeds": (first, other),
        "samples": (first[:-1], first[1:]),
        "places": (first[:, :-1], first[:, 1:]),
        "call and place": (first[:, 1:], second[:, :-1]),
        "seed and sample": (first[:-1], other[1:]),
    }
    for name, (a, b) in pairs.items():
        assert correlation(a, b) > 1e-4, name
        assert not (a == b).any(), name


def test_integers_are_uniform() -> None:
    for source in (CounterRNG(1, range(100)), torch.Generator().manual_seed(0)):
        drawn = integers(7, (100, 700), source)
        assert drawn.dtype == torch.int64
        assert stats.chisquare(torch.bincount(drawn.flatten(), minlength=7).numpy()).pvalue > 1e-4
        assert set(drawn.unique().tolist()) == set(range(7))


def test_wrong_number_of_samples() -> None:
    with pytest.raises(ValueError, match="3 samples cannot give numbers of shape"):
        CounterRNG(0, range(3)).bits((4, 2))


def test_a_generator_gives_float64_and_repeats() -> None:
    one, two = (uniforms((4, 5), torch.Generator().manual_seed(9)) for _ in range(2))
    assert one.dtype == torch.float64
    assert torch.equal(one, two)
    assert ((one * 2**53) % 2**29 != 0).any(), "more digits than float32 has"


def test_no_global_state_is_touched_by_keys() -> None:
    before = torch.random.get_rng_state()
    uniforms((2, 3), CounterRNG(0, range(2)))
    integers(5, (2, 3), CounterRNG(0, range(2)))
    assert torch.equal(before, torch.random.get_rng_state())


def test_the_host_makes_the_same_first_number() -> None:
    for seed, sample in itertools.product((0, 1, 2**63 - 1, 2**63, 2**64 - 1), (0, 7, 2**40)):
        assert first_uniform(seed, sample) == uniforms((1,), CounterRNG(seed, [sample])).item()


def test_numbers_and_tensors_name_the_same_samples() -> None:
    """The one are hashed on the host, the others where they are."""
    samples = [9, 1, 2**40, 3, 0]
    for seed in (0, -3, 2**63 + 7, [1, 2, 2**63 + 7, -4, 0]):
        assert torch.equal(CounterRNG(seed, samples).keys, CounterRNG(seed, torch.tensor(samples)).keys)


@pytest.mark.parametrize("seed", [1 << 64, -(1 << 63) - 1, 10**30])
def test_seeds_that_would_draw_what_another_draws_are_refused(seed: int) -> None:
    with pytest.raises(UserError, match=r"seed is .* 64 bits"):
        CounterRNG(seed, [0])
    for largest in ((1 << 64) - 1, -(1 << 63)):
        CounterRNG(largest, [0])
