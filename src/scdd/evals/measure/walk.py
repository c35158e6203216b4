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
from scdd.lm import LM
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


def framed_rows(rows: list[list[int]], indices: range, device: torch.device) -> StartRows:
    """Rows of one length, number `indices`, whose first and last token stay as they are."""
    z = torch.tensor(rows, device=device).view(len(rows), -1)
    frozen = torch.zeros_like(z, dtype=torch.bool)
    frozen[:, 0] = frozen[:, -1] = True
    return StartRows(z, frozen, indices)


class Walked(NamedTuple):
    """N rows of L tokens after S steps, on the CPU. `first` holds each position's first visible token."""

    tokens: Tensor  # [N, L]
    first: Tensor  # [N, L]
    moves: Tensor  # [N, S, 3]: positions unmasked, corrected and remasked in each step
    nfe: Tensor  # [N]


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


# -- what is asked ----------------------------------------------------------------------------------------------------


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


# -- what is done -----------------------------------------------------------------------------------------------------


@torch.no_grad()
def walk(
    denoiser: Denoiser,
    process: Process | None,
    plan: Settings,
    rows: StartRows,
    watch: Watch = unwatched,
    follow: bool = True,
) -> Walked:
    """Walk the rows along the plan's grid.

    `follow` looks at each step, for the counts; without it only the ends are seen, which is quicker, and `first` is the
    final text and `moves` the totals.
    """
    z, frozen, indices = rows
    parts = []
    for start in range(0, len(indices), plan.batch_size):
        batch = slice(start, start + plan.batch_size)
        first, moves, frame = z[batch].clone(), [], None
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
        parts.append(Walked(frame.tokens.cpu(), shown.cpu(), counts.cpu(), frame.nfe.cpu()))
        watch(len(first))
    if not parts:
        none = torch.zeros((0, z.shape[1]), dtype=torch.int64)
        return Walked(none, none, torch.zeros((0, len(plan.grid) - 1, 3), dtype=torch.int64), none[:, 0])
    every = padded_moves([part.moves for part in parts])
    return Walked(
        torch.cat([part.tokens for part in parts]),
        torch.cat([part.first for part in parts]),
        torch.cat(every),
        torch.cat([part.nfe for part in parts]),
    )


def padded_moves(parts: Sequence[Tensor]) -> list[Tensor]:
    """Counts [..., S, 3] with as many steps each: rows that all stop early have fewer."""
    longest = max(part.shape[-2] for part in parts)
    return [torch.nn.functional.pad(part, (0, 0, 0, longest - part.shape[-2])) for part in parts]


def repaired(
    denoiser: Denoiser,
    process: Process | None,
    repair: Repair,
    rows: StartRows,
    seed: int = 0,
    batch_size: int = 1,
    watch: Watch = unwatched,
) -> Tensor:
    """The rows after the repair [N, L], on the CPU."""
    if repair.threshold is None:
        draws = Filters(top_p=repair.top_p)
        plan = Settings(
            Ancestral(),
            grid("uniform", repair.steps)[-repair.last - 1 :],
            draws if repair.nucleus else NO_FILTERS,
            repair.final,
            draws,
            seed=derive_seed(seed, "repair"),
            batch_size=batch_size,
            stop=False,
        )
        return walk(denoiser, process, plan, rows, watch, follow=False).tokens
    parts = []
    for start in range(0, len(rows.z), batch_size):
        parts.append(_one_pass(denoiser, repair, rows.z[start : start + batch_size]))
        watch(len(parts[-1]))
    done = torch.cat(parts) if parts else rows.z
    return (done if rows.frozen is None else torch.where(rows.frozen, rows.z, done)).cpu()


@torch.no_grad()
def _one_pass(denoiser: Denoiser, repair: Repair, z: Tensor) -> Tensor:
    """The argmax wherever the token is so unlikely beside it, all taken for z_t at t = strength."""
    assert repair.threshold is not None
    t = torch.full((len(z),), repair.strength, dtype=torch.float64, device=z.device)
    parts = groups(len(z), z.shape[1], None, z.device, None)
    top = Evaluation(denoiser, parts, z, t, NO_FILTERS).top()
    doubtful = top.log_p_z < top.log_p[..., 0] + math.log(repair.threshold)
    return torch.where(doubtful, top.tokens[..., 0], z)
