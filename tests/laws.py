"""The processes, vocabularies and times over which every law is tested, and how tests draw them."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from torch import Tensor

from scdd.core import Levels, Vocab
from scdd.processes.base import Process
from scdd.processes.gidd import GIDD
from scdd.processes.mdlm import MDLM
from scdd.processes.scdd import SCDD
from scdd.schedules.base import Schedule
from scdd.schedules.curves import Constant, Cosine, Curve, Polynomial
from scdd.schedules.decoupled import Decoupled
from scdd.schedules.masked import Masked
from scdd.schedules.peaked import Peaked

from . import paper

K = 4
MASKS = {"first": 0, "middle": 2, "last": K}


class Homemade(Schedule):
    """A reader's own schedule: smooth everywhere, and not quite clean at t = 0 (the paper's ρ_0, γ_0 ≈ 1)."""

    def at(self, t: Tensor) -> Levels:
        t = t.to(torch.float64)
        return Levels(
            0.98 * (1 - t * t), 0.95 * (1 - t), 0.02 + 0.98 * t * t, 0.05 + 0.95 * t, -1.96 * t, -0.95 + 0 * t
        )


class Early(Schedule):
    """ρ is gone for good at t = 0.8, so every ratio of it from there on is 0/0."""

    def at(self, t: Tensor) -> Levels:
        t = t.to(torch.float64)
        left = (1 - t / 0.8).clamp(min=0.0)
        return Levels(1 - t, left.square(), t, 1 - left.square(), -torch.ones_like(t), -2.5 * left)


SCHEDULES: dict[str, Schedule] = {
    "peaked": Peaked(p_u=0.2),
    "peaked-strong": Peaked(p_u=0.5, exponent=1.2, t_peak=0.3),
    "peaked-late": Peaked(p_u=0.1, exponent=2.0, t_peak=0.75),
    "peaked-faint": Peaked(p_u=1e-6),
    "peaked-none": Peaked(p_u=0.0),
    "decoupled": Decoupled(gamma=Polynomial(2.0), rho=Cosine()),
    "decoupled-rest": Decoupled(gamma=Cosine(), rho=Polynomial(0.5, end=0.3)),
    "uniform": Decoupled(gamma=Constant(), rho=Polynomial()),
    "homemade": Homemade(),
    "linear": Masked("linear"),
    "cosine": Masked("cosine"),
}
MASK_ONLY = ("linear", "cosine", "peaked-none")
KINDS: dict[str, type[Process]] = {"SCDD": SCDD, "GIDD": GIDD, "MDLM": MDLM}
NAMES = [(kind, name) for kind in KINDS for name in SCHEDULES if kind != "MDLM" or name in MASK_ONLY]

# (s, t) from one step of a thousand to the whole way, both ends included
PAIRS = [(0.0, 0.001), (0.0, 0.4), (0.2, 0.201), (0.3, 0.7), (0.7, 0.999), (0.5, 1.0), (0.999, 1.0), (0.0, 1.0)]
INSIDE = [0.02, 0.3, 0.5, 0.77, 0.97]

moderate = settings(deadline=None, max_examples=40, derandomize=True, suppress_health_check=list(HealthCheck))


@cache
def build(kind: str, schedule: str, mask_id: int = K, size: int = K + 1) -> Process:
    return KINDS[kind](Vocab(size, mask_id), SCHEDULES[schedule])


def over_processes(test: Callable[..., None]) -> Any:
    """Run `test(process)` for every process, schedule and place of the mask."""
    cases = [
        pytest.param(kind, name, mask, id=f"{kind}-{name}-{place}")
        for kind, name in NAMES
        for place, mask in MASKS.items()
        if place == "middle"
        or name == ("cosine" if kind == "MDLM" else "peaked")  # its place and the schedule do not mix
    ]

    def run(kind: str, name: str, mask: int) -> None:
        test(build(kind, name, mask))

    run.__name__, run.__doc__, run.__module__ = test.__name__, test.__doc__, test.__module__
    return pytest.mark.parametrize(("kind", "name", "mask"), cases)(run)


def curves() -> st.SearchStrategy[Curve]:
    ends = st.floats(0.0, 0.9)
    return st.one_of(st.builds(Polynomial, st.floats(0.3, 4.0), ends), st.builds(Cosine, ends))


def falling() -> st.SearchStrategy[Curve]:
    """Curves that reach 0."""
    return st.one_of(st.builds(Polynomial, st.floats(0.3, 4.0)), st.just(Cosine()))


@st.composite
def peaked(draw: st.DrawFn) -> Peaked:
    """Any schedule of the paper's family whose γ is sure to fall (exponent·t_peak ≤ 1)."""
    t_peak = draw(st.floats(0.1, 0.9))
    exponent = draw(st.floats(0.2, 0.98)) / max(t_peak, 1 - t_peak)
    p_u = draw(st.one_of(st.floats(0.001, 0.9), st.sampled_from([0.0, 1e-6, 1e-3])))
    return Peaked(p_u, exponent, t_peak)


