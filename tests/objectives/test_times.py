"""Time samplers: E[weight · loss] is the whole sum or integral, whatever the density, the ranks and the micro-batches."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from scdd.core import UserError, Vocab
from scdd.objectives.base import BatchSlice
from scdd.objectives.options import ElboOptions
from scdd.objectives.times import Adaptive, Density, LowDiscrepancy, Power, Times, TimeSampler, Uniform, nelbo_densities
from scdd.processes.scdd import SCDD
from scdd.schedules.base import Schedule
from scdd.schedules.masked import Masked
from scdd.schedules.peaked import Peaked

ROWS = 1 << 15


def learnt() -> Adaptive:
    """A density that has seen a loss of its own shape, so that its cells differ."""
    density = Adaptive()
    sampler = TimeSampler(density)
    for step in range(40):
        times = sampler.draw(BatchSlice(5, step, 0, 256, 256))
        sampler.density.observe(times, 1 / (times.t + 0.01) + 3 * (times.t > 0.7))
        sampler.density.update(lambda tensor: None)
    return density


DENSITIES = {"uniform": LowDiscrepancy, "square": lambda: Power(2.0), "late": lambda: Power(0.8), "adaptive": learnt}


def sampler(density: Density, steps: int | None, stratified: bool) -> TimeSampler:
    """Whether draws are spread evenly is the density's own business, but any of them must do with either."""
    density.spread_evenly = stratified  # type: ignore[misc]
    return TimeSampler(density, steps)


@pytest.mark.parametrize("stratified", [True, False])
@pytest.mark.parametrize("steps", [None, 7, 1000])
@pytest.mark.parametrize("name", DENSITIES)
def test_the_weighted_mean_is_the_whole_sum(name: str, steps: int | None, stratified: bool) -> None:
    times = sampler(DENSITIES[name](), steps, stratified).draw(BatchSlice(0, 3, 0, ROWS, ROWS))
    for power in (0.0, 1.0, 3.0):
        values = times.weight * times.t**power
        if steps is None:
            truth = 1 / (power + 1)
        else:
            truth = float((torch.arange(1, steps + 1, dtype=torch.float64) / steps).pow(power).sum())
        error = float(values.std()) / ROWS**0.5
        # A stratified mean of a smooth function is far closer than its naive error says.
        allowed = (0.2 if stratified else 4.0) * error + 1e-3 * truth * (steps is not None) + 1e-9
        assert abs(float(values.mean()) - truth) < allowed, (power, float(values.mean()), truth, error)


@pytest.mark.parametrize("name", DENSITIES)
def test_on_the_grid_weights_are_inverse_probabilities_of_all_steps(name: str) -> None:
    density, steps = DENSITIES[name](), 100
    edges = torch.arange(steps + 1, dtype=torch.float64) / steps
    probability = density.cumulative(edges).diff()
    assert probability.sum().item() == pytest.approx(1.0)
    assert (probability > 0).all()
    times = TimeSampler(density, steps).draw(BatchSlice(0, 0, 0, 1 << 14, 1 << 14))
    index = (times.t * steps).round().long()
    assert times.s is not None
    assert torch.equal((times.s * steps).round().long(), index - 1)
    assert set(index.tolist()) == set(range(1, steps + 1)), "every step i = 1 … T must be drawn"
    torch.testing.assert_close(times.weight, 1 / probability[index - 1])


def test_the_paper_s_grid_is_uniform_with_weight_T() -> None:
    times = TimeSampler(Uniform(), 1000).draw(BatchSlice(1, 0, 0, 1 << 16, 1 << 16))
    torch.testing.assert_close(times.weight, torch.full_like(times.weight, 1000.0))
    counts = torch.bincount((times.t * 1000).round().long(), minlength=1001)[1:].double()
    expected = len(times.t) / 1000
    assert ((counts - expected).square() / expected).sum() < 1000 + 5 * (2 * 1000) ** 0.5  # chi-squared


