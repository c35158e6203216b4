"""Rows that join at any step: what a row becomes is what it becomes alone, bit for bit, whatever its company."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from typing import Any, ClassVar, get_args

import pytest
import torch
from torch import Tensor

from scdd.core import Transition, Vocab
from scdd.core.rng import CounterRNG
from scdd.evals.measure.walk import Uncorrected
from scdd.models.dit import DiT
from scdd.models.heads import QualityHead
from scdd.models.options import DiTConfig
from scdd.ops.common import Filters
from scdd.processes.autoregressive import Autoregressive
from scdd.processes.base import Process
from scdd.processes.gidd import GIDD
from scdd.processes.mdlm import MDLM
from scdd.processes.scdd import SCDD
from scdd.samplers.ancestral import Ancestral
from scdd.samplers.ar import Ar
from scdd.samplers.base import Context, Model, Sampler, grid
from scdd.samplers.gidd_correct import GiddCorrect
from scdd.samplers.last_pass import argmax
from scdd.samplers.loop import Frame, sample_loop
from scdd.samplers.options import Final, SamplingOptions
from scdd.samplers.plan import SamplingPlan, Walk
from scdd.samplers.remdm import Remdm
from scdd.samplers.row_batch import BatchRow, RowBatch
from scdd.samplers.step import TokenRows
from scdd.samplers.threshold import Threshold
from scdd.schedules.masked import Masked
from scdd.schedules.peaked import Peaked

from .cases import every_sampler

VOCAB = Vocab(30, 9)
NOISY, MASKED = SCDD(VOCAB, Peaked(p_u=0.4)), MDLM(VOCAB, Masked())
OTHER = GIDD(VOCAB, Peaked(p_u=0.4))
CASES: dict[str, tuple[Process, Sampler]] = {
    **every_sampler(NOISY, OTHER, MASKED),
    "threshold": (MASKED, Threshold(0.3)),
    "gidd-correct": (NOISY, GiddCorrect(corrections=4, patience=2)),
    "uncorrected": (OTHER, Uncorrected(Ancestral())),
}
HOW: dict[str, dict[str, Any]] = {
    "plain": {},
    "pass": {"last_pass": argmax},
    "authors": {"last_pass": argmax, "convention": "authors"},
    "tolerance": {"tolerance": 4.0},
    "draws": {"draw_filters": Filters(0.5), "filters": Filters(top_k=6)},
}


@cache
def model(process: Process) -> Model:
    generator = torch.Generator().manual_seed(5)
    network = DiT(DiTConfig(1, 16, 2, time_conditioning=True), VOCAB, generator)
    head = QualityHead(16, generator=generator)
    with torch.no_grad():
        for parameter in (*network.parameters(), *head.parameters()):
            parameter.normal_(0.0, 0.2, generator=generator)
        network.norm.weight.fill_(1.0)  # x_θ neither flat nor certain
        network.embedding.weight.normal_(0.0, 2.0, generator=generator)
        network.modulation.weight.mul_(0.05)
    return Model(network.eval().requires_grad_(False), process, head.requires_grad_(False))


@dataclass(frozen=True)
class Asked:
    """One row, and when it joins."""

    joins: int
    plan: SamplingPlan
    z: Tensor
    frozen: Tensor
    sample: int

    @property
    def rows(self) -> TokenRows:
        return TokenRows(self.z[None], self.frozen[None])

    @property
    def rng(self) -> CounterRNG:
        return CounterRNG(self.plan.seed, [self.sample], self.z.device)


def asked(
    sampler: Sampler, final: str, record: bool = True, heats: tuple[float, ...] = (1.0,), **how: Any
) -> list[Asked]:
    """Rows of different lengths, prompts, steps, grids, starts and seeds."""
    options = SamplingOptions(**{k: how.pop(k) for k in ("tolerance", "convention") if k in how}, final=final)  # type: ignore[arg-type]
    filters = how.pop("filters", Filters(top_p=0.9))
    bends = isinstance(sampler, Remdm) and sampler.variant == "loop"
    found = []
    for i, (joins, length, steps, kind) in enumerate(
        [
            (0, 9, 5, "uniform"),
            (0, 13, 3, "cosine"),
            (2, 13, 4, "uniform"),
            (3, 6, 1, "uniform"),
            (3, 11, 2, "quadratic"),
        ]
    ):
        times = grid(kind, steps, 1.0 if bends or i % 2 == 0 else 0.7)
        heat = replace(filters, temperature=heats[i % len(heats)])
        plan = SamplingPlan(sampler, times, heat, options=options, seed=i, record=record, **how)
        z, frozen = torch.full((length,), VOCAB.mask_id), torch.zeros(length, dtype=torch.bool)
        z[: i + 1], frozen[: i + 1] = torch.arange(20, 21 + i), True
        found.append(Asked(joins, plan, z, frozen, 3 * i))
    return found


Told = list[tuple[Any, ...]]


def told(
    moment: tuple[int, int, float, float], seen: tuple[Tensor, ...], row: int, length: int, record: bool = True
) -> tuple[Any, ...]:
    """All that a frame shows; where nobody looks at every step, log x_θ of standing tokens is what somebody asked for."""
    tokens, moved, log_p, counts, nfe = (x[row] for x in seen)
    bits = log_p[:length].view(torch.int32).tolist() if record else None
    return (*moment, tokens[:length].tolist(), moved[:length].tolist(), bits, counts.tolist(), int(nfe))


def alone(m: Model, ask: Asked) -> Told:
    frames = list(sample_loop(m, ask.plan, ask.rows, ask.rng))
    return [told(frame[:4], frame[4:], 0, len(ask.z), ask.plan.record) for frame in frames]


def together(m: Model, asks: list[Asked], width: int | None = None, fewer: tuple[int, ...] = ()) -> list[Told]:
    """All of them, each joining when it is due; rows that end leave at once."""
    found = [Told() for _ in asks]
    for _ in walked(RowBatch(m, asks[0].plan, width, fewer), asks, found):
        pass
    return found


def walked(batch: RowBatch, asks: list[Asked], found: list[Told]) -> Iterator[None]:
    """The same, stopping after each step."""
    at: dict[int, int] = {}
    waiting, clock = list(enumerate(asks)), 0

    def leave(rows: list[BatchRow]) -> None:
        batch.remove([row for row in rows if row.ended])

    while waiting or batch.rows:
        for i, ask in [each for each in waiting if each[1].joins <= clock]:
            [row] = batch.add(ask.rows, ask.rng, ask.plan)
            at[id(row)] = i
            if row.ended:  # no step at all
                found[i].append(told(row.moment, tuple(x[-1:] for x in batch.standing), 0, len(ask.z), ask.plan.record))
        waiting = [each for each in waiting if each[1].joins > clock]
        leave(batch.rows)
        if batch.rows:
            seen = batch.step()
            for place, row in enumerate(batch.rows):
                i = at[id(row)]
                if asks[i].plan.record or row.ended:
                    found[i].append(told(row.moment, seen, place, len(asks[i].z), asks[i].plan.record))
            leave(batch.rows)
        clock += 1
        yield


def fits(sampler: Sampler, how: str) -> bool:
    own_end = isinstance(sampler, Threshold | GiddCorrect)
    return sampler.name == "ancestral" if how == "tolerance" else not (own_end and how in ("pass", "authors"))


def check_joining(case: str, how: str, final: str, record: bool = True) -> None:
    process, sampler = CASES[case]
    if not fits(sampler, how):
        return
    m, asks = model(process), asked(sampler, final, record, **HOW[how])
    for ask, mixed in zip(asks, together(m, asks), strict=True):
        assert mixed == alone(m, ask), (how, final, record, ask.joins)


@pytest.mark.parametrize("case", CASES)
def test_a_row_that_joins_later_is_what_it_is_alone(case: str) -> None:
    """Tokens, moves, bits of log x_θ, counts and evaluations of every step."""
    check_joining(case, "plain", "ancestral")
    check_joining(case, "plain", "greedy", record=False)
    for i, how in enumerate([*HOW][1:], start=[*CASES].index(case)):
        check_joining(case, how, get_args(Final)[i % 4])


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_joining_whatever_is_asked(case: str) -> None:
    """All of the above with all final steps, with frames and without."""
    for how, final, record in product(HOW, get_args(Final), (True, False)):
        check_joining(case, how, final, record)


@pytest.mark.parametrize("case", ["scdd", "conf", "p2", "threshold", "gidd-correct"])
def test_rows_of_different_temperatures_share_evaluations(case: str) -> None:
    process, sampler = CASES[case]
    m = model(process)
    for final in ("ancestral", "greedy"):
        asks = asked(sampler, final, heats=(0.5, 1.0, 1.7))
        mixed = together(m, asks)
        assert mixed == [alone(m, ask) for ask in asks]
        assert len({token for each in mixed for token in each[-1][4]}) > 8, "texts that say something"
        cold = [
            replace(ask, plan=replace(ask.plan, filters=replace(ask.plan.filters, temperature=0.1))) for ask in asks
        ]
        assert [each[-1][4] for each in together(m, cold)] != [each[-1][4] for each in mixed]


def test_rows_that_are_cancelled_leave_the_others_as_they_are() -> None:
    process, sampler = CASES["gidd-correct"]
    m = model(process)
    asks = asked(sampler, "greedy")[:3]
    batch = RowBatch(m, asks[0].plan)
    rows = [batch.add(ask.rows, ask.rng, ask.plan)[0] for ask in asks]
    batch.step()
    batch.remove([rows[1]])
    found: list[Told] = [[], [], []]
    while batch.rows:
        seen = batch.step()
        for place, row in enumerate(batch.rows):
            which = rows.index(row)
            found[which].append(told(row.moment, seen, place, len(asks[which].z)))
        batch.remove([row for row in batch.rows if row.ended])
    for which in (0, 2):
        assert found[which] == alone(m, asks[which])[1:]
    assert not found[1]


def test_one_evaluation_serves_all_rows() -> None:
    """Together at most as many evaluations as the steps between the first row's coming and the last one's going."""
    m, calls = model(NOISY), []

    class Counted:
        vocab, head = m.denoiser.vocab, m.denoiser.head

        def hidden(self, z_t: Tensor, t: Tensor | None = None, documents: Tensor | None = None) -> Tensor:
            calls.append(None if t is None else t.tolist())
            return m.denoiser.hidden(z_t, t, documents)

    asks = [replace(a, plan=replace(a.plan, rows_per_forward=8)) for a in asked(Ancestral(), "ancestral")]
    together(replace(m, denoiser=Counted()), asks)  # type: ignore[arg-type]
    assert len(calls) == 6
    assert any(len(set(times)) > 2 for times in calls), "rows at different times in one evaluation"


def test_few_rows_take_few_places() -> None:
    """Evaluations have the least number of rows that holds who is there, of those that are allowed."""
    m, sizes = model(NOISY), []

    class Counted:
        vocab, head = m.denoiser.vocab, m.denoiser.head

        def hidden(self, z_t: Tensor, t: Tensor | None = None, documents: Tensor | None = None) -> Tensor:
            sizes.append(len(z_t))
            return m.denoiser.hidden(z_t, t, documents)

    asks = [replace(a, plan=replace(a.plan, rows_per_forward=8)) for a in asked(Ancestral(), "ancestral")]
    found = together(replace(m, denoiser=Counted()), asks, width=16, fewer=(1, 3))  # type: ignore[arg-type]
    assert sizes == [3, 3, 3, 8, 3, 1]
    wanted = together(m, asks, width=16)
    assert [[each[4] for each in row] for row in found] == [[each[4] for each in row] for row in wanted]


def test_a_width_of_ones_own_masks_padding_always() -> None:
    """What a GPU needs for rows of mixed lengths: then x_θ depends on the width, and not on the company."""
    asks = [replace(a, plan=replace(a.plan, rows_per_forward=4)) for a in asked(Ancestral(), "ancestral")]
    m = model(NOISY)
    whole = together(m, asks, width=16)
    for i, ask in enumerate(asks):
        [lone] = together(m, [replace(ask, joins=0)], width=16)
        assert [each[4] for each in lone] == [each[4] for each in whole[i]]


def test_who_may_join() -> None:
    m, asks = model(NOISY), asked(Ancestral(), "ancestral")
    batch = RowBatch(m, asks[0].plan)
    assert all(batch.takes(ask.plan) for ask in asks), "other times, starts and seeds"
    hot = replace(asks[0].plan, filters=replace(asks[0].plan.filters, temperature=2.0))
    assert batch.takes(hot)
    for other in (
        replace(asks[0].plan, filters=Filters(top_p=0.5)),
        replace(asks[0].plan, sampler=GiddCorrect()),
        replace(asks[0].plan, last_pass=argmax),
        replace(asks[0].plan, options=SamplingOptions(final="greedy")),
    ):
        assert not batch.takes(other)
        with pytest.raises(ValueError, match="cannot join"):
            batch.add(asks[0].rows, asks[0].rng, other)


@dataclass(frozen=True)
class Patient(Sampler):
    """A sampler of one's own, which sees one step for all rows."""

    def step(self, z_t: Tensor, ctx: Context) -> Transition:
        move = Ancestral().step(z_t, ctx)
        if ctx.step.number > 2:  # an `if` that columns would break
            return move
        return Transition(
            *(torch.where(z_t == ctx.vocab.mask_id, a, b) for a, b in zip(move, (1.0, 0.0, 0.0, 0.0), strict=True))
        )


