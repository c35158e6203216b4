"""Fewer positions for the head (`clean_share`): nobody's expectation changes, noised tokens are all there, gradients are theirs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from scdd.core import UserError, Vocab
from scdd.models.dit import DiT
from scdd.models.options import DiTConfig
from scdd.objectives.base import BatchSlice
from scdd.objectives.diffusion import DiffusionObjective
from scdd.objectives.options import AdaptiveTimesOptions, ElboOptions, LowDiscrepancyTimesOptions, TeacherOptions
from scdd.objectives.teacher import Distillation
from scdd.objectives.thinning import room_for, thinned
from scdd.ops.elbo import elbo
from scdd.processes.gidd import GIDD
from scdd.processes.mdlm import MDLM
from scdd.processes.scdd import SCDD
from scdd.schedules.masked import Masked
from scdd.schedules.peaked import Peaked
from tests.objectives.networks import stirred

VOCAB = Vocab(size=12, mask_id=11)
PROCESSES = {"scdd": SCDD(VOCAB, Peaked(0.2)), "gidd": GIDD(VOCAB, Peaked(0.2)), "mdlm": MDLM(VOCAB, Masked())}
ROWS, LENGTH, SHARE = 64, 40, 0.2
PART = BatchSlice(3, 5, 0, ROWS, ROWS)


def network(seed: int = 0) -> DiT:
    generator = torch.Generator().manual_seed(seed)
    return stirred(DiT(DiTConfig(depth=1, width=16, heads=2, cond_width=8), VOCAB, generator), generator)


def text() -> Tensor:
    return torch.randint(11, (ROWS, LENGTH), generator=torch.Generator().manual_seed(1))


def objective(process: Any, share: float = SHARE, **more: Any) -> DiffusionObjective:
    teacher = more.pop("teacher", None)
    options = ElboOptions(steps=None, times=LowDiscrepancyTimesOptions(), clean_share=share, **more)
    return DiffusionObjective(process, options, teacher=teacher)


@pytest.mark.parametrize("room", [24, 13, 5])
def test_every_position_counts_once_on_average(room: int) -> None:
    """With room enough, and where a random subset of the chosen must do."""
    generator, times = torch.Generator().manual_seed(0), 40_000
    changed, real = torch.rand((3, 8), generator=generator) < 0.4, torch.ones(3, 8)
    real[2, 5:] = 0
    total, square = torch.zeros(24, dtype=torch.float64), torch.zeros(24, dtype=torch.float64)
    for _ in range(times):
        found = thinned(changed, real, torch.rand((3, 8, 2), generator=generator, dtype=torch.float64), SHARE, room)
        assert len(found.at.unique()) == len(found.at) == room
        total[found.at] += found.counts
        square[found.at] += found.counts.square()
    mean = total / times
    error = ((square / times - mean.square()).clamp(min=0) / times).sqrt()
    assert ((mean - real.flatten()).abs() <= 4.5 * error + 1e-12).all()
    assert (total[real.flatten() == 0] == 0).all()


@pytest.mark.parametrize("weighting", ["elbo", "dynamic"])
@pytest.mark.parametrize("name", PROCESSES)
def test_loss_and_gradients_are_those_of_the_positions_that_are_left(name: str, weighting: str) -> None:
    """Against every position's own loss by the reference, each times what it counts."""
    process, x, net = PROCESSES[name], text(), network()
    thin = objective(process, weighting=weighting)
    loss = thin.loss(net, x, None, PART)
    loss.total.backward()
    found = {key: p.grad.clone() for key, p in net.named_parameters() if p.grad is not None}
    net.zero_grad()
    z, counts, rows, times = pieces(thin, x, weighting)
    assert (counts[(z != x).flatten()] == 1).all(), "every noised token is there"
    assert 0 < int((counts > 1).sum()) < 0.4 * counts.numel() or name == "mdlm"
    hidden = net.hidden(z, times, None)
    args = (hidden.flatten(0, 1), net.head, x.flatten(), z.flatten(), rows.scaled(counts))
    total, each = elbo(*args, impl="reference")
    total.backward()
    assert torch.allclose(loss.total.double(), total.double(), rtol=1e-5)
    assert torch.allclose(loss.nats, each.view(x.shape).double().sum(1) * x.numel(), rtol=1e-5, atol=1e-6)
    for key, p in net.named_parameters():
        assert p.grad is not None
        assert torch.allclose(found[key], p.grad, rtol=1e-4, atol=1e-6), key


def pieces(thin: DiffusionObjective, x: Tensor, weighting: str, part: BatchSlice = PART) -> tuple[Any, ...]:
    """(z_t, what each position counts, all rows of the loss, times), as the objective draws them."""
    from scdd.core.rng import uniforms

    times, real = thin.times.draw(part), torch.ones(x.shape, dtype=torch.float64)
    source = part.keyed("corrupt", "cpu")
    numbers = uniforms(x.shape, source), thin.process.noise_numbers(x.shape, source)
    z, rows = thin._noised(x, real, times, numbers, part.total * x.shape[1], weighting)
    few = thin._few(z != x, real, part)
    return z, torch.zeros(x.numel(), dtype=torch.float64).index_add(0, few.at, few.counts), rows, times.t


