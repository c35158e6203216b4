"""What a sampler is: it decides, for every position, whether to keep, draw from the model, draw noise or mask."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from scdd.core import Levels, Transition, UserError, Vocab
from scdd.core.denoiser import Denoiser
from scdd.core.rng import CounterRNG, uniforms
from scdd.ops.common import HAS_TRITON, Filters
from scdd.processes.autoregressive import Autoregressive
from scdd.processes.base import Process
from scdd.samplers.options import SAMPLER_NAMES
from scdd.samplers.prediction import Prediction

if TYPE_CHECKING:
    from scdd.samplers.graphs import StepGraphs
    from scdd.samplers.packing import Packing
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
    graphs: StepGraphs | None = None
    """Where captured steps are kept, on a GPU (`samplers.graphs`); None: every step is launched kernel by kernel."""
    packing: Packing | None = None
    """Which rows go through the network together, on a CPU (`samplers.packing`); None: each alone."""


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

    def changed(self, change: Callable[[Tensor], Tensor]) -> State:
        """With every tensor, the sampler's own included, changed in the same way."""
        memory = {name: change(value) if isinstance(value, Tensor) else value for name, value in self.memory.items()}
        rest = {each.name: change(getattr(self, each.name)) for each in fields(self) if each.name != "memory"}
        return State(**rest, memory=memory)

    def widened(self, columns: int, mask_id: int) -> State:
        """With so many columns at least, the new ones padding."""
        lack = columns - self.tokens.shape[1]
        if lack <= 0:
            return self

        def pad(x: Tensor, value: float) -> Tensor:
            return torch.nn.functional.pad(x, (0, lack), value=value)

        return replace(
            self,
            tokens=pad(self.tokens, mask_id),
            updatable=pad(self.updatable, False),
            log_p=pad(self.log_p, torch.nan),
            log_p_when_drawn=pad(self.log_p_when_drawn, torch.nan),
        )

    def joined(self, other: State) -> State:
        """These rows and the `other` ones, which are as wide."""
        parts = iter([*other.tensors()])
        return self.changed(lambda mine: torch.cat([mine, next(parts)]))

    def tensors(self) -> list[Tensor]:
        """All of them, in the order in which `changed` goes through them."""
        found: list[Tensor] = []
        self.changed(lambda each: found.append(each) or each)  # type: ignore[func-returns-value]
        return found


WALK, LAST, REFINE, PASS = 0, 1, 2, 3
"""Phases of a walk: the grid's steps, the last of them, the sampler's extra ones at t = 0, and the pass after all."""


class Step(NamedTuple):
    """One step from t to s, of all rows: numbers; or of each row its own: columns [B, 1] (`Sampler.by_row`)."""

    number: int | Tensor  # 1 … total
    total: int | Tensor
    t: float | Tensor
    s: float | Tensor
    at_t: Levels
    at_s: Levels
    phase: int | Tensor = WALK

    @property
    def last(self) -> bool | Tensor:
        """The last step of the grid."""
        return self.phase == LAST


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
    filters: Filters
    """The plan's. The temperature is a column [B, 1] where rows have their own, and on a GPU always for samplers that go by row."""

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
    by_row: ClassVar[bool] = False
    """Whether it takes `Context.step` as columns [B, 1], a row's own numbers each, and keeps nothing in `Context.memory` but
    what `memory` begins, and has `times` that do not depend on the rows: then rows at different steps share evaluations
    (`loop.RowBatch`), and a GPU replays its steps (`graphs`). Else all rows walk in step."""

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

    def refine(self, z_t: Tensor, ctx: Context) -> Transition | Tokens:
        """One of the `extra_steps`, at t = 0."""
        return self.step(z_t, ctx)

    def memory(self, rows: Tensor) -> dict[str, Tensor]:
        """What it keeps for each of these rows [B, L], as they begin: tensors whose first axis is the rows, and none the columns,
        of which a batch gets more when a longer row joins."""
        return {}

    def check(self, model: Model) -> None:
        """Refuse a model that this sampler does not fit, naming the cure."""
        if isinstance(model.process, Autoregressive):
            raise UserError(f"sampler {self.name} needs a diffusion model: use sampler ar for this one.", "sampler")
        if self.masks_only and model.process.has_uniform_noise:
            raise UserError(
                f"sampler {self.name} needs ρ ≡ 1, masks alone, but {model.process.schedule!r} has uniform noise: "
                "use a masked model (mdlm), or ancestral.",
                "sampler",
            )

    def times(self, grid: Grid, model: Model, updatable: Tensor) -> Grid:
        """The times really visited when `grid` is asked for."""
        return grid


def lowest(score: Tensor, among: Tensor, count: Tensor | int) -> Tensor:
    """True at the `count` (number, or one a row) lowest scores of each row among positions; earlier positions win ties.

    NaN-free scores; positions outside `among` never count, so padding changes nothing.
    """
    ranked = torch.where(among, score, torch.inf).sort(dim=1, stable=True).indices
    order = torch.argsort(ranked, dim=1)  # the inverse permutation: each position's rank
    limit = count.reshape(-1, 1) if isinstance(count, Tensor) else count
    return (order < limit) & among


def apply_transition(move: Transition, ctx: Context) -> Tokens:
    """z_s drawn by `move` at the updatable positions, from three numbers a position, whatever happens there.

    The uniform number is cut in the order mask, noise, model, keep, so that rounding in the sum falls on keep; where
    keep is impossible it falls on the model. An outcome of probability 0 therefore never happens.
    """
    drawn, which, other, other_log_p = outcomes(move, ctx)
    return Tokens(*ctx.prediction.draw_over(drawn, which, ctx.plan.draw_filters, (other, other_log_p)))


def outcomes(move: Transition, ctx: Context) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(Where a token is drawn from x_θ, by which number; the tokens elsewhere, and their log x_θ: −∞ at masks, else NaN)."""
    z_t, calls = ctx.state.tokens, ctx.rng.calls
    if z_t.is_cuda and HAS_TRITON and isinstance(calls, Tensor) and ctx.process.noise is None:
        from scdd.ops.outcome.triton import outcomes as fused

        *found, ctx.rng.calls = fused(move, z_t, ctx.updatable, ctx.vocab, ctx.rng.keys, calls)
        return found[0], found[1], found[2], found[3]
    # one call for all three numbers of a position
    which, which_token, which_noise = uniforms((*z_t.shape, 3), ctx.rng).unbind(-1)
    noise = ctx.process.noise_token(which_noise)
    masked = ctx.updatable & (which < move.mask)
    noised = ctx.updatable & ~masked & (which < move.mask + move.uniform)
    stays = masked | noised | ~ctx.updatable
    drawn = ~stays & ((which < move.mask + move.uniform + move.model) | (move.keep <= 0))
    other = torch.where(masked, ctx.vocab.mask_id, torch.where(noised, noise, z_t))
    return drawn, which_token, other, torch.where(masked, -torch.inf, torch.nan)


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
