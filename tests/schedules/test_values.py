"""Values, complements and derivatives of every schedule, against mpmath, and the limits at both ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from mpmath import mp, mpf

from scdd.core import Levels
from scdd.schedules.base import Schedule
from scdd.schedules.curves import Constant, Cosine, Polynomial
from scdd.schedules.decoupled import Decoupled
from scdd.schedules.masked import Masked
from scdd.schedules.peaked import Peaked

from ..laws import SCHEDULES, moderate, peaked, schedules

Exact = Callable[[mpf], mpf]
TIMES = [1e-12, 1e-6, 0.001, 0.1, 0.3, 0.5, 0.75, 0.9, 0.999, 1 - 1e-9]


@pytest.fixture(autouse=True)
def ninety_digits() -> Iterator[None]:
    with mp.workdps(90):
        yield


def at(schedule: Schedule, t: float) -> Levels:
    return schedule.at(torch.tensor(t, dtype=torch.float64))


def noise(p_u: float, exponent: float, t_peak: float) -> Exact:
    """c_t with the t_peak of the paper's ablation."""
    p, a, b = mpf(p_u), mpf(exponent) * mpf(t_peak), mpf(exponent) * (1 - mpf(t_peak))
    top = mpf(t_peak) ** a * (1 - mpf(t_peak)) ** b
    return lambda t: p / (1 - p) * t**a * (1 - t) ** b / top


def check(schedule: Schedule, gamma: Exact, rho: Exact, t: float, tolerance: float) -> None:
    levels, time = at(schedule, t), mpf(t)

    def near(name: str, exact: mpf, tolerance: float) -> None:
        got = mpf(getattr(levels, name).item())
        assert abs(got - exact) <= tolerance * abs(exact), f"{name} at {t}: {got} is not {exact}"

    for name, exact in (("gamma", gamma), ("rho", rho)):
        near(name, exact(time), tolerance)
        near(f"one_minus_{name}", 1 - exact(time), tolerance)
        h = mpf(10) ** -25 * min(time, 1 - time)  # a step that ninety digits bear
        near(f"d{name}", (exact(time + h) - exact(time - h)) / (2 * h), 1e3 * tolerance)


@pytest.mark.parametrize(
    "parameters",
    [
        (0.2, 1.0, 0.5),
        (0.1, 1.0, 0.25),
        (0.1, 1.0, 0.75),
        (0.5, 0.5, 0.1),
        (0.3, 1.9, 0.5),
        (1e-6, 1.0, 0.5),
        (0.0, 1.0, 0.5),
    ],
)
def test_peaked_is_the_papers(parameters: tuple[float, float, float]) -> None:
    """`eq:noise-gidd-ours`: γ = (1 + c − t)/(1 + c), ρ = (1 − t)/(1 + c − t)."""
    c = noise(*parameters)
    for t in TIMES:
        check(Peaked(*parameters), lambda t: (1 + c(t) - t) / (1 + c(t)), lambda t: (1 - t) / (1 + c(t) - t), t, 1e-13)


@pytest.mark.parametrize("p_u", [1e-6, 0.1, 0.2, 0.5, 0.9])
@pytest.mark.parametrize(("exponent", "t_peak"), [(1.0, 0.5), (1.0, 0.25), (1.2, 0.75)])
def test_share_of_uniform_noise_peaks_at_p_u(p_u: float, exponent: float, t_peak: float) -> None:
    """γ(1 − ρ) = c/(1 + c) is largest at t_peak, and is p_u there; at exponent 1 and t_peak ½, B is 2p_u/(1 − p_u)."""
    levels = Peaked(p_u, exponent, t_peak).at(torch.linspace(0, 1, 1001, dtype=torch.float64))
    share = levels.gamma * levels.one_minus_rho
    assert share.max().item() == pytest.approx(p_u, rel=1e-12)
    assert share.argmax().item() == round(1000 * t_peak)


@pytest.mark.parametrize("t", TIMES)
def test_masked_shapes(t: float) -> None:
    """γ = 1 − t under both of its names, and 1 − sin(πt/2); ρ ≡ 1."""
    one: Exact = lambda t: mpf(1)  # noqa: E731
    for shape in ("linear", "log-linear"):
        check(Masked(shape), lambda t: 1 - t, one, t, 1e-13)
    check(Masked("cosine"), lambda t: 1 - mp.sin(mp.pi * t / 2), one, t, 1e-13)


@pytest.mark.parametrize("t", TIMES)
def test_decoupled_takes_each_curve_as_it_is(t: float) -> None:
    check(
        Decoupled(Polynomial(2.5), Polynomial(0.5, end=0.25)),
        lambda t: 1 - t ** mpf(2.5),
        lambda t: 1 - mpf(0.75) * mp.sqrt(t),
        t,
        1e-13,
    )
    check(
        Decoupled(Cosine(end=0.1), Cosine()),
        lambda t: 1 - (1 - mpf(0.1)) * mp.sin(mp.pi * t / 2),
        lambda t: 1 - mp.sin(mp.pi * t / 2),
        t,
        1e-13,
    )
    check(Decoupled(Constant(), Polynomial()), lambda t: mpf(1), lambda t: 1 - t, t, 1e-13)