@pytest.mark.parametrize("more", [{}, {"repair_share": 0.5, "repair_weight": 3.0, "weighting": "dynamic"}])
def test_the_loss_is_the_same_on_average(more: dict[str, Any]) -> None:
    net, x = network(), text()
    whole, thin = (objective(PROCESSES["scdd"], share, **more) for share in (1.0, SHARE))
    with torch.no_grad():
        parts = [BatchSlice(3, step, 0, ROWS, ROWS) for step in range(300)]
        gaps = torch.stack([thin.loss(net, x, None, p).total - whole.loss(net, x, None, p).total for p in parts])
    assert gaps.abs().max() > 0
    assert abs(float(gaps.mean())) < 4 * float(gaps.std()) / len(gaps) ** 0.5


def test_masked_diffusion_loses_nothing() -> None:
    """Its clean tokens have no loss at all, so no share of them is too small."""
    net, x = network(), text()
    with torch.no_grad():
        whole, thin = (objective(PROCESSES["mdlm"], share).loss(net, x, None, PART) for share in (1.0, 1e-6))
    assert torch.allclose(whole.total, thin.total, rtol=1e-6)
    assert torch.allclose(whole.nats, thin.nats, rtol=1e-5, atol=1e-9)


def test_a_row_is_thinned_alike_in_any_slice() -> None:
    x = text()
    thin = objective(PROCESSES["scdd"])
    counts = pieces(thin, x, "elbo")[1].view(x.shape)
    part = PART.cut(16, 32)
    assert torch.equal(pieces(thin, x[16:48], "elbo", part)[1].view(32, LENGTH), counts[16:48])


def test_there_is_room_for_what_is_drawn() -> None:
    """Seldom too little in 300 batches, and a good part less than everything."""
    thin, x = objective(PROCESSES["scdd"]), text()
    sizes = []
    for step in range(300):
        part = BatchSlice(3, step, 0, ROWS, ROWS)
        sizes.append(int((pieces(thin, x, "elbo", part)[1] > 0).sum()))
    room = thin._room(PART, LENGTH)
    assert sum(size == room for size in sizes) < 9
    assert room < 0.85 * ROWS * LENGTH
    assert room_for(torch.tensor([0.5, 0.5]), 0.2, 4096) == 2560
    assert room_for(torch.tensor([0.9, 1.0]), 0.9, 4096) == 4096


def test_given_tokens_and_padding_are_never_read() -> None:
    from scdd.core.types import Learnt

    net, x = network(), text()
    documents = torch.zeros(x.shape, dtype=torch.int64)
    documents[:, 30:] = -1
    where = torch.zeros(x.shape, dtype=torch.bool)
    where[:, 10:] = True
    with torch.no_grad():
        part, learnt = BatchSlice(3, 5, 0, ROWS, ROWS), Learnt(where, torch.tensor(ROWS * 20))
        loss = objective(PROCESSES["scdd"]).loss(net, x, documents, part, learnt)
        alike = objective(PROCESSES["scdd"], 1.0).loss(net, x, documents, part, learnt)
    assert torch.equal(loss.tokens, alike.tokens)
    assert torch.isfinite(loss.total)
    assert abs(float(loss.total / alike.total) - 1) < 0.5


def test_a_teacher_says_the_same_of_noised_tokens() -> None:
    net, x, other = network(), text(), network(1)
    teacher = Distillation(other, TeacherOptions("nowhere"))
    with torch.no_grad():
        found = [
            objective(PROCESSES["scdd"], share, teacher=who).loss(net, x, None, PART).total
            for share in (1.0, SHARE)
            for who in (None, teacher)
        ]
    assert torch.allclose(found[1] - found[0], found[3] - found[2], rtol=1e-4)


def test_adaptive_times_have_none() -> None:
    with pytest.raises(UserError, match="with adaptive times nobody knows"):
        ElboOptions(steps=None, times=AdaptiveTimesOptions(), clean_share=0.5)


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["scdd", "mdlm"])
def test_on_a_gpu_compiled_as_not(name: str) -> None:
    net, x = network().cuda(), text().cuda()
    options = ElboOptions(steps=None, times=LowDiscrepancyTimesOptions(), clean_share=SHARE)
    found = []
    for compiled in (False, True):
        net.zero_grad()
        loss = DiffusionObjective(PROCESSES[name], options, compile=compiled).loss(net, x, None, PART)
        loss.total.backward()
        found.append((loss.total.detach(), net.head.weight.grad))
    assert torch.allclose(found[0][0], found[1][0], rtol=1e-5)
    assert found[0][1] is not None
    assert torch.allclose(found[0][1], found[1][1], rtol=1e-3, atol=1e-6)
