"""What a sampler is: it decides, for every position, whether to keep, draw from the model, draw noise or mask."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from scdd.core import Levels, Transition, UserError, Vocab
from scdd.core.denoiser import Denoiser
from scdd.core.rng import CounterRNG, uniforms
from scdd.processes.autoregressive import Autoregressive
from scdd.processes.base import Process
from scdd.samplers.options import SAMPLER_NAMES
from scdd.samplers.prediction import Prediction

if TYPE_CHECKING:
    from scdd.samplers.plan import SamplingPlan


Grid = tuple[float, ...]
"""Times as data: N + 1 falling ones, the last one 0, hence N steps and N network evaluations."""


@dataclass(frozen=True)
class Model:
    """What the loop and its samplers use of a language model."""

    denoiser: Denoiser
    process: Process | Autoregressive
    quality: Callable[[Tensor], Tensor] | None = None  # PRISM's head, where one was trained
    eos_id: int | None = None  # ends an autoregressive row


class Tokens(NamedTuple):
    """New tokens, for samplers that decide about whole rows at once; log_p as far as it is known, else NaN."""

    tokens: Tensor  # [B, L]
    log_p: Tensor  # [B, L]
    finished: Tensor | None = None  # [B]: rows that end with this step (`Sampler.finishes`)


@dataclass(frozen=True)
class State:
    """The texts between two steps. Tensors stay where the network lives."""

    tokens: Tensor  # [B, L] int64
    lengths: Tensor  # [B]: columns of each row that are no padding
    updatable: Tensor  # [B, L]: positions that may change (not frozen, not padding, row not finished)
    log_p: Tensor  # [B, L] float32: log x_θ of each token as last seen; NaN unknown, −∞ at masks
    log_p_when_drawn: Tensor  # [B, L] float32
    counts: Tensor  # [B, 3] int64: positions unmasked, corrected and remasked so far
    nfe: Tensor  # [B] int64: network evaluations so far
    done: Tensor  # [B]: rows that have finished early
    memory: dict[str, Any] = field(default_factory=dict)  # the sampler's own, all that steps may write to


class Step(NamedTuple):
    """One step of the grid, from t to s; or a `refining` one at t = 0, after the grid's end; or the last pass."""

    number: int  # 1 … total
    total: int
    t: float
    s: float
    at_t: Levels
    at_s: Levels
    last: bool = False
    refining: bool = False
    passing: bool = False


@dataclass(frozen=True)
class Context:
    """All that a sampler may look at in one step."""

    model: Model
    plan: SamplingPlan
    state: State
    step: Step
    rng: CounterRNG
    evaluated: Prediction | None
    """None for samplers that read the network themselves."""

    @property
    def memory(self) -> dict[str, Any]:
        """The sampler's own scratchpad, kept from step to step."""
        return self.state.memory

    @property
    def prediction(self) -> Prediction:
        """x_θ at z_t: this step's network evaluation."""
        assert self.evaluated is not None, "this sampler reads the network itself"
        return self.evaluated

    @property
    def process(self) -> Process:
        """The process whose reverse is walked."""
        assert isinstance(self.model.process, Process), "`Sampler.check` refuses autoregressive models"
        return self.model.process

    @property
    def vocab(self) -> Vocab:
        """The model's."""
        return self.model.denoiser.vocab

    @property
    def updatable(self) -> Tensor:
        """[B, L]: positions that may change."""
        return self.state.updatable

    def uniforms(self) -> Tensor:
        """Fresh numbers in [0, 1), one a position."""
        return uniforms(self.updatable.shape, self.rng)


PassRule = Callable[[Tensor, Context], Transition | Tokens]
"""What a pass after the last step does with the texts, as `Sampler.step` would; it costs one evaluation."""