@pytest.mark.parametrize("name", SCHEDULES)
def test_limits_at_both_ends(name: str) -> None:
    """No NaN, no infinity; and unless a curve was told to rest above 0, exactly clean at 0 and exactly gone at 1."""
    schedule = SCHEDULES[name]
    start, end = at(schedule, 0.0), at(schedule, 1.0)
    assert all(torch.isfinite(field) for field in (*start, *end))
    if name != "homemade":
        assert (start.gamma, start.rho, start.one_minus_gamma, start.one_minus_rho) == (1, 1, 0, 0)
    assert end.gamma * end.rho == 0
    assert end.gamma + end.one_minus_gamma == 1
    assert end.rho + end.one_minus_rho == 1
    if name.startswith("peaked") and name != "peaked-none":
        assert (end.gamma, end.rho) == (0, 0)


@pytest.mark.parametrize("name", SCHEDULES)
def test_ends_are_approached(name: str) -> None:
    """The value at an end is the limit of the values before it."""
    schedule = SCHEDULES[name]
    for end, near in ((0.0, 1e-14), (1.0, 1 - 2.0**-53)):
        there, here = at(schedule, end), at(schedule, near)
        assert here.gamma.item() == pytest.approx(there.gamma.item(), abs=1e-4)
        assert here.rho.item() == pytest.approx(there.rho.item(), abs=0.01)  # ρ ~ (1 − t)^{1 − b} at t = 1


@moderate
@given(schedule=schedules(), times=st.lists(st.floats(0.0, 1.0), min_size=2, max_size=20))
def test_any_schedule_falls_and_stays_finite(schedule: Schedule, times: list[float]) -> None:
    levels = schedule.at(torch.tensor(sorted(times), dtype=torch.float64))
    for name in Levels._fields:
        assert torch.isfinite(getattr(levels, name)).all()
        assert getattr(levels, name).dtype == torch.float64
    for name in ("gamma", "rho"):
        value, slope = getattr(levels, name), getattr(levels, f"d{name}")
        assert (torch.diff(value) <= 1e-15).all()
        assert (slope <= 1e-12).all()
        assert ((value >= 0) & (value <= 1)).all()
    schedule.check()


@moderate
@given(schedule=peaked(), t=st.floats(1e-6, 1 - 1e-6))
def test_marginals_of_peaked_are_gidds(schedule: Peaked, t: float) -> None:
    """`eq:gidd-noise`: ρ·γ = (1 − t)/C, γ(1 − ρ) = c/C, 1 − γ = t/C, C = 1 + c."""
    c = noise(schedule.p_u, schedule.exponent, schedule.t_peak)(mpf(t))
    levels = at(schedule, t)
    assert (levels.rho * levels.gamma).item() == pytest.approx(float((1 - mpf(t)) / (1 + c)), rel=1e-12)
    assert (levels.gamma * levels.one_minus_rho).item() == pytest.approx(float(c / (1 + c)), rel=1e-12)
    assert levels.one_minus_gamma.item() == pytest.approx(float(mpf(t) / (1 + c)), rel=1e-12)


@pytest.mark.parametrize("name", SCHEDULES)
def test_times_of_any_type_and_shape(name: str) -> None:
    """Levels come in float64 and in the shape of the times, whatever the times' type."""
    levels = SCHEDULES[name].at(torch.full((2, 3), 0.5))
    assert all(field.dtype == torch.float64 and field.shape == (2, 3) for field in levels)


def test_log_linear_is_linear() -> None:
    t = torch.linspace(0, 1, 11, dtype=torch.float64)
    assert all(torch.equal(a, b) for a, b in zip(Masked("linear").at(t), Masked("log-linear").at(t), strict=True))


@pytest.mark.parametrize(
    ("schedule", "a"),
    [
        (Peaked(0.2), 0.5),
        (Peaked(0.1, t_peak=0.25), 0.25),
        (Peaked(0.2, 0.3, 0.1), 0.03),
        (Peaked(0.05, 2.5, 0.7), 1.0),  # the masks set in before the noise
        (Peaked(0.0), 1.0),
        (Masked("cosine"), 1.0),
        (Decoupled(Polynomial(), Polynomial(0.3)), 0.3),
        (Decoupled(Polynomial(0.4), Constant()), 0.4),
        (Decoupled(Constant(), Polynomial(3.0)), 1.0),  # later than needs care
        (Decoupled(Polynomial(2.0), Cosine()), 1.0),
    ],
    ids=repr,
)
def test_onset_is_the_power_with_which_tokens_are_first_lost(schedule: Schedule, a: float) -> None:
    assert schedule.onset() == pytest.approx(a, rel=1e-9)
    if a > 0.1:  # and so it looks, where that can be seen
        assert Schedule.onset(schedule) == pytest.approx(a, rel=1e-2)