def test_samplers_of_ones_own_walk_with_those_they_began_with() -> None:
    asks, m = asked(Patient(), "ancestral"), model(NOISY)
    batch = RowBatch(m, asks[0].plan)
    assert batch.takes(asks[0].plan)
    batch.add(asks[0].rows, asks[0].rng)
    assert not batch.takes(asks[0].plan)
    assert [told(f[:4], f[4:], 0, 9) for f in sample_loop(m, asks[0].plan, asks[0].rows, asks[0].rng)][-1][0] == 5
    causal = replace(m, process=Autoregressive(VOCAB))
    assert not RowBatch(causal, replace(asks[0].plan, sampler=Ar()))._by_row


def test_a_walks_table_lies_where_its_levels_are() -> None:
    """One for all rows is brought to the device before the table is made: times and levels must be together."""
    m, ask = model(NOISY), asked(Patient(), "ancestral")[0]
    walk = Walk.of(m, ask.plan, torch.ones((1, 4), dtype=torch.bool))
    reals, _ = walk.to(torch.device("meta")).table()
    assert reals.device.type == "meta"
    assert reals.shape == walk.table()[0].shape


@pytest.mark.gpu
def test_samplers_that_see_one_step_for_all_rows_walk_on_a_gpu() -> None:
    m, ask = model(NOISY), asked(Patient(), "ancestral")[0]
    there = replace(m, denoiser=copy.deepcopy(m.denoiser).to("cuda"))  # type: ignore[attr-defined]
    on_gpu = replace(ask, z=ask.z.cuda(), frozen=ask.frozen.cuda())
    found, wanted = ([frame.tokens.cpu() for frame in sample_loop(net, each.plan, each.rows, each.rng)]
                     for net, each in ((there, on_gpu), (m, ask)))  # fmt: skip
    assert len(found) == len(wanted) == 5
    assert torch.equal(found[0], wanted[0])  # it waits
    assert not (found[-1] == VOCAB.mask_id).any()


