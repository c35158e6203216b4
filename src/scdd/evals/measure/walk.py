"""The sampling loop as measurements use it: all that knows samplers, their settings and single evaluations is here.

A walk gives the texts, what each position first said, and how many moves each step made.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, is_dataclass, replace
from typing import Any, ClassVar, NamedTuple, final

import torch
from torch import Tensor

from scdd.assemble import samplers as build_samplers
from scdd.core import Transition, UserError
from scdd.core.denoiser import Denoiser
from scdd.core.rng import CounterRNG, derive_seed
from scdd.evals.measure.model import EvalModel
from scdd.evals.measure.progress import Watch, unwatched
from scdd.evals.measure.specs import Repair, SamplingSpec
from scdd.lm.model import LM
from scdd.lm.run import Settings
from scdd.ops import NO_FILTERS, Filters
from scdd.processes.base import Process
from scdd.samplers.ancestral import Ancestral
from scdd.samplers.base import Context, Sampler, Tokens, certain
from scdd.samplers.drive import CORRECTED, REMASKED, UNMASKED, drive
from scdd.samplers.grids import Grid, grid
from scdd.samplers.network import Evaluation, groups


class StartRows(NamedTuple):
    """Rows to walk: their tokens, where they may not change, and their numbers under the seed."""

    z: Tensor  # [N, L]
    frozen: Tensor | None  # [N, L]
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
    name: ClassVar[str] = "uncorrected"

    def check(self, process: Process | None) -> None:
        """As the inner one."""
        self.inner.check(process)

    def times(self, grid: Grid, process: Process | None, free: Tensor) -> Grid:
        """As the inner one."""
        return self.inner.times(grid, process, free)

    def step(self, z_t: Tensor, ctx: Context) -> Transition | Tokens:
        """Moves at masks only."""
        move = self.inner.step(z_t, ctx)
        masked = z_t == ctx.vocab.mask_id
        if isinstance(move, Tokens):
            still = torch.where(masked, move.tokens, z_t)
            return Tokens(still, torch.where(masked, move.log_p, torch.nan))
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
    base, length = lm.sampling, text_length(lm, spec)
    settings = {field.name: getattr(spec, field.name) for field in fields(spec)}
    for name in ("final", "top_p", "top_k", "temperature"):
        settings[name] = getattr(base, name) if settings[name] is None else settings[name]
    settings["grid"] = base.grid.kind if spec.grid is None else spec.grid
    settings["length"] = None if length == lm.engine.room else length
    settings |= {} if base.grid.start == 1.0 else {"start": base.grid.start}
    return settings | _sampler_settings(lm, spec.sampler)


def _sampler_settings(lm: LM, sampler: str | Sampler | None) -> dict[str, Any]:
    """A sampler's name and all its other settings."""
    if isinstance(sampler, Sampler):
        options = vars(sampler)
        if is_dataclass(sampler):  # one with slots has no vars
            options = {field.name: getattr(sampler, field.name) for field in fields(sampler)}
        return {"sampler": sampler.name, "options": json.loads(json.dumps(options, default=repr))}
    section = lm.sampler_section(sampler)
    options = {name: value for name, value in asdict(section).items() if name not in ("kind", "variant")}
    return {"sampler": build_samplers.name(section), "options": options}


def sampling_plan(
    model: EvalModel, spec: SamplingSpec, batch_size: int, start: float | None = None
) -> Settings:
    """The sampler, grid and filters that `spec` means, with as many steps as its evaluations allow.

    `start` is the time at which the walk begins, where it is not the recipe's.
    """
    names = ("seed", "sampler", "grid", "final", "top_p", "top_k", "temperature")
    chosen = {name: getattr(spec, name) for name in names if getattr(spec, name) is not None}

    def plan(steps: int) -> Settings:
        return model.lm.start(1, steps=steps, stop=False, batch_size=batch_size, **chosen).settings

    made = plan(spec.nfe)
    made.sampler.check(model.process)
    steps = spec.nfe - made.sampler.rounds + (made.final == "none")
    if steps < 1:
        raise UserError(
            f"The sampler {made.sampler.name} takes {made.sampler.rounds} rounds after its walk, which leaves none of "
            f"{spec.nfe} evaluations for the walk: ask for more evaluations, or fewer rounds."
        )
    made = plan(steps)
    if start is not None:
        made = replace(made, grid=grid(spec.grid or model.lm.sampling.grid.kind, steps, start))
    return made if spec.correct else replace(made, sampler=Uncorrected(made.sampler))


