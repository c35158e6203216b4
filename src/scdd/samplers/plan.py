"""The sampling plan: everything a walk needs besides the model and its rows, made once and handed on unopened."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Any, cast, get_args

import torch
from torch import Tensor

from scdd.core import CLEAN, Levels
from scdd.core.errors import OptionError
from scdd.core.options import Count, Options, component
from scdd.ops.common import NO_FILTERS, Filters
from scdd.processes.autoregressive import Autoregressive
from scdd.samplers.base import LAST, PASS, REFINE, WALK, Grid, Model, PassRule, Sampler, Step, checked, grid
from scdd.samplers.last_pass import PASSES
from scdd.samplers.options import (
    CONVENTIONS,
    SAMPLERS,
    Final,
    GridKind,
    SamplingChanges,
    SamplingOptions,
    sampler_options,
)

DEFAULT = SamplingOptions()
REALS, NUMBERS = 2 + 2 * len(Levels._fields), 3
"""Columns of a walk's tables."""


@dataclass(frozen=True)
class SamplingPlan(Options):
    """How rows are drawn. Texts depend on all of it but `batch_size`, `record` and, up to rounding, `rows_per_forward`."""

    sampler: Sampler
    times: Grid
    filters: Filters = NO_FILTERS
    draw_filters: Filters | None = None
    """Filters of the drawn tokens alone, where they differ from x_θ(z_t)'s: a correction may want the whole x_θ to doubt
    a token, and its nucleus to replace it."""
    last_pass: PassRule | None = None
    """What happens after the last step, with one more evaluation."""
    options: SamplingOptions = DEFAULT
    """What else was chosen: the final step, the tolerance, whose times. Sampler, times and filters stand in their own fields."""
    seed: int = 0
    batch_size: Count = 16
    """Rows drawn together."""
    rows_per_forward: Count | None = None
    """Rows of every network evaluation, filled up if need be; None: what suits the device (`prediction`)."""
    record: bool = False
    """Whether somebody looks at every step."""
    stop: bool = True
    """Cut a text at its first drawn end-of-text token."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.tolerance is not None and self.sampler.name != "ancestral":
            raise OptionError(
                f"tolerance stops by the process's own posterior, which the sampler {self.sampler.name} does not follow: "
                "leave it out, or use sampler ancestral.",
                "tolerance",
            )
        if self.last_pass is not None and (why := no_pass(self)) is not None:
            raise OptionError(f"A last pass is not possible here, since {why}: leave one of the two out.", "last_pass")

    @property
    def scale(self) -> float:
        """The share of each time at which the schedule is asked for its levels."""
        return CONVENTIONS[self.options.convention].scale

    @property
    def end(self) -> float:
        """Where the walk's times end: above 0 only if a last pass follows, since masks may be left there."""
        return CONVENTIONS[self.options.convention].end if self.last_pass is not None else 0.0

    @property
    def extra_steps(self) -> int:
        """Evaluations beside those of the grid: the sampler's own, and the last pass."""
        return self.sampler.extra_steps + (self.last_pass is not None)

    @property
    def final(self) -> Final:
        """What the last step does (`loop`)."""
        return self.options.final

    @property
    def tolerance(self) -> float | None:
        """Expected moves below which a text stops."""
        return self.options.tolerance

    @property
    def steps(self) -> int:
        """Steps of the grid, hence network evaluations but for `extra_steps`."""
        return len(self.times) - 1


def batch_rules(plan: SamplingPlan) -> tuple[object, ...]:
    """Rows of plans that agree in this may share evaluations, whatever their times and temperatures (`loop.RowBatch`)."""
    filters = replace(plan.filters, temperature=1.0)
    rules = (plan.sampler, filters, plan.draw_filters, plan.last_pass, plan.final, plan.tolerance)
    return rules, plan.record, plan.rows_per_forward