@dataclass(frozen=True)
class Halting(Sampler):
    """A sampler of one's own that goes row by row and remembers more than a number a row: it moves every other step."""

    by_row: ClassVar[bool] = True

    def memory(self, rows: Tensor) -> dict[str, Tensor]:
        return {"turns": torch.zeros((len(rows), 2), dtype=torch.int64, device=rows.device)}

    def step(self, z_t: Tensor, ctx: Context) -> Transition:
        turns = ctx.memory["turns"]
        ctx.memory["turns"] = turns + torch.tensor([1, 2])
        goes = (turns[:, :1] % 2 == 0) & (turns[:, 1:] == 2 * turns[:, :1])
        move = Ancestral().step(z_t, ctx)
        return Transition(*(torch.where(goes, a, b) for a, b in zip(move, (1.0, 0.0, 0.0, 0.0), strict=True)))


def test_what_a_sampler_remembers_of_a_row_stays_that_rows() -> None:
    m, asks = model(NOISY), asked(Halting(), "greedy")
    assert together(m, asks) == [alone(m, ask) for ask in asks]


def test_a_row_at_its_end_must_leave() -> None:
    m, ask = model(NOISY), asked(Ancestral(), "ancestral")[3]
    batch = RowBatch(m, ask.plan)
    batch.add(ask.rows, ask.rng)
    batch.step()
    with pytest.raises(ValueError, match="remove"):
        batch.step()


