"""Captured steps: the same texts and frames as without, whatever comes between; and nothing in a step that a capture forbids."""

from __future__ import annotations

import copy
import gc
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import scdd
from scdd.core import Head, Transition
from scdd.core.rng import CounterRNG
from scdd.ops.common import NO_FILTERS, Filters
from scdd.ops.head import Draw, HeadStats, reference
from scdd.samplers import prediction, slots
from scdd.samplers.ancestral import Ancestral
from scdd.samplers.base import Context, Model, Sampler, grid
from scdd.samplers.graphs import Replay, StepGraphs
from scdd.samplers.last_pass import argmax
from scdd.samplers.loop import Frame, sample_loop
from scdd.samplers.options import SamplingOptions
from scdd.samplers.plan import SamplingPlan
from scdd.samplers.row_batch import RowBatch
from scdd.samplers.step import StepResult, TokenRows

from .test_row_batch import CASES, NOISY, VOCAB, Patient, Told, alone, asked, fits, model, together, walked

FINALS = ("ancestral", "masks-only", "greedy")


class Rerun:
    """Runs a step again where a GPU would replay it: on the same tensors, which is what a graph does."""

    def __init__(self) -> None:
        self.replays = 0

    def __call__(self, run: Callable[[], None]) -> Replay:
        def replay() -> None:
            self.replays += 1
            run()

        return type("Again", (), {"replay": staticmethod(replay)})()


def frames(m: Model, sampler: Sampler, device: str = "cpu", **how: Any) -> list[Frame]:
    """A walk of five rows of different lengths, three of them at a time."""
    options = SamplingOptions(**{k: how.pop(k) for k in ("final", "tolerance") if k in how})
    filters = how.pop("filters", Filters(top_p=0.9, temperature=0.8))
    plan = SamplingPlan(
        sampler, grid("uniform", 6), filters, options=options, **{"rows_per_forward": 3, "record": True, **how}
    )
    z = torch.full((5, 12), VOCAB.mask_id)
    z[:, 0] = torch.arange(20, 25)
    rows = TokenRows(z.to(device), (z != VOCAB.mask_id).to(device), [12, 9, 12, 7, 4])
    return list(sample_loop(m, plan, rows, CounterRNG(3, range(5), device)))


def equal(some: list[Frame], others: list[Frame]) -> bool:
    """All that they show; of rows that have ended, log x_θ is not looked at any more, or may be."""
    ended = torch.zeros_like(some[0].nfe)
    for one, other in zip(some, others, strict=True):
        going = (one.nfe > ended)[:, None]
        ended = one.nfe
        kept = [each._replace(log_p=torch.where(going, each.log_p, 0.0).nan_to_num(9.0)) for each in (one, other)]
        for a, b in zip(*kept, strict=True):
            if not (torch.equal(a, b) if isinstance(a, Tensor) and isinstance(b, Tensor) else a == b):
                return False
    return True


@pytest.mark.parametrize("case", CASES)
def test_captured_steps_are_the_steps(case: str) -> None:
    """Every frame, bit by bit; of the second walk too, which begins with what the first one captured."""
    process, sampler = CASES[case]
    again = Rerun()
    plain = model(process)
    with_graphs = replace(plain, graphs=StepGraphs(again))
    for final, more in [
        *((final, {}) for final in FINALS),
        ("greedy", {"tolerance": 3.0}),
        ("none", {"last_pass": argmax}),
    ]:
        how = "tolerance" if "tolerance" in more else "pass" if more else "plain"
        if fits(sampler, how):
            wanted = frames(plain, sampler, final=final, **more)
            for _ in range(2 if final == "greedy" else 1):
                assert equal(frames(with_graphs, sampler, final=final, **more), wanted)
    assert again.replays > 10


@pytest.mark.parametrize("case", ["scdd", "p2", "threshold", "gidd-correct"])
def test_rows_join_captured_batches(case: str) -> None:
    """Rows that come and go, with temperatures of their own, move in and out of the captured tensors."""
    process, sampler = CASES[case]
    again, plain = Rerun(), model(process)
    asks = asked(sampler, "greedy", heats=(0.5, 1.0, 1.7), rows_per_forward=4)
    wanted = together(plain, asks, width=16)
    with_graphs = replace(plain, graphs=StepGraphs(again))
    for _ in range(3):
        assert together(with_graphs, asks, width=16) == wanted
    assert again.replays
    few = together(plain, asks, width=16, fewer=(1, 2))
    for _ in range(3):
        assert together(with_graphs, asks, width=16, fewer=(1, 2)) == few


