"""What a sampler is: it decides, for every position, whether to keep, draw from the model, draw noise or mask."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from scdd.core import Levels, Transition
from scdd.core.denoiser import Denoiser
from scdd.core.errors import UserError
from scdd.core.rng import CounterRNG, uniforms
from scdd.core.vocab import Vocab
from scdd.ops import Filters
from scdd.processes.base import Process
from scdd.samplers.grids import Grid
from scdd.samplers.network import Evaluation


class Tokens(NamedTuple):
    """New tokens, for samplers that decide about whole rows at once; log_p as far as it is known, else NaN."""

    tokens: Tensor  # [B, L]
    log_p: Tensor  # [B, L]


class Context:
    """All that a sampler may look at in one step. The network is evaluated on first use, and then counted."""

    def __init__(
        self,
        *,
        denoiser: Denoiser,
        process: Process | None,
        filters: Filters,
        draws: Filters,
        source: CounterRNG,
        evaluate: Callable[[], Evaluation],
        count: Callable[[], None],
        free: Tensor,
        born: Tensor,
        step: int,
        steps: int,
        at_t: Levels,
        at_s: Levels,
        polishing: bool,
        memory: dict[str, Any],
        lengths: list[int],
    ) -> None:
        self.denoiser, self.filters, self.draws, self.source = denoiser, filters, draws, source
        self.vocab: Vocab = denoiser.vocab
        self.free = free
        """[B, L]: positions that may change (not frozen, not padding, row not finished)."""
        self.born = born
        """[B, L]: log x_θ of each token when it was drawn."""
        self.step, self.steps = step, steps
        self.at_t, self.at_s = at_t, at_s
        self.polishing = polishing
        """Whether this is a round after the grid's end (`Sampler.rounds`)."""
        self.memory = memory
        """What the sampler wants to remember until the run's end."""
        self.lengths = lengths
        self.finished: Tensor | None = None
        self.count = count
        """To be called for a network evaluation that does not go through `seen`."""
        self._process, self._evaluate = process, evaluate

    @property
    def process(self) -> Process:
        """The process whose reverse is walked."""
        if self._process is None:
            raise UserError(
                "This sampler needs a diffusion process: use sampler ar for an autoregressive model."
            )
        return self._process

    @cached_property
    def seen(self) -> Evaluation:
        """x_θ at z_t: one network evaluation."""
        return self._evaluate()

    @property
    def evaluated(self) -> bool:
        """Whether `seen` was asked for."""
        return "seen" in self.__dict__

    @property
    def judged(self) -> bool:
        """Whether log x_θ(z_t) is at hand anyway."""
        return self.evaluated and "log_p_z" in self.seen.__dict__

    def uniforms(self) -> Tensor:
        """Fresh numbers in [0, 1), one a position."""
        return uniforms(self.free.shape, self.source)

    def finish(self, rows: Tensor) -> None:
        """Let rows [B] end with this step; `Sampler.finishes` must be set."""
        self.finished = rows if self.finished is None else self.finished | rows


class Sampler(ABC):
    """One file each. Abstract or final; a concrete sampler is a frozen dataclass and keeps no state between steps."""

    name: ClassVar[str]
    finishes: ClassVar[bool] = False
    """Whether rows may end before the grid does: then the loop looks, which costs a host sync a step."""
    rounds: int = 0
    """Steps after the grid's end, each with one evaluation."""

    @abstractmethod
    def step(self, z_t: Tensor, ctx: Context) -> Transition | Tokens:
        """The step from z_t at ctx.at_t to ctx.at_s."""

    def check(self, process: Process | None) -> None:
        """Refuse a process that this sampler does not fit, naming the cure."""
        if process is None:
            raise UserError(f"The sampler {self.name} needs a diffusion model: use sampler ar for this one.")

    def times(self, grid: Grid, process: Process | None, free: Tensor) -> Grid:
        """The times really visited when `grid` is asked for."""
        return grid


def noisy(process: Process) -> bool:
    """Whether the process has uniform noise, i.e. not ρ ≡ 1."""
    return bool((process.levels(torch.linspace(0, 1, 65, dtype=torch.float64)).one_minus_rho > 0).any())


def need_mask_only(sampler: Sampler, process: Process | None) -> None:
    """For samplers of masked models."""
    Sampler.check(sampler, process)
    if process is not None and noisy(process):
        raise UserError(
            f"The sampler {sampler.name} needs ρ ≡ 1 but {process.schedule!r} has uniform noise: "
            "use a model with process.kind=mdlm, or sampler.kind=ancestral."
        )


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
