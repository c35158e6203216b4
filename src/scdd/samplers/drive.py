"""The only loop. It yields frames; the terminal, the trace, the metrics and the server all read the same ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor

from scdd.core import CLEAN, Levels, Transition
from scdd.core.denoiser import Denoiser
from scdd.core.errors import UserError
from scdd.core.rng import CounterRNG
from scdd.ops import NO_FILTERS, Filters
from scdd.processes.base import Process
from scdd.samplers.base import Context, Sampler, Tokens
from scdd.samplers.execute import carry_out, check_final, expected_moves, finalised
from scdd.samplers.grids import Grid, checked
from scdd.samplers.network import Evaluation, Group, groups

KEPT, UNMASKED, CORRECTED, REMASKED = 0, 1, 2, 3
KINDS = ("kept", "unmasked", "corrected", "remasked")
"""What happened to a position, by number: a mask became a token, a token became another token, a token became a mask."""


class Frame(NamedTuple):
    """The text after a step, and what moved. Tensors stay where the network lives: reading one may wait for it."""

    step: int  # 1 … steps
    steps: int
    t: float
    s: float
    tokens: Tensor  # [B, L] int64
    moved: Tensor  # [B, L] int8, see KINDS
    log_p: (
        Tensor  # [B, L] float32: log x_θ of the token as of this step; NaN where noise was drawn, −∞ at masks
    )
    counts: Tensor  # [B, 3] int64: positions unmasked, corrected and remasked so far
    nfe: Tensor  # [B] int64: network evaluations so far


class Step(NamedTuple):
    """One line of the plan."""

    t: float
    s: float
    last: bool = False
    polishing: bool = False


@torch.no_grad()
def drive(
    denoiser: Denoiser,
    process: Process | None,
    sampler: Sampler,
    grid: Sequence[float],
    z: Tensor,
    *,
    source: CounterRNG,
    frozen: Tensor | None = None,
    lengths: Sequence[int] | None = None,
    filters: Filters = NO_FILTERS,
    final: str = "ancestral",
    draws: Filters | None = None,
    tolerance: float | None = None,
    record: bool = True,
    together: int | None = None,
) -> Iterator[Frame]:
    """Walk z [B, L] at time grid[0] back to clean text; a frame a step, or with `record=False` the last one only.

    `frozen` [B, L] positions and those at or beyond a row's length never change. `tolerance`: a row takes its final step
    as soon as fewer than this many of its positions are expected to change any more, going by x_θ as it is. `draws`
    filters the drawn tokens otherwise than x_θ(z_t) (default: alike): a correction may want the whole x_θ to doubt a
    token, and its nucleus to replace it. See
    `execute.FINALS` for `final` and `network` for `together`.
    """
    run = _Run(
        denoiser,
        process,
        sampler,
        checked(grid),
        z,
        source,
        frozen,
        lengths,
        filters,
        draws,
        final,
        tolerance,
        together,
    )
    frame = None
    for index in range(len(run.plan)):
        frame = run.advance(index, record)
        if record:
            yield frame
        if run.ended():
            break
    if frame is None:  # final "none" of a single step: nothing was evaluated and nothing moved
        yield run.unmoved()
    elif not record:
        yield frame


class _Run:
    """A walk under way: the tokens, what is known of them, and who has finished."""

    def __init__(
        self,
        denoiser: Denoiser,
        process: Process | None,
        sampler: Sampler,
        grid: Grid,
        z: Tensor,
        source: CounterRNG,
        frozen: Tensor | None,
        lengths: Sequence[int] | None,
        filters: Filters,
        draws: Filters | None,
        final: str,
        tolerance: float | None,
        together: int | None,
    ) -> None:
        sampler.check(process)
        check_final(final)
        self.denoiser, self.process, self.sampler = denoiser, process, sampler
        self.source, self.filters, self.draws = source, filters, draws or filters
        self.final, self.tolerance = final, tolerance
        self.z, (batch, length) = z, z.shape
        self.lengths = [length] * batch if lengths is None else list(lengths)
        columns = torch.arange(length, device=z.device)
        self.free = columns < torch.tensor(self.lengths, device=z.device)[:, None]
        if frozen is not None:
            self.free = self.free & ~frozen
        self.groups = groups(batch, length, lengths, z.device, together)
        self.memory: dict[str, Any] = {}
        self.log_p = torch.full(z.shape, torch.nan, device=z.device)
        self.born = self.log_p
        self.counts = torch.zeros((batch, 3), dtype=torch.int64, device=z.device)
        self.nfe = torch.zeros(batch, dtype=torch.int64, device=z.device)
        self.done = torch.zeros(batch, dtype=torch.bool, device=z.device)
        self.may_end = sampler.finishes or tolerance is not None
        times = sampler.times(grid, process, self.free)
        self.plan = _plan(times, final, sampler.rounds)
        self._check_tolerance()
        self.levels = self._levels(times)

    def _check_tolerance(self) -> None:
        if self.tolerance is None:
            return
        if self.sampler.name != "ancestral":
            raise UserError(
                f"tolerance stops by the process's own posterior, which the sampler {self.sampler.name} does not follow: "
                "leave it out, or use sampler ancestral."
            )
        if not self.tolerance > 0.0:
            raise UserError(
                f"tolerance is {self.tolerance}: give an expected number of moves above 0, such as 0.5."
            )

    def _levels(self, times: Grid) -> list[Levels]:
        """The levels at all times, computed once; the last are those of clean data, wherever the schedule ends."""
        clean = Levels(*(field.to(self.z.device) for field in CLEAN))
        if self.process is None:
            return [clean] * len(times)
        at = self.process.levels(torch.tensor(times, dtype=torch.float64))
        at = Levels(*(field.to(self.z.device) for field in at))
        return [*(Levels(*(field[i] for field in at)) for i in range(len(times) - 1)), clean]

    def advance(self, index: int, look: bool) -> Frame:
        """Take step `index` of the plan."""
        step = self.plan[index]
        here = min(index, len(self.levels) - 1)
        ctx = self._context(index, step, self.levels[here], self.levels[min(index + 1, len(self.levels) - 1)])
        stopping = self._stopping(ctx, step)
        decided = self.sampler.step(self.z, ctx)
        if step.last or stopping is not None:
            decided = finalised(self.final, self.z, decided, ctx, None if step.last else stopping)
        new = carry_out(self.z, decided, ctx) if isinstance(decided, Transition) else decided
        frame = self._record(index, step, new, ctx, look)
        for rows in (ctx.finished, stopping):
            if rows is not None:
                self.done = self.done | rows
                self.free = self.free & ~self.done[:, None]
        return frame

    def _context(self, index: int, step: Step, at_t: Levels, at_s: Levels) -> Context:
        active = self._active()

        def evaluate() -> Evaluation:
            self._count()
            t = torch.full((self.z.shape[0],), step.t, dtype=torch.float64, device=self.z.device)
            return Evaluation(self.denoiser, active, self.z, t, self.filters)

        return Context(
            denoiser=self.denoiser,
            process=self.process,
            filters=self.filters,
            draws=self.draws,
            source=self.source,
            evaluate=evaluate,
            free=self.free,
            born=self.born,
            count=self._count,
            step=index + 1,
            steps=len(self.plan),
            at_t=at_t,
            at_s=at_s,
            polishing=step.polishing,
            memory=self.memory,
            lengths=self.lengths,
        )

    def _count(self) -> None:
        self.nfe = self.nfe + (~self.done).to(torch.int64)

    def _active(self) -> tuple[Group, ...]:
        """The groups in which some row still moves; only looked at where rows can end, since looking waits."""
        if not self.may_end:
            return self.groups
        done = self.done.tolist()
        return tuple(group for group in self.groups if not all(done[group.rows]))

    def _stopping(self, ctx: Context, step: Step) -> Tensor | None:
        """Rows that are as good as finished; their step goes all the way, so ctx.at_s becomes theirs."""
        if self.tolerance is None or step.last or step.polishing:
            return None
        towards, ctx.at_s = ctx.at_s, self.levels[-1]
        jump = self.sampler.step(self.z, ctx)
        assert isinstance(jump, Transition)
        stopping = (expected_moves(self.z, jump, ctx) < self.tolerance) & ~self.done
        ctx.at_s = Levels(
            *(torch.where(stopping, a, b) for a, b in zip(self.levels[-1], towards, strict=True))
        )
        if self.final == "none":  # such a row ends as it stands
            ctx.free = ctx.free & ~stopping[:, None]
        return stopping

    def _record(self, index: int, step: Step, new: Tokens, ctx: Context, judge: bool) -> Frame:
        """Take over the new tokens. Those that stay are judged anew if somebody looks, or if it costs nothing."""
        before, after = self.z, torch.where(ctx.free, new.tokens, self.z)
        was, now = before != ctx.vocab.mask_id, after != ctx.vocab.mask_id
        changed = after != before
        moved = torch.where(now, torch.where(was, CORRECTED, UNMASKED), REMASKED) * changed
        self.counts = self.counts + torch.stack([(moved == kind).sum(1) for kind in (1, 2, 3)], dim=1)
        self.born = torch.where(changed, new.log_p, self.born).to(torch.float32)
        judged = ctx.seen.log_p_z if (judge and ctx.evaluated) or ctx.judged else self.log_p
        self.log_p = torch.where(changed, new.log_p, judged).to(torch.float32)
        self.z = after
        return Frame(
            index + 1,
            len(self.plan),
            step.t,
            step.s,
            after,
            moved.to(torch.int8),
            self.log_p,
            self.counts,
            self.nfe,
        )

    def ended(self) -> bool:
        """Whether every row has finished early."""
        return self.may_end and bool(self.done.all())

    def unmoved(self) -> Frame:
        """A frame of nothing, for a plan without steps."""
        still = torch.zeros(self.z.shape, dtype=torch.int8, device=self.z.device)
        return Frame(0, 0, 0.0, 0.0, self.z, still, self.log_p, self.counts, self.nfe)


def _plan(times: Grid, final: str, rounds: int) -> list[Step]:
    """The steps that `times` ask for, the last one as `final` wants it, and the rounds after it."""
    pairs = list(pairwise(times))
    walk = [Step(t, s) for t, s in pairs[:-1]]
    if final == "none":
        return walk
    return [*walk, Step(*pairs[-1], last=True), *[Step(0.0, 0.0, polishing=True)] * rounds]
