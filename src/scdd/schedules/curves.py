"""Single falling curves from 1 at t = 0, the parts that masked and decoupled schedules are made of."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from scdd.schedules.base import interior
from scdd.schedules.options import ConstantOptions, CosineOptions, PolynomialOptions


class CurvePoint(NamedTuple):
    """A curve at some times: value, 1 − value from its own closed form, and derivative."""

    value: Tensor
    complement: Tensor
    derivative: Tensor


class Curve(ABC):
    """A non-increasing function of t in [0, 1] that starts at 1."""

    @abstractmethod
    def at(self, t: Tensor) -> CurvePoint:
        """The curve at times t (float64)."""


@dataclass(frozen=True)
class Constant(ConstantOptions, Curve):
    """Always 1: as ρ it means no uniform noise (MDLM), as γ no mask (D3PM-uniform, UDLM)."""

    def at(self, t: Tensor) -> CurvePoint:
        """1, 0 and 0."""
        return CurvePoint(torch.ones_like(t), torch.zeros_like(t), torch.zeros_like(t))


@dataclass(frozen=True)
class Polynomial(PolynomialOptions, Curve):
    """1 − (1 − end)·t^power; power 1 and end 0 is the linear curve 1 − t."""

    def at(self, t: Tensor) -> CurvePoint:
        """Value through expm1, which keeps its digits as t → 1."""
        drop = 1.0 - self.end
        lost = t**self.power
        left = -torch.expm1(self.power * torch.log(t))  # 1 − t^power
        inside = interior(t)
        return CurvePoint(self.end + drop * left, drop * lost, -drop * self.power * inside ** (self.power - 1.0))


@dataclass(frozen=True)
class Cosine(CosineOptions, Curve):
    """1 − (1 − end)·sin(πt/2): the field's cosine schedule, 1 − cos(π(1 − t)/2) at end 0."""

    def at(self, t: Tensor) -> CurvePoint:
        """1 − cos θ as 2 sin²(θ/2), which keeps its digits as t → 1; the plain difference is 1 at t = 0."""
        drop = 1.0 - self.end
        lost = torch.sin(0.5 * math.pi * t)
        left = torch.where(t < 0.5, 1.0 - lost, 2.0 * torch.sin(0.25 * math.pi * (1.0 - t)).square())
        slope = -0.5 * math.pi * torch.sin(0.5 * math.pi * (1.0 - t))
        return CurvePoint(self.end + drop * left, drop * lost, drop * slope)