def by_row(plan: SamplingPlan) -> bool:
    """Whether rows at different steps of such plans may share evaluations: samplers and last passes of ours may."""
    return plan.sampler.by_row and (plan.last_pass is None or plan.last_pass in PASSES.values())


@dataclass(frozen=True)
class Walk:
    """The steps of rows that begin together, as numbers: the sampler's times, its extra steps, the last pass."""

    times: Grid
    levels: Levels  # [len(times)] each; the last are clean data's where time ends at 0, whatever the schedule
    phases: tuple[int, ...]
    key: object = None  # walks of equal keys are the same, where a batch made them

    @classmethod
    def of(cls, model: Model, plan: SamplingPlan, updatable: Tensor) -> Walk:
        """As planned, the last step as `final` wants it."""
        times = plan.sampler.times(checked(plan.times), model, updatable)
        if plan.end > 0.0:
            times = tuple(plan.end + (1.0 - plan.end) * t for t in times)
        whole = plan.final != "none"
        steps = (*[WALK] * (len(times) - 2), *[LAST] * whole)
        after = (*[REFINE] * (plan.sampler.extra_steps if whole else 0), *[PASS] * (plan.last_pass is not None))
        return cls(times, _levels(model, times, plan.scale), steps + after)

    def __len__(self) -> int:
        return len(self.phases)

    def span(self, i: int) -> tuple[float, float]:
        """(t, s) of step i, counted from 0."""
        grid = self.phases[i] in (WALK, LAST)
        return (self.times[i], self.times[i + 1]) if grid else (self.times[-1], self.times[-1])

    def to(self, device: torch.device) -> Walk:
        """With the levels there."""
        return replace(self, levels=Levels(*(field.to(device) for field in self.levels)))

    def step(self, i: int) -> Step:
        """Step i of all rows at once."""
        ends = (i, i + 1) if self.phases[i] in (WALK, LAST) else (-1, -1)
        at_t, at_s = (Levels(*(field[end] for field in self.levels)) for end in ends)
        return Step(i + 1, len(self), *self.span(i), at_t, at_s, self.phases[i])

    def table(self) -> tuple[Tensor, Tensor]:
        """All steps: t, s and the levels at both, [S, REALS] float64; number, total and phase, [S, NUMBERS] int64. See `columns`."""
        grid = sum(phase in (WALK, LAST) for phase in self.phases)
        levels = torch.stack(self.levels, dim=1)
        begin = torch.tensor([*range(grid), *[-1] * (len(self) - grid)], dtype=torch.int64, device=levels.device)
        end = torch.where(begin < 0, begin, begin + 1)
        times = torch.tensor(self.times, dtype=torch.float64, device=levels.device)
        numbers = [(i + 1, len(self), phase) for i, phase in enumerate(self.phases)]
        reals = torch.cat([times[begin, None], times[end, None], levels[begin], levels[end]], dim=1)
        return reals, torch.tensor(numbers, dtype=torch.int64).reshape(-1, NUMBERS)


def columns(reals: Tensor, numbers: Tensor) -> Step:
    """Rows [B, REALS] and [B, NUMBERS] of such tables as a step of each row's own."""
    real, number = ([x[:, i : i + 1] for i in range(x.shape[1])] for x in (reals, numbers))
    return Step(number[0], number[1], real[0], real[1], Levels(*real[2:8]), Levels(*real[8:]), number[2])


def _levels(model: Model, times: Grid, scale: float) -> Levels:
    if isinstance(model.process, Autoregressive):
        return Levels(*(field.expand(len(times)) for field in CLEAN))
    at = model.process.levels(scale * torch.tensor(times, dtype=torch.float64))
    if times[-1] > 0.0:
        return at
    return Levels(*(torch.cat([field[:-1], clean[None]]) for field, clean in zip(at, CLEAN, strict=True)))


RUN_OPTIONS = ("draw_filters", "seed", "batch_size", "rows_per_forward", "record", "stop")
"""Choices of a run that no recipe makes."""
RULES = ("nucleus", "last_pass")
"""Choices that may be functions, which no recipe can hold."""
CHOICES = tuple(SamplingChanges.__annotations__)