@pytest.mark.parametrize("name", DENSITIES)
def test_quantile_and_cumulative_are_inverse_and_the_density_is_the_slope(name: str) -> None:
    density: Density = DENSITIES[name]()
    u = torch.linspace(0, 1, 1001, dtype=torch.float64)
    torch.testing.assert_close(density.cumulative(density.quantile(u)), u, atol=1e-12, rtol=0)
    middle = torch.rand(500, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * 0.9 + 0.05
    rise = (density.cumulative(middle + 1e-7) - density.cumulative(middle - 1e-7)) / 2e-7
    near = (rise * density.importance_weight(middle) - 1).abs()
    assert (near < 1e-5).float().mean() > 0.99  # a cell's edge may lie between


@pytest.mark.parametrize("stratified", [True, False])
def test_ranks_and_micro_batches_take_slices_of_one_draw(stratified: bool) -> None:
    times = sampler(Power(2.0), 1000, stratified)
    whole = BatchSlice(9, 17, 0, 24, 24)
    together = times.draw(whole)
    apart = [times.draw(whole.cut(first, count)) for first, count in ((0, 12), (12, 6), (18, 6))]
    for field in range(3):
        torch.testing.assert_close(torch.cat([part[field] for part in apart]), together[field])
    assert not torch.equal(times.draw(BatchSlice(9, 18, 0, 24, 24)).t, together.t)
    assert not torch.equal(times.draw(BatchSlice(8, 17, 0, 24, 24)).t, together.t)


def test_low_discrepancy_fills_every_stratum_also_within_a_slice() -> None:
    part = BatchSlice(0, 5, 0, 64, 64)
    t = TimeSampler().draw(part).t
    assert sorted((t * 64).floor().long().tolist()) == list(range(64))
    quarter = TimeSampler().draw(part.cut(0, 16)).t
    gaps = torch.cat((quarter.sort().values, torch.ones(1))).diff()
    assert gaps.max() < 3 / 16, "a rank's share must be spread evenly too"


def test_density_proportional_to_the_root_of_second_moments_has_the_least_variance() -> None:
    """A loss like SCDD's, ∝ 1/√t: uniform has infinite variance, t = u² almost none; adaptive finds that by itself."""
    loss = lambda times: times.t.rsqrt()  # noqa: E731
    adaptive = Adaptive(power=1.3)
    learning = TimeSampler(adaptive)
    for step in range(300):
        times = learning.draw(BatchSlice(0, step, 0, 256, 256))
        adaptive.observe(times, loss(times))
        adaptive.update(lambda tensor: None)
    spread = {}
    for name, density in {"uniform": Uniform(), "square": Power(2.0), "adaptive": adaptive}.items():
        times = sampler(density, None, stratified=False).draw(BatchSlice(1, 0, 0, ROWS, ROWS))
        values = times.weight * loss(times)
        assert values.mean().item() == pytest.approx(2.0, rel=0.1), name
        spread[name] = values.std().item()
    assert spread["square"] < 1e-9
    assert spread["adaptive"] < 0.25 * spread["uniform"]


def test_adaptive_weights_stay_bounded_whatever_was_seen() -> None:
    density = Adaptive(floor=0.1)
    density.observe(Times(torch.tensor([0.5]), None, torch.ones(1)), torch.tensor([1e12]))
    density.update(lambda tensor: None)
    t = torch.linspace(1e-6, 1, 1000, dtype=torch.float64)
    assert (density.importance_weight(t) <= Power(2.0).importance_weight(t) / 0.1 * (1 + 1e-9)).all()
    density.observe(Times(torch.tensor([0.5]), None, torch.ones(1)), torch.tensor([torch.inf]))
    density.update(lambda tensor: None)
    assert torch.isfinite(density.importance_weight(t)).all()


def test_adaptive_is_the_same_on_any_number_of_ranks_and_after_resuming() -> None:
    part = BatchSlice(3, 0, 0, 64, 64)

    def seen(*parts: BatchSlice) -> list[Tensor]:
        """Each rank's observations of its slice."""
        found = []
        for each in parts:
            rank = Adaptive()
            sampler = TimeSampler(rank)
            times = sampler.draw(each)
            sampler.density.observe(times, times.t.rsqrt())
            rank.update(lambda tensor: found.append(tensor.clone()))
        return found

    one, two = seen(part), seen(part.cut(0, 32), part.cut(32, 32))
    torch.testing.assert_close(one[0], two[0] + two[1])
    first, second = Adaptive(), Adaptive()
    first.observe(TimeSampler(first).draw(part), torch.rand(64))
    first.update(lambda tensor: None)
    second.load_state_dict(first.state_dict())
    u = torch.linspace(0, 1, 100, dtype=torch.float64)
    assert torch.equal(first.quantile(u), second.quantile(u))
    with pytest.raises(UserError, match="other cells"):
        Adaptive(bins=8).load_state_dict(first.state_dict())


def test_mistakes_are_refused() -> None:
    with pytest.raises(UserError, match="power"):
        Power(0.0)
    with pytest.raises(UserError, match="steps"):
        ElboOptions(steps=0)
    with pytest.raises(UserError, match="weighting dynamic"):
        ElboOptions(weighting="dynamic")


@pytest.mark.parametrize(
    ("schedule", "alone", "mixture"),
    [(Masked(), 1.0, (1.0, 2.0)), (Peaked(0.2), 2.0, (2.0, 4.0)), (Peaked(0.2, 1.6, 0.625), 2.0, (1.0, 2.0))],
)
def test_the_bound_is_looked_at_where_its_variance_is_bounded(
    schedule: Schedule, alone: float, mixture: tuple[float, float]
) -> None:
    densities = nelbo_densities(SCDD(Vocab(9, 8), schedule))
    assert densities.alone.power == pytest.approx(alone)
    assert [law.power for law in densities.mixture] == pytest.approx(list(mixture))
