"""What is refused, and that the refusal names the reason and the cure."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from scdd.core import Levels, UserError
from scdd.schedules.base import Schedule
from scdd.schedules.curves import Cosine, Polynomial
from scdd.schedules.masked import Masked
from scdd.schedules.peaked import Peaked

from ..laws import moderate


@pytest.mark.parametrize("p_u", [-0.1, 1.0, 1.5, math.nan])
def test_p_u_outside_its_range(p_u: float) -> None:
    with pytest.raises(UserError, match=r"Peaked\.p_u is .*in \[0, 1\)"):
        Peaked(p_u)


@pytest.mark.parametrize("exponent", [0.0, -1.0, math.nan, math.inf])
def test_exponent_not_positive(exponent: float) -> None:
    with pytest.raises(UserError, match=r"Peaked\.exponent is .*above 0"):
        Peaked(0.2, exponent)


@pytest.mark.parametrize("t_peak", [0.0, 1.0, -0.5, 2.0, math.nan])
def test_t_peak_outside_its_range(t_peak: float) -> None:
    with pytest.raises(UserError, match=r"Peaked\.t_peak is .*in \(0, 1\)"):
        Peaked(0.2, 1.0, t_peak)


@pytest.mark.parametrize(("exponent", "t_peak"), [(2.0, 0.5), (3.0, 0.5), (1.25, 0.2)])
def test_rho_that_would_not_vanish(exponent: float, t_peak: float) -> None:
    with pytest.raises(
        UserError, match=r"exponent·\(1 − t_peak\) = .* not below 1.*lower exponent below .*raise t_peak"
    ):
        Peaked(0.2, exponent, t_peak)


def test_why_that_exponent_is_refused() -> None:
    """At exponent·(1 − t_peak) = 1, ρ_1 = 1/(1 + B) > 0; just below, ρ_1 = 0: the bound is the paper's ρ_1 = 0."""
    B = 4 * 0.2 / 0.8
    near_one = 1 - 1e-9
    assert (1 - near_one) / (1 + B * near_one * (1 - near_one) - near_one) == pytest.approx(1 / (1 + B), rel=1e-6)
    below = Peaked(0.2, 1.98, 0.5).at(torch.tensor(1.0))
    assert below.rho == 0


def test_noise_that_outruns_masking() -> None:
    """Above exponent·t_peak = 1 the noise may swell so fast that γ would have to rise."""
    with pytest.raises(UserError, match=r"γ_t rises near t = 0\.\d+.*lower exponent \(to 1\.11111 every p_u works\)"):
        Peaked(0.5, 5.0, 0.9)
    Peaked(0.5, 1.1, 0.9).check()


@moderate
@given(p_u=st.floats(0, 0.99), exponent=st.floats(0.05, 8), t_peak=st.floats(0.02, 0.98))
def test_parameters_are_refused_or_sound(p_u: float, exponent: float, t_peak: float) -> None:
    """Nothing gets past the constructor that the general check would refuse."""
    try:
        schedule = Peaked(p_u, exponent, t_peak)
    except UserError:
        return
    schedule.check()


@pytest.mark.parametrize(
    ("build", "names"),
    [
        (lambda: Polynomial(0.0), r"Polynomial\.power is 0\.0.*above 0"),
        (lambda: Polynomial(-1.0), r"Polynomial\.power is -1\.0.*above 0"),
        (lambda: Polynomial(math.nan), r"Polynomial\.power is nan.*above 0"),
        (lambda: Polynomial(math.inf), r"Polynomial\.power is inf.*finite"),
        (lambda: Polynomial(1.0, end=1.0), r"Polynomial\.end is 1\.0.*\[0, 1\)"),
        (lambda: Cosine(end=-0.1), r"Cosine\.end is -0\.1.*\[0, 1\)"),
        (lambda: Masked("sigmoid"), r"Masked\.shape is 'sigmoid'.*log-linear, linear, cosine"),
    ],
)
def test_bad_curves(build: Callable[[], object], names: str) -> None:
    with pytest.raises(UserError, match=names):
        build()


class Made(Schedule):
    """γ = 1 − t and ρ = 1 − t, with one field put wrong."""

    def __init__(self, **wrong: Callable[[Tensor], Tensor]) -> None:
        self.wrong = wrong

    def at(self, t: Tensor) -> Levels:
        slope = -torch.ones_like(t)
        right = Levels(1 - t, 1 - t, t, t, slope, slope)
        return right._replace(**{name: function(t) for name, function in self.wrong.items()})


def wave(t: Tensor) -> Tensor:
    return 1 - t + 0.2 * torch.sin(2 * torch.pi * t)


@pytest.mark.parametrize(
    ("wrong", "reason", "cure"),
    [
        (
            {"gamma": wave, "one_minus_gamma": lambda t: 1 - wave(t)},
            "gamma (rises|leaves)",
            "non-increasing|keep it between",
        ),
        (
            {"rho": lambda t: 1 - t + 6 * t**2 * (1 - t) ** 2, "one_minus_rho": lambda t: t - 6 * t**2 * (1 - t) ** 2},
            r"rho rises near t = 0\.\d+",
            "make it non-increasing",
        ),
        (
            {"gamma": lambda t: 1.1 - 1.1 * t, "one_minus_gamma": lambda t: 1.1 * t - 0.1},
            r"gamma leaves \[0, 1\]",
            "keep it between 0 and 1",
        ),
        (
            {"rho": lambda t: 0.9 - t, "one_minus_rho": lambda t: t + 0.1},
            r"rho leaves \[0, 1\]",
            "keep it between 0 and 1",
        ),
        ({"one_minus_gamma": lambda t: t + 1e-6}, "gamma and one_minus_gamma do not sum to 1", "same function twice"),
        ({"one_minus_rho": lambda t: t * t}, "rho and one_minus_rho do not sum to 1", "same function twice"),
        ({"dgamma": torch.ones_like}, "dgamma is not the derivative of gamma", "differentiate"),
        ({"drho": lambda t: -1 - 0.01 * t}, "drho is not the derivative of rho", "differentiate"),
        ({"drho": lambda t: -1 / t}, "drho is not finite", "limits at t = 0 and t = 1"),
        ({"rho": lambda t: t / t - t}, "rho is not finite", "limits at t = 0 and t = 1"),
        (
            {
                "gamma": lambda t: 1 - 0.5 * t,
                "one_minus_gamma": lambda t: 0.5 * t,
                "dgamma": lambda t: -0.5 * torch.ones_like(t),
                "rho": lambda t: 1 - 0.5 * t,
                "one_minus_rho": lambda t: 0.5 * t,
                "drho": lambda t: -0.5 * torch.ones_like(t),
            },
            "γ·ρ is not 0 at t = 1, so the prior would depend on the data",
            "let one of them end at 0",
        ),
    ],
)
def test_a_schedule_of_ones_own_is_checked(
    wrong: dict[str, Callable[[Tensor], Tensor]], reason: str, cure: str
) -> None:
    with pytest.raises(UserError, match=f"Made is not a schedule: {reason}.*; .*({cure})"):
        Made(**wrong).check()


def test_a_right_schedule_of_ones_own_passes() -> None:
    Made().check()
