"""Rows go through the network together only where that changes no bit, and only those that the network has something new to say of."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from scdd.core.rng import CounterRNG
from scdd.models.dit import DiT
from scdd.models.options import DiTConfig
from scdd.ops.common import Filters
from scdd.samplers.base import Model, grid
from scdd.samplers.loop import Frame, sample_loop
from scdd.samplers.options import SamplingOptions
from scdd.samplers.packing import LONGEST, MOST, SIZES, Packing, joined
from scdd.samplers.plan import SamplingPlan
from scdd.samplers.prediction import Group, Prediction, row_groups
from scdd.samplers.step import TokenRows

from .test_row_batch import CASES, NOISY, VOCAB, alone, asked, model, together


class Counting(DiT):
    """A network that says how many rows it was asked about, call by call."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.rows: list[int] = []

    def hidden(self, z_t: Tensor, *args: Any, **more: Any) -> Tensor:
        self.rows.append(len(z_t))
        return super().hidden(z_t, *args, **more)


class Fickle(Counting):
    """Its last bits depend on how many rows it sees, as a library's product may."""

    def hidden(self, z_t: Tensor, *args: Any, **more: Any) -> Tensor:
        return super().hidden(z_t, *args, **more) * (1.0 + 1e-6 * (len(z_t) - 1))


def counting(process: Any, kind: type[Counting] = Counting) -> tuple[Model, Counting]:
    """The tests' model without conditioning on the time, so that what it said of a row holds as long as the row does."""
    network = kind(DiTConfig(1, 16, 2, time_conditioning=False), VOCAB)
    network.load_state_dict(model(process).denoiser.state_dict())  # type: ignore[attr-defined]
    network.eval().requires_grad_(False)
    return replace(model(process), denoiser=network), network


def test_sizes() -> None:
    packing = Packing(model(NOISY).denoiser, patience=0)
    for rows in (1, 2, 5, 8, 30):
        found = packing.sizes(rows, 32)
        assert sum(found) == rows
        assert {*found} <= {*SIZES, 1}
    assert packing.sizes(9, LONGEST + 1) == [1] * 9, "these fill the cores alone"
    assert max(packing.sizes(9, LONGEST)) * LONGEST <= MOST


def test_groups_are_joined_with_those_of_their_length() -> None:
    singles = row_groups(torch.zeros((6, 9), dtype=torch.int64), [9, 7, 9, 9, 7, 5])
    packed = Packing(model(NOISY).denoiser, patience=0)(singles)
    assert sorted(place for group in packed for place in group.places) == list(range(6))
    lengths = [9, 7, 9, 9, 7, 5]
    assert all(lengths[place] == group.length for group in packed for place in group.places)
    assert joined(singles[2:4]).rows == slice(2, 4), "neighbours need no copy"
    x = torch.arange(54).view(6, 9)
    assert torch.equal(joined([singles[1], singles[4]]).take(x), x[[1, 4], :7])


def test_nothing_is_tried_before_it_is_worth_it() -> None:
    m, network = counting(NOISY)
    packing = Packing(network, m.quality)
    groups = row_groups(torch.zeros((8, 9), dtype=torch.int64))
    sizes = [max(len(group.places) for group in packing(groups)) for _ in range(6)]
    assert sizes[:3] == [1, 1, 1]
    assert len(set(sizes[4:])) == 1, "one trial"
    tried = len(network.rows)
    packing(groups)
    assert len(network.rows) == tried > 0