def make_plan(base: SamplingOptions, changes: Mapping[str, Any], start: float | None = None) -> SamplingPlan:
    """The plan that a model's own sampling options and a caller's `changes` amount to; None changes nothing.

    The one way to a plan: the command line, Python, REST, recipes and evaluations all come through here. What a recipe
    chooses is switched off where the model is loaded (`overrides=["sampling.top_k=null"]`), not by None. A sampler may be
    a name, options, or a `Sampler` of your own; a grid a kind, or times of your own; a nucleus and a last pass a name, or a
    rule of your own (`NucleusRule`, `PassRule`). `start` begins the grid there.
    """
    for name in changes:
        if name not in CHOICES:
            near = get_close_matches(name, CHOICES, n=1)
            cure = f"did you mean {near[0]}?" if near else f"choose from {', '.join(CHOICES)}."
            raise OptionError(f"There is no sampling option {name!r}: {cure}", name)
    run = {name: changes[name] for name in RUN_OPTIONS if changes.get(name) is not None}
    times = changes.get("grid") if not isinstance(changes.get("grid"), str) else None
    if times is not None and changes.get("steps") is not None:
        raise OptionError("steps are given, and times of your own, which say how many: leave one of them out.", "steps")
    rules = {name: changes[name] for name in RULES if callable(changes.get(name))}
    wishes = {name: value for name, value in changes.items() if name not in RUN_OPTIONS and name not in rules}
    options = _changed(base, {**wishes, "grid": None if times is not None else wishes.get("grid")})
    customs, sampler = CONVENTIONS[options.convention], _sampler(options.sampler)
    nucleus = rules.get("nucleus") or options.nucleus or customs.nucleus
    plan = SamplingPlan(
        sampler=sampler,
        times=_times(options, start) if times is None else checked(times),
        filters=Filters(options.top_p, options.top_k, options.temperature, nucleus),
        last_pass=rules.get("last_pass") or PASSES.get(options.last_pass or "none"),
        options=options,
        **run,
    )
    if plan.last_pass is not None or options.last_pass is not None or customs.last_pass == "none":
        return plan
    # what ends its rows by itself has no pass in any convention
    return plan if sampler.reads_network or sampler.finishes else replace(plan, last_pass=PASSES[customs.last_pass])


def no_pass(plan: SamplingPlan) -> str | None:
    """Why a plan can have no last pass; None where it can."""
    if plan.sampler.reads_network or plan.sampler.finishes:
        return f"the sampler {plan.sampler.name} ends its rows by itself"
    return None if plan.tolerance is None else "tolerance ends rows before it"


def _sampler(chosen: Any) -> Sampler:
    if isinstance(chosen, Sampler):
        return chosen
    if not isinstance(chosen, Options):
        raise OptionError(f"{chosen!r} is no sampler: give a name, options, or a Sampler.", "sampler")
    kind, values = component(chosen, SAMPLERS)
    sampler: Sampler = kind(**values)
    return sampler


def _times(options: SamplingOptions, start: float | None) -> Grid:
    return grid(options.grid.kind, options.steps, options.grid.start if start is None else start)


def _changed(base: SamplingOptions, changes: Mapping[str, Any]) -> SamplingOptions:
    """`base` with a caller's wishes put over it; None stands for what was not asked for.

    A sampler may be given by its name, a grid by its kind.
    """
    wishes = {name: value for name, value in changes.items() if value is not None}
    if isinstance(wishes.get("sampler"), str):
        wishes["sampler"] = sampler_options(wishes["sampler"])
    if isinstance(grid := wishes.get("grid"), str):
        if grid not in get_args(GridKind):
            raise OptionError(f"grid is {grid!r}: choose one of {', '.join(get_args(GridKind))}.", "grid")
        wishes["grid"] = replace(base.grid, kind=cast(GridKind, grid))
    return replace(base, **wishes)
