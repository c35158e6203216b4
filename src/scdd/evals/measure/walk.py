"""The sampling loop as measurements use it: all that knows samplers, their settings and single evaluations is here.

A walk gives the texts, what each position first said, and how many moves each step made.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, is_dataclass, replace
from typing import Any, NamedTuple, final

import torch
from torch import Tensor

from scdd.core import Transition, UserError
from scdd.core.rng import CounterRNG, derive_seed
from scdd.evals.measure.model import EvalModel
from scdd.evals.measure.progress import Watch, unwatched
from scdd.evals.measure.specs import Repair, SamplingSpec
from scdd.lm.model import LM
from scdd.lm.repair import likeliest, one_pass
from scdd.ops.bookkeeping.reference import CORRECTED, REMASKED, UNMASKED
from scdd.ops.common import Filters
from scdd.samplers.base import Context, Grid, Model, Sampler, Tokens, certain, grid
from scdd.samplers.loop import sample_loop
from scdd.samplers.options import DRAWING, SamplingOptions, sampler_name, sampler_options
from scdd.samplers.plan import SamplingPlan, make_plan
from scdd.samplers.step import TokenRows

# What the first measurements did not know is left out at what it always was: their names must stay.
LATER_SETTINGS = {"start": 1.0, "tolerance": None, "nucleus": None, "last_pass": None, "convention": "ours"}
LATER_OPTIONS = {"patience": 8}


class StartRows(NamedTuple):
    """Rows to walk: their tokens, where they may not change, and their numbers under the seed."""

    z: Tensor  # [N, L]
    frozen: Tensor  # [N, L]
    indices: Sequence[int]


def framed_rows(rows: Sequence[list[int]], indices: range, device: torch.device) -> StartRows:
    """Rows of one length, number `indices`, whose first and last token stay as they are."""
    z = torch.tensor(rows, device=device).view(len(rows), -1)
    frozen = torch.zeros_like(z, dtype=torch.bool)
    frozen[:, 0] = frozen[:, -1] = True
    return StartRows(z, frozen, indices)


class WalkedRow(NamedTuple):
    """A row of L tokens after S steps, on the CPU."""

    tokens: list[int]
    first: list[int]
    """Each position's first visible token: the text as it would be had nothing been corrected afterwards."""
    moves: Tensor  # [S, 3]: positions unmasked, corrected and remasked in each step
    nfe: int


@final
@dataclass(frozen=True)
class Uncorrected(Sampler):
    """The ablation: `inner`'s pace of unmasking, but visible tokens stay, and masks are filled from x_θ without noise.

    Noise has to go as well: it is drawn to be taken back, and nobody would.
    """

    inner: Sampler

    @property
    def by_row(self) -> bool:  # type: ignore[override]
        """As the inner one; none of its own is kept."""
        return self.inner.by_row

    def memory(self, rows: Tensor) -> dict[str, Tensor]:
        """As the inner one."""
        return self.inner.memory(rows)

    def check(self, model: Model) -> None:
        """As the inner one."""
        self.inner.check(model)

    def times(self, grid: Grid, model: Model, updatable: Tensor) -> Grid:
        """As the inner one."""
        return self.inner.times(grid, model, updatable)

    def step(self, z_t: Tensor, ctx: Context) -> Transition | Tokens:
        """Moves at masks only."""
        move = self.inner.step(z_t, ctx)
        masked = z_t == ctx.vocab.mask_id
        if isinstance(move, Tokens):
            still = torch.where(masked, move.tokens, z_t)
            return Tokens(still, torch.where(masked, move.log_p, torch.nan), move.finished)
        hidden = certain(masked)
        return Transition(
            keep=torch.where(masked, move.keep, 1.0),
            model=hidden * (move.model + move.uniform),
            uniform=torch.zeros_like(hidden),
            mask=hidden * move.mask,
        )


def text_length(lm: LM, spec: SamplingSpec) -> int:
    """How many tokens a text has, the recipe's number if nothing is asked for; refused if the context is too short."""
    room = lm.engine.room
    length = lm.usual_length if spec.length is None else spec.length
    if not 1 <= length <= room:
        raise UserError(f"length is {length}: the model's context holds 1 to {room} tokens.")
    return length


def settled(spec: SamplingSpec, lm: LM) -> dict[str, Any]:
    """Plain data, for a measurement's settings: the recipe's choices stand where `spec` leaves them open.

    They must be in the hash. Weights stay the same when somebody edits the sampling section beside them. A length of None
    fills the context, as it did before recipes were asked for theirs.
    """
    base, length, chosen = lm.sampling, text_length(lm, spec), spec.changes
    settings: dict[str, Any] = {name: getattr(spec, name) for name in ("num", "nfe", "seed", "correct")}
    settings["length"] = None if length == lm.engine.room else length
    for name in DRAWING:
        if name not in ("steps", "sampler", "grid"):
            settings[name] = _named(getattr(base, name) if chosen.get(name) is None else chosen.get(name))
    settings["grid"] = base.grid.kind if chosen.get("grid") is None else chosen.get("grid")
    settings |= {"start": base.grid.start} | _sampler_settings(lm, chosen.get("sampler"))
    settings["options"] = _without(LATER_OPTIONS, settings["options"])
    return _without(LATER_SETTINGS, settings)


