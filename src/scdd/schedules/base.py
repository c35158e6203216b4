"""What a schedule is, and the check that every schedule passes before a process takes it."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from scdd.core import Levels, UserError

FIRST = 1e-30  # the first and last time at which derivatives are taken: they may be infinite at 0 and 1 themselves
LAST = 1.0 - 2.0**-53
EARLY = 1e-12  # where a schedule is seen to set in
LEAST_ONSET = 0.01


def interior(t: Tensor) -> Tensor:
    """t moved off the ends of [0, 1] by less than float64 resolves there, for derivatives and rates.

    γ′ and ρ′ of `eq:noise-gidd-ours` are infinite at the ends (c_t ~ √t), while the products that the loss needs
    have limits; a set of measure zero is moved, so no expectation changes.
    """
    return t.clamp(FIRST, LAST)


class Schedule(ABC):
    """γ_t and ρ_t for t in [0, 1]. Derive from this and write `at` for a schedule of your own."""

    @abstractmethod
    def at(self, t: Tensor) -> Levels:
        """Levels at times t (float64, any shape); values right at t = 0 and t = 1, derivatives finite."""

    def onset(self) -> float:
        """a of the noise that sets in first, 1 − γ_t or 1 − ρ_t ∝ t^a as t → 0: it says which times an estimate needs.

        A token is lost with probability ∝ t^a and then weighs ∝ 1/t, the more variance the smaller a.
        """
        at = self.at(torch.tensor(EARLY, dtype=torch.float64))
        found = [
            -EARLY * float(slope) / float(lost)
            for lost, slope in ((at.one_minus_gamma, at.dgamma), (at.one_minus_rho, at.drho))
            if float(lost) > 0.0
        ]
        return min(max(min(found, default=1.0), LEAST_ONSET), 1.0)

    def bump(self) -> tuple[float, float] | None:
        """B and the exponent of c_t in `eq:gidd-noise`, for schedules of that family (B = 0: masks alone); else None."""
        return None

    def check(self, points: int = 4097) -> None:
        """Refuse levels that define no process: the paper's marginals need γ and ρ to fall monotonically.

        The grid is dense near both ends, where schedules bend most.
        """
        u = torch.linspace(0.0, 1.0, points, dtype=torch.float64)
        t = torch.sin(0.5 * torch.pi * u).square()
        levels = self.at(t)
        for name in Levels._fields:
            if not torch.isfinite(getattr(levels, name)).all():
                self._refuse(f"{name} is not finite on [0, 1]", "give its limits at t = 0 and t = 1")
        for name in ("gamma", "rho"):
            value, complement = getattr(levels, name), getattr(levels, f"one_minus_{name}")
            if value.min() < 0 or value.max() > 1:
                self._refuse(f"{name} leaves [0, 1]", "it is a probability: keep it between 0 and 1")
            if ((value + complement - 1).abs() > 1e-9).any():
                self._refuse(f"{name} and one_minus_{name} do not sum to 1", "give the same function twice")
            if (torch.diff(value) > 1e-12).any():
                where = t[torch.diff(value).argmax()].item()
                self._refuse(f"{name} rises near t = {where:.4f}", "make it non-increasing in t")
            self._check_derivative(name, t)
        if levels.gamma[-1] * levels.rho[-1] > 1e-12:
            self._refuse("γ·ρ is not 0 at t = 1, so the prior would depend on the data", "let one of them end at 0")

    def _check_derivative(self, name: str, t: Tensor) -> None:
        """The derivative must be that of the value: a wrong one trains on a wrong ELBO, silently."""
        middle = t[(t > 0.01) & (t < 0.99)]
        step = 1e-6
        rise = getattr(self.at(middle + step), name) - getattr(self.at(middle - step), name)
        error = (rise / (2 * step) - getattr(self.at(middle), f"d{name}")).abs()
        if (error > 1e-4 * (1 + rise.abs() / (2 * step))).any():
            self._refuse(f"d{name} is not the derivative of {name}", "differentiate it by hand once more")

    def __repr__(self) -> str:
        """The name and the settings: results of evaluations are filed under it."""
        said = (f"{name}={value!r}" for name, value in vars(self).items() if not name.startswith("_"))
        return f"{type(self).__name__}({', '.join(said)})"

    def _refuse(self, reason: str, cure: str) -> None:
        raise UserError(f"{type(self).__name__} is not a schedule: {reason}; {cure}.")