class Asking(DiT):
    """A DiT that counts the evaluations, and may hide that it looks at tokens alone."""

    asked = 0
    hides = False

    @property
    def looks_at_tokens_alone(self) -> bool:
        return not self.hides and super().looks_at_tokens_alone

    def hidden(self, *given: Any, **more: Any) -> Tensor:
        self.asked += 1
        return super().hidden(*given, **more)


@pytest.mark.parametrize("name", CASES)
def test_rows_that_did_not_change_are_not_evaluated_again_and_become_the_same(name: str) -> None:
    """Few tokens, many steps, three rows of their own lengths: every frame has the same bits, for fewer evaluations."""
    process, sampler = CASES[name]
    z = torch.full((3, 7), VOCAB.mask_id)
    z[:, 0], z[1, 2:6] = 3, torch.tensor([1, 4, 5, 2])
    plan = SamplingPlan(sampler, grid("uniform", 24), Filters(top_p=0.9), options=SamplingOptions(), record=True)

    def walked_by(conditioned: bool, hides: bool) -> tuple[list[Frame], int]:
        network = Asking(DiTConfig(1, 16, 2, time_conditioning=conditioned), VOCAB)
        network.load_state_dict(model(process).denoiser.state_dict())  # type: ignore[attr-defined]
        network.eval().requires_grad_(False).hides = hides
        rows = TokenRows(z, z == 3, [7, 6, 5])
        frames = list(sample_loop(replace(model(process), denoiser=network), plan, rows, CounterRNG(3, range(3))))
        return frames, network.asked

    (every, all_asked), (found, asked), (_, conditioned) = (
        walked_by(False, True),
        walked_by(False, False),
        walked_by(True, False),
    )
    assert [frame[:4] for frame in found] == [frame[:4] for frame in every]
    for one, other in zip(found, every, strict=True):
        assert all(torch.equal(a.nan_to_num(7.0), b.nan_to_num(7.0)) for a, b in zip(one[4:], other[4:], strict=True))
    assert asked < all_asked or name == "threshold"  # which moves something in each step
    assert conditioned == int(found[-1].nfe.sum()) or name == "informed"  # which asks twice a step