class Sampler(ABC):
    """One file each. Abstract or final; a concrete sampler is a frozen dataclass and keeps no state of its own."""

    finishes: ClassVar[bool] = False
    """Whether rows may end before the grid does: then the loop looks, which costs a host sync a step."""
    masks_only: ClassVar[bool] = False
    """Whether it is for masked models alone, in which visible tokens are always right."""
    reads_network: ClassVar[bool] = False
    """Whether it evaluates the network itself, once a step, and needs no `Context.prediction`."""

    @property
    def name(self) -> str:
        """What results call it."""
        made = type(self)
        if made.__module__.startswith("scdd."):
            return str(getattr(self, "kind", made.__name__.lower()))
        # One of your own is no other than what it derives from, and not one of ours that is called alike.
        name = made.__name__.lower()
        name = str(getattr(self, "kind", name)) if "kind" in vars(made) else name
        return f"{made.__module__}.{name}" if name in SAMPLER_NAMES else name

    @property
    def extra_steps(self) -> int:
        """Steps after the grid's end, each with one evaluation."""
        return 0

    @abstractmethod
    def step(self, z_t: Tensor, ctx: Context) -> Transition | Tokens:
        """The step from z_t at ctx.step.t to ctx.step.s."""

    def check(self, model: Model) -> None:
        """Refuse a model that this sampler does not fit, naming the cure."""
        if isinstance(model.process, Autoregressive):
            raise UserError(f"The sampler {self.name} needs a diffusion model: use sampler ar for this one.")
        if self.masks_only and model.process.has_uniform_noise:
            raise UserError(
                f"The sampler {self.name} needs ρ ≡ 1 but {model.process.schedule!r} has uniform noise: "
                "use a masked model (mdlm), or sampler ancestral."
            )

    def times(self, grid: Grid, model: Model, updatable: Tensor) -> Grid:
        """The times really visited when `grid` is asked for."""
        return grid


def lowest(score: Tensor, among: Tensor, count: Tensor | int) -> Tensor:
    """True at the `count` (number, or [B]) lowest scores of each row among positions; earlier positions win ties.

    NaN-free scores; positions outside `among` never count, so padding changes nothing.
    """
    ranked = torch.where(among, score, torch.inf).sort(dim=1, stable=True).indices
    order = torch.argsort(ranked, dim=1)  # the inverse permutation: each position's rank
    limit = count[:, None] if isinstance(count, Tensor) else count
    return (order < limit) & among


def certain(where: Tensor) -> Tensor:
    """1 where true, float64: a probability."""
    return where.to(torch.float64)


SHAPES: dict[str, Callable[[float], float]] = {
    "uniform": lambda u: 1.0 - u,
    "quadratic": lambda u: (1.0 - u) ** 2,  # small steps at the end, where the last errors are corrected
    "cosine": lambda u: math.cos(0.5 * math.pi * u),  # small steps at the start, where little is known
}
"""Times as a share of the first one, from the share u of the steps already done."""


def grid(kind: str = "uniform", steps: int = 128, start: float = 1.0) -> Grid:
    """`steps` steps from `start` (1: all masks; less: from a given text, t0) down to 0."""
    if kind not in SHAPES:
        raise UserError(f"The time grid is {kind!r}: choose one of {', '.join(SHAPES)}.")
    if steps < 1:
        raise UserError(f"steps is {steps}: take at least 1; each step is one network evaluation.")
    if not 0.0 < start <= 1.0:
        raise UserError(f"The grid's start is {start}: choose a time in (0, 1]; 1 begins from masks.")
    shape = SHAPES[kind]
    return (*(start * shape(i / steps) for i in range(steps)), 0.0)


def checked(times: Sequence[float]) -> Grid:
    """Times of a caller's own; a time may repeat (ReMDM's loop stays at one level), never rise, and 0 comes last."""
    try:
        times = tuple(float(t) for t in times)
    except (TypeError, ValueError) as error:
        raise UserError(f"grid is {times!r}: give the name of a grid, or falling times from 1 to 0.", "grid") from error
    if len(times) < 2 or times[-1] != 0.0 or not 0.0 < times[0] <= 1.0:
        raise UserError("A time grid needs at least two times, the first in (0, 1] and the last 0.")
    if any(later > earlier for earlier, later in pairwise(times)):
        raise UserError("A time grid must not rise: sort its times from the largest to 0.")
    if times[-2] == 0.0:
        raise UserError("A time grid may hold 0 once, as its end: a step from 0 to 0 would do nothing.")
    return times