def described(plan: Settings) -> dict[str, Any]:
    """What a plan came to, for a measurement's result."""
    steps, filters = len(plan.grid) - 1, asdict(plan.filters)
    return {"sampler": plan.sampler.name, "final": plan.final, "steps": steps, "filters": filters}


@torch.no_grad()
def walk(
    denoiser: Denoiser,
    process: Process | None,
    plan: Settings,
    rows: StartRows,
    watch: Watch = unwatched,
    follow: bool = True,
) -> list[WalkedRow]:
    """The rows after a walk along the plan's grid.

    `follow` looks at each step, for the counts; without it only the ends are seen, which is quicker, and `first` is the
    final text and `moves` the totals.
    """
    z, frozen, indices = rows
    walked: list[WalkedRow] = []
    for start in range(0, len(indices), plan.batch_size):
        batch = slice(start, start + plan.batch_size)
        first, moves, frame = z[batch], [], None
        for frame in drive(
            denoiser, process, plan.sampler, plan.grid, z[batch],
            source=CounterRNG(plan.seed, list(indices[batch]), z.device),
            frozen=None if frozen is None else frozen[batch],
            filters=plan.filters, draws=plan.draws, final=plan.final, tolerance=plan.tolerance,
            record=follow, together=plan.together,
        ):  # fmt: skip
            if follow:
                first = torch.where(first == denoiser.vocab.mask_id, frame.tokens, first)
                kinds = [(frame.moved == kind).sum(1) for kind in (UNMASKED, CORRECTED, REMASKED)]
                moves.append(torch.stack(kinds, dim=1))
        assert frame is not None
        counts = torch.stack(moves, dim=1) if moves else frame.counts[:, None]
        shown = first if follow else frame.tokens
        walked += map(WalkedRow, frame.tokens.tolist(), shown.tolist(), counts.cpu(), frame.nfe.tolist())
        watch(len(first))
    return walked


def repaired(
    denoiser: Denoiser,
    process: Process | None,
    repair: Repair,
    rows: StartRows,
    seed: int = 0,
    batch_size: int = 1,
    watch: Watch = unwatched,
) -> list[list[int]]:
    """The rows after the repair."""
    if repair.threshold is None:
        draws, times = Filters(top_p=repair.top_p), grid("uniform", repair.steps)[-repair.last - 1 :]
        doubts = draws if repair.nucleus else NO_FILTERS
        shared: dict[str, Any] = {
            "seed": derive_seed(seed, "repair"),
            "batch_size": batch_size,
            "stop": False,
        }
        plan = Settings(Ancestral(), times, doubts, repair.final, draws, **shared)
        return [row.tokens for row in walk(denoiser, process, plan, rows, watch, follow=False)]
    done: list[list[int]] = []
    for start in range(0, len(rows.z), batch_size):
        z = rows.z[start : start + batch_size]
        mended = _one_pass(denoiser, z, repair.threshold, repair.strength)
        if rows.frozen is not None:
            mended = torch.where(rows.frozen[start : start + batch_size], z, mended)
        done += mended.tolist()
        watch(len(z))
    return done


@torch.no_grad()
def _one_pass(denoiser: Denoiser, z: Tensor, threshold: float, strength: float) -> Tensor:
    """The argmax wherever the token is so unlikely beside it, all taken for z_t at t = strength."""
    t = torch.full((len(z),), strength, dtype=torch.float64, device=z.device)
    parts = groups(len(z), z.shape[1], None, z.device, None)
    top = Evaluation(denoiser, parts, z, t, NO_FILTERS).top()
    doubtful = top.log_p_z < top.log_p[..., 0] + math.log(threshold)
    return torch.where(doubtful, top.tokens[..., 0], z)
