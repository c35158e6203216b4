"""Objectives as training losses: unbiased, blind to padding, the same in parts as whole."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from scdd.core import Levels, UserError, Vocab
from scdd.models.dit import DiT
from scdd.models.heads import QualityHead
from scdd.models.options import DiTConfig
from scdd.objectives.ar import ArObjective
from scdd.objectives.base import BatchSlice, Objective, RatioMeter
from scdd.objectives.diffusion import DiffusionObjective
from scdd.objectives.elbo import nelbo, reconstruction
from scdd.objectives.options import ElboOptions, PrismOptions, UniformTimesOptions
from scdd.objectives.prism import PrismObjective
from scdd.objectives.times import Adaptive, LowDiscrepancy, Power
from scdd.processes.autoregressive import Autoregressive
from scdd.processes.gidd import GIDD
from scdd.processes.mdlm import MDLM
from scdd.processes.scdd import SCDD
from scdd.schedules.base import Schedule
from scdd.schedules.curves import Polynomial
from scdd.schedules.decoupled import Decoupled
from scdd.schedules.masked import Masked
from scdd.schedules.peaked import Peaked

VOCAB = Vocab(size=12, mask_id=11)
CONTINUOUS = ElboOptions(steps=None)
PROCESSES = {"scdd": SCDD(VOCAB, Peaked(0.2)), "gidd": GIDD(VOCAB, Peaked(0.2)), "mdlm": MDLM(VOCAB, Masked())}


def network(causal: bool = False, time: bool = False, seed: int = 0) -> DiT:
    """A small network with every weight random, the zero-initialised ones too."""
    config = DiTConfig(depth=2, width=16, heads=2, cond_width=8, causal=causal, time_conditioning=time)
    generator = torch.Generator().manual_seed(seed)
    net = DiT(config, VOCAB, generator)
    with torch.no_grad():
        for p in net.parameters():
            p.add_(0.3 * torch.randn(p.shape, generator=generator))
    return net


def tokens(rows: int = 8, length: int = 6, seed: int = 1) -> Tensor:
    return torch.randint(11, (rows, length), generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("steps", [None, 5])
@pytest.mark.parametrize("name", PROCESSES)
def test_the_reported_number_is_the_whole_bound(name: str, steps: int | None) -> None:
    """Against a sum over every step, or a fine quadrature over t, of the reference NELBO on the same noise law."""
    process, net = PROCESSES[name], network()
    x = tokens(1, 3).expand(20_000, 3)
    with torch.no_grad():
        found = DiffusionObjective(process, ElboOptions(steps=steps, times=LowDiscrepancy())).evaluate(
            net, x, None, BatchSlice(0, 0, 0, len(x), len(x))
        )
    nats = found.nats
    error = float(nats.std()) / len(nats) ** 0.5
    truth = 0.0
    grid = steps or 40
    edges = torch.linspace(0, 1, grid + 1, dtype=torch.float64)
    generator = torch.Generator().manual_seed(2)
    spread = 0.0
    many = tokens(1, 3).expand(2000, 3)
    for s, t in pairwise(edges):
        z = process.corrupt(many, t, generator)
        with torch.no_grad():
            logits = net.logits(z)
        step = nelbo(process, logits, many, z, t, s).sum(1)
        truth += float(step.mean())
        spread += float(step.var()) / len(step)
    # The discrete bound on a fine grid lies above the continuous one by its discretisation, first order in 1/grid.
    slack = 0.0 if steps else 0.08 * truth
    assert abs(float(nats.mean()) - truth) < 4 * (error**2 + spread) ** 0.5 + slack


@pytest.mark.parametrize(
    "schedule",
    [Peaked(0.2, t_peak=0.25), Peaked(0.2, 0.4, 0.25), Decoupled(Polynomial(), Polynomial(0.2)), Masked()],
    ids=repr,
)
def test_the_reported_number_is_right_however_early_noise_sets_in(schedule: Schedule) -> None:
    """A uniform denoiser has log K exactly. Where 1 − ρ ∝ t^a with a small a, times that come too seldom near 0 miss
    the rare tokens that weigh most: the number is then too low, or its error too large.
    """
    net = DiT(DiTConfig(depth=1, width=8, heads=2, cond_width=8), VOCAB)  # its head is zero: all tokens alike
    x = tokens(1, 3).expand(8_000, 3)
    with torch.no_grad():
        found = DiffusionObjective(SCDD(VOCAB, schedule), CONTINUOUS).evaluate(
            net, x, None, BatchSlice(0, 0, 0, len(x), len(x))
        )
    each = found.nats / found.tokens
    error = float(each.std()) / len(each) ** 0.5
    assert abs(float(each.mean()) - math.log(VOCAB.K)) < 3 * error
    assert error < 0.04 * math.log(VOCAB.K)


@pytest.mark.parametrize("name", PROCESSES)
def test_nothing_is_left_over_at_time_zero(name: str) -> None:
    """The reconstruction term at t_0 = 0 is 0, so the sum over all steps is the whole NELBO."""
    x = tokens()
    logits = network().logits(x)
    assert reconstruction(PROCESSES[name], logits, x, x, 0.0).abs().max() < 1e-12


@pytest.mark.parametrize("weighting", ["elbo", "dynamic"])
@pytest.mark.parametrize("density", [LowDiscrepancy(), Power(2.0), Adaptive()])
def test_any_density_has_the_same_expectation(density: Power | Adaptive, weighting: str) -> None:
    process, net = PROCESSES["scdd"], network()
    x = tokens(1, 3).expand(20_000, 3)
    part = BatchSlice(4, 0, 0, len(x), len(x))
    estimates = []
    for each in (Power(1.5), density):
        objective = DiffusionObjective(process, ElboOptions(None, weighting, each))  # type: ignore[arg-type]
        with torch.no_grad():
            nats = objective.loss(net, x, None, part).nats
        estimates.append((float(nats.mean()), float(nats.std()) / len(nats) ** 0.5))
    (a, ea), (b, eb) = estimates
    assert abs(a - b) < 4 * (ea**2 + eb**2) ** 0.5


def quality() -> QualityHead:
    return QualityHead(16, generator=torch.Generator().manual_seed(3))


def objectives() -> dict[str, tuple[Objective, DiT]]:
    scdd, mdlm = PROCESSES["scdd"], PROCESSES["mdlm"]
    return {
        "elbo": (DiffusionObjective(scdd, ElboOptions(times=Power(2.0))), network()),
        "dynamic": (DiffusionObjective(scdd, ElboOptions(None, "dynamic", LowDiscrepancy())), network()),
        "adaptive": (DiffusionObjective(scdd, ElboOptions(None, times=Adaptive())), network(time=True)),
        "uniform": (DiffusionObjective(mdlm, ElboOptions(1000, times=UniformTimesOptions())), network()),
        "ar": (ArObjective(Autoregressive(VOCAB)), network(causal=True)),
        "prism": (PrismObjective(mdlm, quality(), PrismOptions()), network()),
        "joint": (PrismObjective(mdlm, quality(), PrismOptions(freeze=False)), network()),
    }


def gradients(
    objective: Objective, net: DiT, x: Tensor, documents: Tensor | None, parts: list[BatchSlice]
) -> dict[str, Tensor]:
    trained = {**dict(net.named_parameters())}
    for name, module in objective.modules().items():
        trained |= {f"{name}.{k}": p for k, p in module.named_parameters()}
    for p in trained.values():
        p.grad = None
    for part in parts:
        rows = slice(part.first, part.first + part.count)
        cut = None if documents is None else documents[rows]
        objective.loss(net, x[rows], cut, part).total.backward()
    return {name: p.grad.clone() for name, p in trained.items() if p.grad is not None}


@pytest.mark.parametrize("name", objectives())
def test_parts_add_up_to_the_whole_batch(name: str) -> None:
    """Micro-batches and ranks change neither the noise nor the gradient."""
    objective, net = objectives()[name]
    x, part = tokens(), BatchSlice(0, 7, 0, 8, 8)
    whole = gradients(objective, net, x, None, [part])
    parts = gradients(objective, net, x, None, [part.cut(0, 4), part.cut(4, 3), part.cut(7, 1)])
    assert whole.keys() == parts.keys()
    for key, value in whole.items():
        torch.testing.assert_close(value, parts[key], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("name", objectives())
def test_padding_weighs_nothing(name: str) -> None:
    objective, net = objectives()[name]
    x, part = tokens(), BatchSlice(0, 2, 0, 8, 8)
    documents = torch.zeros_like(x)
    documents[3:, 4:] = -1
    other = torch.where(documents < 0, (x + 5) % 11, x)
    assert not torch.equal(x, other)
    before, after = (gradients(objective, net, each, documents, [part]) for each in (x, other))
    for key, value in before.items():
        torch.testing.assert_close(value, after[key], atol=1e-6, rtol=1e-5)
    counts = objective.evaluate(net, x, documents, part).tokens
    if name not in ("prism", "joint"):
        assert counts.tolist() == [6 - (name == "ar")] * 3 + [4 - (name == "ar")] * 5


def test_autoregression_is_plain_cross_entropy() -> None:
    net, x = network(causal=True), tokens()
    found = ArObjective(Autoregressive(VOCAB)).loss(net, x, None, BatchSlice(0, 0, 0, 8, 8))
    logits = net.logits(x)[:, :-1]
    expected = F.cross_entropy(logits.flatten(0, 1), x[:, 1:].flatten())
    torch.testing.assert_close(found.total, expected)
    estimate = RatioMeter()
    estimate.add(found.nats, found.tokens)
    assert estimate.estimate().mean == pytest.approx(expected.item(), rel=1e-5)


def test_autoregression_does_not_predict_across_documents() -> None:
    net, x = network(causal=True), tokens()
    documents = torch.zeros_like(x)
    documents[:, 3:] = 1
    assert (
        ArObjective(Autoregressive(VOCAB)).loss(net, x, documents, BatchSlice(0, 0, 0, 8, 8)).tokens.tolist() == [4] * 8
    )


def test_a_frozen_network_gets_no_gradient_from_prism_and_the_head_does() -> None:
    net, head = network(), quality()
    PrismObjective(PROCESSES["mdlm"], head, PrismOptions()).loss(
        net, tokens(64), None, BatchSlice(0, 0, 0, 64, 64)
    ).total.backward()
    assert all(p.grad is None for p in net.parameters())
    assert head.last.weight.grad is not None
    assert head.last.weight.grad.abs().max() > 0


def test_prism_learns_how_often_the_network_is_right() -> None:
    """With a network that always says token 4, the best constant quality is the share of 4s."""
    net = network()
    with torch.no_grad():
        net.output.weight.zero_()
        net.output.bias.zero_()
        net.output.bias[4] = 30.0
        net.embedding.weight.zero_()  # the head cannot see which token it judges
    x = torch.where(torch.rand(256, 6, generator=torch.Generator().manual_seed(0)) < 0.25, 4, 2)
    head = quality()
    objective = PrismObjective(PROCESSES["mdlm"], head, PrismOptions())
    optimiser = torch.optim.Adam(head.parameters(), lr=0.02)
    for step in range(80):
        optimiser.zero_grad()
        objective.loss(net, x, None, BatchSlice(0, step, 0, 256, 256)).total.backward()
        optimiser.step()
    judged = torch.sigmoid(head(net.hidden(x))).mean().item()
    assert judged == pytest.approx(0.25, abs=0.05)


def test_a_tally_is_the_ratio_and_its_standard_error() -> None:
    generator = torch.Generator().manual_seed(0)
    count = torch.randint(3, 9, (2000, 500), generator=generator)
    nats = count * 2.0 + torch.randn(2000, 500, generator=generator) * count.sqrt()
    means, errors = [], []
    for row in range(200):
        tally = RatioMeter()
        tally.add(nats[row, :200], count[row, :200])
        tally.add(nats[row, 200:], count[row, 200:])
        found = tally.estimate()
        assert found.sequences == 500
        means.append(found.mean)
        errors.append(found.error)
    spread = torch.tensor(means).std().item()
    assert torch.tensor(errors).mean().item() == pytest.approx(spread, rel=0.15)
    assert found.ppl_error == pytest.approx(found.ppl * found.error)


def test_a_schedule_that_does_not_start_clean_is_refused() -> None:
    """Its bound would lack the reconstruction term, silently."""

    class Late(Schedule):
        """Peaked, looked at from t = 0.05 on."""

        def at(self, t: Tensor) -> Levels:
            levels = Peaked(0.2).at(0.05 + 0.95 * t.to(torch.float64))
            return levels._replace(dgamma=0.95 * levels.dgamma, drho=0.95 * levels.drho)

    with pytest.raises(UserError, match="does not start at γ_0 = ρ_0 = 1"):
        DiffusionObjective(SCDD(Vocab(9, 8), Late()), CONTINUOUS)