def test_joining_and_leaving_move_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch of a fixed width stays in its tensors while as many places do: rows are written into free ones, walks that are known
    bring no table, and fewer rows wait a while before they move."""
    moves, sent = Counter[str](), list[int]()
    for name in ("take", "lend", "give_back", "join"):
        whole = getattr(slots.SlotTensors, name)

        def counted(self: Any, *args: Any, _name: str = name, _whole: Any = whole) -> Any:
            moves[_name] += 1
            return _whole(self, *args)

        monkeypatch.setattr(slots.SlotTensors, name, counted)
    send = slots.send
    monkeypatch.setattr(slots, "send", lambda here, there: (sent.append(len(here)), send(here, there)))
    m = replace(model(NOISY), graphs=StepGraphs(Rerun()))
    plan = asked(Ancestral(), "ancestral", rows_per_forward=8)[0].plan
    batch, number = RowBatch(m, plan, 16, (1, 4), patience=3), 0

    def join(count: int) -> list[Any]:
        nonlocal number
        number += count
        numbers = CounterRNG(0, range(number, number + count))
        return batch.add(TokenRows(torch.full((count, 9), VOCAB.mask_id)), numbers, plan)

    join(5)
    for _ in range(20):  # two or three come and go with every step
        batch.step()
        gone = [row for row in batch.rows if row.ended][:3] or batch.rows[:2]
        batch.remove([*gone, *(row for row in batch.rows if row.ended)])
        join(max(0, 6 - len(batch.rows)))
    assert moves["lend"] == 1
    assert moves["take"] == 0
    assert moves["join"] == number > 30
    assert sent.count(len(plan.times) - 1) == 2, "the steps of one walk, once"
    batch.remove(batch.rows[2:])
    fresh = [row for row in batch.rows if row.taken < 1] or join(1)
    rooms = []
    batch.remove([row for row in batch.rows if row not in fresh])
    while batch.rows and not any(row.ended for row in batch.rows):
        batch.step()
        rooms.append(batch.room.rows)
    assert rooms == [8, 8, 8, *[len(fresh)] * (len(rooms) - 3)]
    assert len(rooms) > 3


def test_tables_make_room_for_other_walks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of more walks than the tables hold: those that nobody uses go, and if that is not enough larger tables are made."""
    monkeypatch.setattr("scdd.samplers.graphs.STEPS", 16)
    plain = model(NOISY)
    asks = asked(Ancestral(), "ancestral", rows_per_forward=4)
    many = []
    for i, steps in enumerate((5, 3, 4, 7, 9, 11, 2, 6, 8, 12)):
        ask = asks[i % len(asks)]
        many.append(replace(ask, joins=2 * i, plan=replace(ask.plan, times=grid("uniform", steps), seed=i)))
    wanted = together(plain, many, width=16)
    with_graphs = replace(plain, graphs=StepGraphs(Rerun()))
    for _ in range(2):
        assert together(with_graphs, many, width=16) == wanted
    assert {shape.now.tables[0].shape[0] for shape in with_graphs.graphs._shapes.values()} > {16}  # type: ignore[union-attr]