def schedules() -> st.SearchStrategy[Schedule]:
    return st.one_of(
        peaked(),
        st.builds(Decoupled, falling(), st.one_of(curves(), st.just(Constant()))),
        st.builds(Decoupled, st.just(Constant()), falling()),
        st.sampled_from([Masked("linear"), Masked("cosine"), Homemade()]),
    )


@st.composite
def processes(draw: st.DrawFn) -> Process:
    """Any process over a small vocabulary with the mask anywhere in it."""
    size = draw(st.integers(3, 6))
    vocab = Vocab(size, draw(st.integers(0, size - 1)))
    kind = draw(st.sampled_from(list(KINDS)))
    schedule = draw(st.sampled_from([Masked("linear"), Masked("cosine")]) if kind == "MDLM" else schedules())
    return KINDS[kind](vocab, schedule)


@st.composite
def spans(draw: st.DrawFn) -> tuple[float, float]:
    """s < t in [0, 1]."""
    s = draw(st.floats(0.0, 0.99))
    return s, min(1.0, s + draw(st.floats(1e-4, 1.0)))


@cache
def at(process: Process, t: float) -> paper.Pair:
    """(γ_t, ρ_t) with all the digits that the levels carry, be they in the value or in its complement."""
    levels = process.levels(t)

    def exact(value: Tensor, complement: Tensor) -> paper.Real:
        small = complement if value > 0.5 else value
        return 1 - paper.Real(small.item()) if value > 0.5 else paper.Real(small.item())

    return exact(levels.gamma, levels.one_minus_gamma), exact(levels.rho, levels.one_minus_rho)


def slope(process: Process, t: float) -> paper.Pair:
    """(γ′_t, ρ′_t)."""
    levels = process.levels(t)
    return paper.Real(levels.dgamma.item()), paper.Real(levels.drho.item())


def kind_of(process: Process) -> str:
    return type(process).__name__


def ordinary(process: Process) -> list[int]:
    return [v for v in range(process.vocab.size) if v != process.vocab.mask_id]


def soft(process: Process, seed: int = 0, spread: float = 1.5) -> tuple[Tensor, paper.Array]:
    """Logits [V] whose mask column must not matter, and the x_θ they stand for."""
    values = np.random.default_rng(seed).normal(size=process.vocab.size) * spread
    logits = torch.tensor(values)
    values[process.vocab.mask_id] = -np.inf
    weights = np.exp((values - values.max()).astype(paper.Real))
    return logits, weights / weights.sum()


def tensor(values: paper.Array) -> Tensor:
    return torch.tensor(values.astype(np.float64))


def network(process: Process, seed: int = 0, spread: float = 1.5) -> tuple[Tensor, paper.Array]:
    """A table of logits [V, V], a row for each z_t, and the table of x_θ."""
    rows = [soft(process, 1000 * seed + z, spread) for z in range(process.vocab.size)]
    return torch.stack([row[0] for row in rows]), np.stack([row[1] for row in rows])


def everywhere(process: Process) -> tuple[Tensor, Tensor]:
    """All pairs (x, z_t), two tensors [K·V]."""
    x = torch.tensor(ordinary(process))
    z = torch.arange(process.vocab.size)
    return x.repeat_interleave(len(z)), z.repeat(len(x))