def _named(value: Any) -> Any:
    """A choice as plain data: a rule of somebody's own is known by where it was written, or by its repr."""
    if not callable(value):
        return value
    return f"{value.__module__}.{value.__qualname__}" if hasattr(value, "__qualname__") else repr(value)


def _without(defaults: dict[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if name not in defaults or value != defaults[name]}


def _sampler_settings(lm: LM, sampler: Any) -> dict[str, Any]:
    """A sampler's name and all its other settings."""
    if isinstance(sampler, Sampler):
        options = vars(sampler)
        if is_dataclass(sampler):  # one with slots has no vars
            options = {field.name: getattr(sampler, field.name) for field in fields(sampler)}
        return {"sampler": sampler.name, "options": json.loads(json.dumps(options, default=repr))}
    section = (
        lm.sampling.sampler if sampler is None else sampler_options(sampler) if isinstance(sampler, str) else sampler
    )
    options = {name: value for name, value in asdict(section).items() if name not in ("kind", "variant")}
    return {"sampler": sampler_name(section), "options": options}


def sampling_plan(model: EvalModel, spec: SamplingSpec, batch_size: int, start: float | None = None) -> SamplingPlan:
    """The sampler, times and filters that `spec` means, with as many steps as its evaluations allow.

    `start` is the time at which the walk begins, where it is not the recipe's.
    """
    changes = {**spec.changes, "seed": spec.seed, "batch_size": batch_size, "stop": False}
    plan = make_plan(model.lm.sampling, {**changes, "steps": spec.nfe}, start)
    plan.sampler.check(model.engine.model)
    steps = spec.nfe - plan.extra_steps + (plan.final == "none")
    if steps < 1:
        raise UserError(
            f"The sampler {plan.sampler.name} and the last pass take {plan.extra_steps} evaluations after the walk, which leaves "
            f"none of {spec.nfe} for the walk: ask for more evaluations, or fewer corrections."
        )
    plan = make_plan(model.lm.sampling, {**changes, "steps": steps}, start)
    if spec.correct:
        return plan
    # tolerance goes by the posterior, which the ablation does not follow
    return replace(plan, sampler=Uncorrected(plan.sampler), options=replace(plan.options, tolerance=None))


def filters_used(plan: SamplingPlan) -> dict[str, Any]:
    """The filters as plain data, for a measurement's result."""
    filters = {"top_p": plan.filters.top_p, "top_k": plan.filters.top_k, "temperature": plan.filters.temperature}
    return filters | ({"nucleus": _named(plan.filters.nucleus)} if plan.filters.other_nucleus else {})


def walk(
    model: Model, plan: SamplingPlan, rows: StartRows, watch: Watch = unwatched, follow: bool = True
) -> list[WalkedRow]:
    """The rows after a walk as planned.

    `follow` looks at each step, for the counts; without it only the ends are seen, which is quicker, and `first` is the
    final text and `moves` the totals.
    """
    z, frozen, indices = rows
    plan, walked = replace(plan, record=follow), list[WalkedRow]()
    for start in range(0, len(indices), plan.batch_size):
        batch = slice(start, start + plan.batch_size)
        start_rows = TokenRows(z[batch], frozen[batch])
        rng = CounterRNG(plan.seed, list(indices[batch]), z.device)
        first, moves, frame = z[batch], [], None
        for frame in sample_loop(model, plan, start_rows, rng):
            if follow:
                first = torch.where(first == model.denoiser.vocab.mask_id, frame.tokens, first)
                kinds = [(frame.moved == kind).sum(1) for kind in (UNMASKED, CORRECTED, REMASKED)]
                moves.append(torch.stack(kinds, dim=1))
        assert frame is not None
        counts = torch.stack(moves, dim=1) if moves else frame.counts[:, None]
        shown = first if follow else frame.tokens
        walked += map(WalkedRow, frame.tokens.tolist(), shown.tolist(), counts.cpu(), frame.nfe.tolist())
        watch(len(first))
    return walked


@torch.no_grad()
def repaired(
    model: Model, repair: Repair, rows: StartRows, seed: int = 0, batch_size: int = 1, watch: Watch = unwatched
) -> list[list[int]]:
    """The rows after the repair."""
    z, frozen, _ = rows
    if repair.threshold is None:
        cut = repair.nucleus or repair.convention == "authors"  # there x_θ is its nucleus wherever it is used
        changes = {
            **{"grid": grid("uniform", repair.steps)[-repair.last - 1 :], "final": repair.final},
            **{"top_p": repair.top_p if cut else None, "convention": repair.convention},
            **{"draw_filters": None if repair.convention == "authors" else Filters(repair.top_p)},
            **{"seed": derive_seed(seed, "repair"), "batch_size": batch_size, "stop": False},
        }
        walked = walk(model, make_plan(SamplingOptions(), changes), rows, watch, follow=False)
        return [row.tokens for row in walked]
    done: list[list[int]] = []
    for start in range(0, len(z), batch_size):
        batch = slice(start, start + batch_size)
        best = likeliest(model, z[batch], repair.strength)
        done += one_pass(best, z[batch], frozen[batch], repair.threshold).tolist()
        watch(len(z[batch]))
    return done