@pytest.mark.parametrize("case", CASES)
def test_packed_rows_become_what_they_become_alone(case: str) -> None:
    """Few tokens and many steps, so that some rows rest while others change: every frame has the same bits."""
    process, sampler = CASES[case]
    z = torch.full((7, 9), VOCAB.mask_id)
    z[:, 0], z[1, 2:6], z[5, 3:7] = 3, torch.tensor([1, 4, 5, 2]), 6
    plan = SamplingPlan(sampler, grid("uniform", 12), Filters(top_p=0.9), options=SamplingOptions(), record=True)

    def walked(packed: bool) -> tuple[list[Frame], list[int]]:
        m, network = counting(process)
        if packed:
            m = replace(m, packing=Packing(model(process).denoiser, m.quality, patience=0))
        rows = TokenRows(z, z == 3, [9, 9, 7, 9, 7, 9, 7])
        return list(sample_loop(m, plan, rows, CounterRNG(3, range(7)))), network.rows

    (found, together_), (wanted, apart) = walked(True), walked(False)
    assert [frame[:4] for frame in found] == [frame[:4] for frame in wanted]
    for one, other in zip(found, wanted, strict=True):
        assert all(torch.equal(a.nan_to_num(7.0), b.nan_to_num(7.0)) for a, b in zip(one[4:], other[4:], strict=True))
    assert sum(together_) == sum(apart), "as many rows are asked about, none twice"
    assert {*apart} == {1}
    if Packing(model(process).denoiser, patience=0).sizes(4, 9) == [4]:
        assert len(together_) < len(apart)


@pytest.mark.parametrize("case", ["scdd", "conf", "prism", "p2", "informed", "gidd-correct"])
def test_rows_at_different_times_share(case: str) -> None:
    process, sampler = CASES[case]
    m, asks = model(process), asked(sampler, "ancestral")
    packed = replace(m, packing=Packing(m.denoiser, m.quality, patience=0))
    assert together(packed, asks) == [alone(m, ask) for ask in asks]


def test_what_would_change_bits_goes_one_by_one() -> None:
    m, network = counting(NOISY, Fickle)
    packing = Packing(network, m.quality, patience=0)
    assert packing.sizes(8, 9) == [1] * 8
    network.rows.clear()
    plan = SamplingPlan(CASES["scdd"][1], grid("uniform", 3), options=SamplingOptions())
    rows = TokenRows(torch.full((4, 9), VOCAB.mask_id))
    [frame] = sample_loop(replace(m, packing=packing), plan, rows, CounterRNG(3, range(4)))
    [single] = sample_loop(m, plan, TokenRows(rows.tokens[:1]), CounterRNG(3, range(1)))
    assert torch.equal(frame.tokens[:1], single.tokens)
    assert {*network.rows} == {1}


def whole(groups: Sequence[Group]) -> list[Group]:
    return [joined(groups)] if groups else []


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Several divide a product by its rows, and round two as they do not round four; `packing` would try, `whole` does not ask."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_all_that_is_known_of_a_packed_row_goes_to_its_next_evaluation(one_thread: None) -> None:
    network = counting(NOISY)[1]
    z = torch.randint(0, 30, (4, 9), generator=torch.Generator().manual_seed(0)).where(
        torch.arange(9) % 3 > 0, VOCAB.mask_id
    )
    before = Prediction(network, row_groups(z), z, 0.5, packing=whole)
    assert before.log_p_z.shape == z.shape
    network.rows.clear()
    changed = z.clone()
    changed[1, 1], changed[3, 2] = 5, 6
    after = Prediction(network, row_groups(z), changed, 0.4, before=before, packing=whole)
    assert network.rows == [2]
    fresh = Prediction(network, row_groups(z), changed, 0.4)
    u = torch.rand(z.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    assert torch.equal(after.log_p_z, fresh.log_p_z)
    assert torch.equal(after.logits, fresh.logits)
    for one, other in zip(
        (*after.draw(u > 0.3, u), *after.top(3)), (*fresh.draw(u > 0.3, u), *fresh.top(3)), strict=True
    ):
        assert torch.equal(one, other)
    network.rows.clear()
    same = Prediction(network, row_groups(z), changed, 0.3, before=after, packing=whole)
    assert network.rows == []
    assert torch.equal(same.log_p_z, fresh.log_p_z)


def test_a_group_says_where_its_rows_are() -> None:
    assert list(Group(slice(2, 5), 9).places) == [2, 3, 4]
    assert list(Group([1, 4], 9).places) == [1, 4]