def test_rows_that_move_in_find_room_between_the_walks_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables with room for all steps of the rows that are here, but not in one piece: walks lie where they lay before."""
    monkeypatch.setattr("scdd.samplers.graphs.STEPS", 32)
    plain = model(NOISY)
    first, *_ = asked(Ancestral(), "ancestral", rows_per_forward=4)
    # when the last comes, the second has gone: 3 and 9 are free, and 12 are wanted
    walks = [(0, 9), (0, 3), (0, 11), (4, 12)]
    many = [
        replace(first, joins=joins, sample=i, plan=replace(first.plan, times=grid("uniform", steps)))
        for i, (joins, steps) in enumerate(walks)
    ]
    wanted = together(plain, many, width=16)
    with_graphs = replace(plain, graphs=StepGraphs(Rerun()))
    assert together(with_graphs, many, width=16) == wanted
    assert {shape.now.tables[0].shape[0] for shape in with_graphs.graphs._shapes.values()} == {32}  # type: ignore[union-attr]


def test_rows_that_could_not_join_are_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Something fails while the second of three is written down, or while the steps of a walk are sent: the batch is as it was."""
    plain = model(NOISY)
    m = replace(plain, graphs=StepGraphs(Rerun()))
    first, _, other, *_ = asked(Ancestral(), "ancestral", rows_per_forward=8)  # of five steps, and of four
    batch, three = RowBatch(m, first.plan, 16), TokenRows(torch.full((3, 9), VOCAB.mask_id))
    batch.add(first.rows, first.rng)
    batch.step()
    whole, calls = slots.SlotTensors.join, iter([True, False])

    def join(self: Any, row: Any, values: Any) -> bool:
        return whole(self, row, values if next(calls, True) else {**values, "tokens": values["tokens"][:3]})

    with monkeypatch.context() as broken:
        broken.setattr(slots.SlotTensors, "join", join)
        with pytest.raises(ValueError, match="broadcast"):
            batch.add(three, CounterRNG(0, range(3)), first.plan)
    batch.step()
    with monkeypatch.context() as broken:
        broken.setattr(slots, "send", lambda here, there: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            batch.add(three, CounterRNG(0, range(3)), other.plan)
    batch.add(other.rows, other.rng, other.plan)
    for _ in range(3):
        seen = batch.step()
    assert [row.taken for row in batch.rows] == [5, 3]
    assert len(batch.slots._free) == batch.slots.capacity - 2
    for row, ask, taken in ((0, first, 5), (1, other, 3)):
        assert seen.tokens[row, : len(ask.z)].tolist() == alone(plain, ask)[taken - 1][4]


def test_batches_that_share_a_shape_join_and_leave_in_turn() -> None:
    """Each takes its rows along when the other comes, those that have not taken a step included."""
    plain = model(NOISY)
    asks = asked(Ancestral(), "greedy", heats=(0.5, 1.0, 1.7), rows_per_forward=4)
    sets = [asks, asks[1:], asks[2:]]
    wanted = [together(plain, each, width=16) for each in sets]
    with_graphs = replace(plain, graphs=StepGraphs(Rerun(), most=1))
    found = [[Told() for _ in each] for each in sets]
    batches = [RowBatch(with_graphs, asks[0].plan, 16) for _ in sets]
    for _ in zip_longest(*(walked(*each) for each in zip(batches, sets, found, strict=True))):
        pass
    assert found == wanted


def test_batches_that_take_turns_keep_their_rows() -> None:
    """Two walks of one shape, a step each in turn, and more shapes than are kept."""
    plain, again = model(NOISY), Rerun()
    with_graphs = replace(plain, graphs=StepGraphs(again, most=1))
    alone = [
        frames(plain, Ancestral(), seed=i, final=final) for i, final in enumerate(("ancestral", "ancestral", "greedy"))
    ]

    def started(final: str) -> Iterator[Frame]:
        plan = SamplingPlan(
            Ancestral(), grid("uniform", 6), Filters(top_p=0.9, temperature=0.8), record=True, rows_per_forward=3,
            options=SamplingOptions(final=final),  # type: ignore[arg-type]
        )  # fmt: skip
        z = torch.full((5, 12), VOCAB.mask_id)
        z[:, 0] = torch.arange(20, 25)
        return sample_loop(
            with_graphs, plan, TokenRows(z, z != VOCAB.mask_id, [12, 9, 12, 7, 4]), CounterRNG(3, range(5))
        )

    walks = [started(final) for final in ("ancestral", "ancestral", "greedy")]
    found = [list(each) for each in zip(*zip(*walks, strict=True), strict=True)]
    for mine, wanted in zip(found, alone, strict=True):
        assert equal(mine, wanted)
    with_graphs.graphs.clear()  # type: ignore[union-attr]
    assert equal(frames(with_graphs, Ancestral()), frames(plain, Ancestral()))


def test_no_batch_of_another_thread_comes_between_a_step_and_a_look_at_its_rows() -> None:
    """It would take over the tensors that the rows are in."""
    came: list[bool] = []

    class Interrupted(StepGraphs):
        other: RowBatch | None = None

        def step(self, batch: RowBatch, phases: tuple[int, ...]) -> StepResult:
            seen = super().step(batch, phases)
            if self.other is not None and batch is not self.other:
                thread = threading.Thread(target=self.other.step, daemon=True)
                thread.start()
                thread.join(0.2)
                came.append(not thread.is_alive())
                self.other = None
            return seen

    graphs = Interrupted(Rerun())
    m = replace(model(NOISY), graphs=graphs)
    plan = SamplingPlan(Ancestral(), grid("uniform", 6), options=SamplingOptions(tolerance=0.1))
    first, second = RowBatch(m, plan), RowBatch(m, plan)
    for batch in (first, second):
        batch.add(TokenRows(torch.full((1, 8), VOCAB.mask_id)), CounterRNG(0, [0]))
    graphs.other = second
    first.step()
    assert came == [False]


def test_what_a_graph_reads_outlives_the_network_s_use_of_it() -> None:
    """Longer rows make a network replace its tables of positions; graphs of shorter rows go on reading the old ones."""
    again, plain = Rerun(), model(NOISY)
    with_graphs = replace(plain, graphs=StepGraphs(again))
    frames(with_graphs, Ancestral())
    network: Any = plain.denoiser
    old = weakref.ref(network.rotary.cos)
    network.rotary.grow(2 * len(network.rotary.cos))
    gc.collect()
    assert again.replays
    assert old() is not None
    with_graphs.graphs.clear()  # type: ignore[union-attr]
    gc.collect()
    assert old() is None


def test_frames_are_kept_as_they_were() -> None:
    """A frame is a copy: later steps and walks do not write over it."""
    m = replace(model(NOISY), graphs=StepGraphs(Rerun()))
    shown = [(frame, frame.tokens.clone()) for frame in frames(m, Ancestral())]
    frames(m, Ancestral(), seed=5)
    assert all(torch.equal(frame.tokens, before) for frame, before in shown)
    assert len({tuple(frame.tokens.reshape(-1).tolist()) for frame, _ in shown}) == len(shown)


@dataclass
class Unfrozen(Sampler):
    """By row, and without a hash."""

    by_row: ClassVar[bool] = True

    def step(self, z_t: Tensor, ctx: Context) -> Transition:
        return Ancestral().step(z_t, ctx)


def test_what_is_not_captured_says_why() -> None:
    m, ask = model(NOISY), asked(Patient(), "ancestral")[0]
    graphs = StepGraphs()
    for plan, reason in [
        (ask.plan, "one step for all rows"),
        (replace(ask.plan, sampler=Ancestral()), "no GPU"),
        (replace(ask.plan, sampler=Unfrozen()), "frozen dataclass"),
    ]:
        batch = RowBatch(m, plan)
        batch.add(ask.rows, ask.rng)
        assert reason in str(graphs.why_not(batch))


def test_a_network_that_cannot_be_captured_is_walked() -> None:
    plain = model(NOISY)

    def refuses(run: Callable[[], None]) -> Replay:
        raise RuntimeError("operation not permitted when stream is capturing")

    assert equal(frames(replace(plain, graphs=StepGraphs(refuses)), Ancestral()), frames(plain, Ancestral()))


# -- what a capture forbids, seen without a GPU ------------------------------------------------------------------------

HOST = {
    "_local_scalar_dense", "nonzero", "nonzero_static", "is_nonzero", "equal", "masked_select", "unique_dim", "_unique2", "unique_consecutive",
    "lift_fresh", "lift_fresh_copy", "repeat_interleave", "bincount",
}  # fmt: skip


class Watch(TorchDispatchMode):
    """Refuses what waits for the host or takes data from it, and counts kernels."""

    def __init__(self) -> None:
        super().__init__()
        self.kernels: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        assert name not in HOST, f"{name} waits for the host, or takes data from it"
        picks = [
            x
            for x in (args[1] if len(args) > 1 and name in ("index", "index_put", "index_put_") else [])
            if x is not None
        ]
        assert not any(x.dtype in (torch.bool, torch.uint8) for x in picks), f"{name} by a mask has no size of its own"
        made = func(*args, **(kwargs or {}))
        if not (
            func.is_view or name in ("empty", "empty_like", "empty_strided", "new_empty", "detach", "_unsafe_view")
        ):
            self.kernels[name] += 1
        return made


def dense_stats(hidden: Tensor, head: Head, z_t: Tensor, filters: Filters = NO_FILTERS) -> HeadStats:
    """What the kernels do in their own way, by definition: nothing in it looks at data from the host."""
    log_total, log_p_z = reference.head_stats(hidden, head, z_t, filters)
    return HeadStats(log_total.float(), log_p_z.float(), None)


def dense_draw(
    hidden: Tensor, head: Head, moves: Tensor, u: Tensor, filters: Filters, z_t: Tensor, logits: None
) -> Draw:
    tokens, log_p = reference.redraw(hidden, head, u, z_t, filters)
    return Draw(torch.where(moves, tokens, -1), torch.where(moves, log_p.float(), -torch.inf))


def watched(case: str, monkeypatch: pytest.MonkeyPatch, **how: Any) -> Counter[str]:
    """All steps of a walk but the first under watch; the kernels of one."""
    monkeypatch.setattr(prediction, "head_stats", dense_stats)
    monkeypatch.setattr(prediction, "redraw", dense_draw)
    process, sampler = CASES[case]
    counts: list[Counter[str]] = []

    def capture(run: Callable[[], None]) -> Replay:
        def replay() -> None:
            with Watch() as watch:
                run()
            counts.append(watch.kernels)

        return type("Again", (), {"replay": staticmethod(replay)})()

    m = replace(model(process), graphs=StepGraphs(capture))
    for _ in range(2):
        frames(m, sampler, rows_per_forward=5, **how)
    assert len(counts) > 3
    return counts[0]


@pytest.mark.parametrize("case", CASES)
def test_nothing_in_a_step_waits_for_the_host(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    watched(case, monkeypatch, final="greedy")


def test_nor_in_other_kinds_of_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    watched("scdd", monkeypatch, tolerance=2.0)
    watched("gidd", monkeypatch, last_pass=argmax)
    watched("scdd", monkeypatch, filters=Filters(temperature=0.5), draw_filters=Filters(0.5))


def test_the_watch_sees_what_it_is_for() -> None:
    x = torch.arange(4)
    for forbidden in (
        lambda: x.max().item(),
        lambda: x[x > 1],
        lambda: torch.tensor([1.0]) + x,
        lambda: (x > 1).nonzero(),
    ):
        with pytest.raises(AssertionError, match=r"host|mask"), Watch():
            forbidden()


def test_bookkeeping_takes_few_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each costs about two microseconds in a replay: what is not the network's or the head's is counted here."""
    whole = watched("scdd", monkeypatch)
    m, z = model(NOISY), torch.full((5, 12), VOCAB.mask_id)
    with torch.no_grad(), Watch() as network:
        hidden = m.denoiser.hidden(z, torch.full((5,), 0.5, dtype=torch.float64))
    flat, tokens = hidden.flatten(0, 1), z.reshape(-1)
    filters, moves = Filters(top_p=0.9, temperature=torch.full((60,), 0.8, dtype=torch.float64)), tokens == 0
    with torch.no_grad(), Watch() as head:
        dense_stats(flat, m.denoiser.head, tokens, filters)
        dense_draw(flat, m.denoiser.head, moves, torch.rand(60).double(), filters, tokens, None)
    rest = whole - network.kernels - head.kernels
    assert rest.total() <= 185, rest  # of which a GPU's own kernel saves seventy (`ops.outcome`)


# -- on a GPU -----------------------------------------------------------------------------------------------------------


def on_gpu(case: str) -> Model:
    plain = model(CASES[case][0])
    network, head = copy.deepcopy(plain.denoiser), copy.deepcopy(plain.quality)
    return replace(plain, denoiser=network.to("cuda", torch.bfloat16), quality=head.to("cuda", torch.bfloat16))  # type: ignore[union-attr]


def captured_in(m: Model) -> int:
    assert m.graphs is not None
    return sum(
        isinstance(each, torch.cuda.CUDAGraph) for shape in m.graphs._shapes.values() for each in shape.graphs.values()
    )


@pytest.mark.gpu
@pytest.mark.parametrize("case", CASES)
def test_replays_are_the_steps(case: str) -> None:
    """Every frame, bit by bit, in groups of three and all together, with every final step."""
    plain, sampler = on_gpu(case), CASES[case][1]
    with_graphs = replace(plain, graphs=StepGraphs())
    for final, more in [
        *((final, {}) for final in FINALS),
        ("greedy", {"tolerance": 3.0}),
        ("none", {"last_pass": argmax}),
    ]:
        if fits(sampler, "tolerance" if "tolerance" in more else "pass" if more else "plain"):
            for together_ in (3, None):
                wanted = frames(plain, sampler, "cuda", final=final, rows_per_forward=together_, **more)
                for _ in range(2):
                    found = frames(with_graphs, sampler, "cuda", final=final, rows_per_forward=together_, **more)
                    assert equal(found, wanted), (final, more, together_)
    assert captured_in(with_graphs) > 2
    assert not any(shape.broken for shape in with_graphs.graphs._shapes.values())  # type: ignore[union-attr]


@pytest.mark.gpu
@pytest.mark.parametrize("case", ["scdd", "p2", "gidd-correct"])
def test_rows_join_replayed_batches(case: str) -> None:
    """In one shape a row is the same alone and in any company, replayed or not."""
    plain, sampler = on_gpu(case), CASES[case][1]
    with_graphs = replace(plain, graphs=StepGraphs())
    on_host = asked(sampler, "greedy", heats=(0.5, 1.0, 1.7), rows_per_forward=8)
    asks = [replace(ask, z=ask.z.cuda(), frozen=ask.frozen.cuda()) for ask in on_host]
    whole = [together(m, asks, width=16) for m in (plain, with_graphs, with_graphs)]
    assert whole[0] == whole[1] == whole[2]
    assert [together(m, on_host, width=16) for m in (plain, with_graphs)] == whole[:2], "written into places"
    for i, ask in enumerate(asks):
        [lone] = together(with_graphs, [replace(ask, joins=0)], width=16)
        assert [each[4] for each in lone] == [each[4] for each in whole[0][i]]
    few = [together(m, asks, width=16, fewer=(1, 2, 4)) for m in (plain, with_graphs, with_graphs)]
    assert few[0] == few[1] == few[2], "whatever so few rows round to, a replay is the step"


@pytest.mark.gpu
def test_shapes_are_let_go() -> None:
    plain = on_gpu("scdd")
    with_graphs = replace(plain, graphs=StepGraphs(most=2))
    for rows in (1, 2, 3, 4):
        frames(with_graphs, Ancestral(), "cuda", rows_per_forward=rows)
    assert len(with_graphs.graphs._shapes) == 2  # type: ignore[union-attr]
    with_graphs.graphs.clear()  # type: ignore[union-attr]
    wanted = frames(plain, Ancestral(), "cuda", rows_per_forward=2)
    assert equal(frames(with_graphs, Ancestral(), "cuda", rows_per_forward=2), wanted)


@pytest.mark.gpu
def test_changed_weights_are_seen() -> None:
    plain = on_gpu("scdd")
    with_graphs = replace(plain, graphs=StepGraphs())
    before = frames(with_graphs, Ancestral(), "cuda")
    with torch.no_grad():
        for parameter in plain.denoiser.parameters():  # type: ignore[attr-defined]
            parameter.mul_(0.7)
    after = frames(with_graphs, Ancestral(), "cuda")
    assert equal(after, frames(plain, Ancestral(), "cuda"))
    assert not equal(after, before)


@pytest.mark.gpu
def test_the_bundled_model_says_the_same_with_graphs_and_without() -> None:
    lm = scdd.load(device="cuda")
    assert lm.graphs
    how: dict[str, Any] = {"length": 40, "steps": 12, "record": True}
    with_graphs = [lm.generate(3, **how) for _ in range(2)]
    assert captured_in(lm.engine.model)
    lm.graphs = False
    without = lm.generate(3, **how)
    for samples in with_graphs:
        assert [each.text for each in samples] == [each.text for each in without]
        for one, other in zip(samples, without, strict=True):
            assert one.trajectory is not None
            assert other.trajectory is not None
            assert torch.equal(one.trajectory.tokens, other.trajectory.tokens)
