"""Given tokens: never noised, of no weight, and the mean is over learnt tokens of the whole batch, however it is cut."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from scdd.core import UserError
from scdd.core.rng import integers, uniforms
from scdd.core.types import Learnt
from scdd.models.heads import QualityHead
from scdd.objectives.ar import ArObjective
from scdd.objectives.base import BatchSlice, Objective
from scdd.objectives.diffusion import DiffusionObjective
from scdd.objectives.elbo import nelbo
from scdd.objectives.options import ElboOptions, PrismOptions
from scdd.objectives.prism import PrismObjective
from scdd.objectives.times import LowDiscrepancy
from scdd.processes.autoregressive import Autoregressive

from .test_training_losses import PROCESSES, VOCAB, network, tokens

ROWS, LENGTH = 8, 6
WHOLE = BatchSlice(3, 5, 0, ROWS, ROWS)


def some() -> tuple[Tensor, Tensor, Learnt]:
    """Rows with two documents or padding, and learnt tokens of another number in each."""
    x = tokens(ROWS, LENGTH)
    documents = torch.tensor([[0, 0, 0, 1, 1, 1]] * 4 + [[0, 0, 0, 0, -1, -1]] * 4)
    where = torch.rand(ROWS, LENGTH, generator=torch.Generator().manual_seed(4)) < 0.5
    where[:, 2] = True
    where[:, [0, 3]] = False  # a document's first token is never learnt
    where &= documents >= 0
    return x, documents, Learnt(where, where.sum().double())


def objectives() -> dict[str, Objective]:
    options = ElboOptions(steps=None, times=LowDiscrepancy())
    found: dict[str, Objective] = {name: DiffusionObjective(p, options) for name, p in PROCESSES.items()}
    dynamic = ElboOptions(steps=None, weighting="dynamic", times=LowDiscrepancy())
    found["dynamic"] = DiffusionObjective(PROCESSES["scdd"], dynamic)
    return {**found, "ar": ArObjective(Autoregressive(VOCAB))}


@pytest.mark.parametrize("name", PROCESSES)
def test_the_loss_is_the_sum_over_responses_given_clean_prompts(name: str) -> None:
    """Against the reference bound, token by token."""
    process, net = PROCESSES[name], network()
    objective = DiffusionObjective(process, ElboOptions(steps=50, times=LowDiscrepancy()))
    x, documents, learnt = some()
    found = objective.loss(net, x, documents, WHOLE, learnt)
    times, source = objective.times.draw(WHOLE, "cpu"), WHOLE.keyed("corrupt", "cpu")
    drawn = process.corrupt_by(x, times.t, uniforms(x.shape, source), integers(VOCAB.K, x.shape, source))
    z_t = torch.where(learnt.where, drawn, x)
    assert times.s is not None
    logits = net.logits(z_t, times.t, documents)
    each = nelbo(process, logits, x, z_t, times.t[:, None], times.s[:, None]) * times.weight[:, None]
    each = torch.where(learnt.where, each, 0.0)
    torch.testing.assert_close(found.nats, each.sum(1), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(found.total.double(), each.sum() / int(learnt.where.sum()), rtol=1e-4, atol=1e-5)
    assert found.tokens.tolist() == learnt.where.sum(1).tolist()


def test_the_autoregressive_loss_is_the_sum_over_responses() -> None:
    net = network(causal=True)
    x, documents, learnt = some()
    found = ArObjective(Autoregressive(VOCAB)).loss(net, x, documents, WHOLE, learnt)
    log_p = net.logits(x, None, documents)[:, :-1].log_softmax(-1)
    each = -log_p.gather(-1, x[:, 1:, None])[..., 0] * learnt.where[:, 1:]
    torch.testing.assert_close(found.total.float(), each.sum() / float(learnt.total))
    assert found.tokens.tolist() == learnt.where.sum(1).tolist()


def gradients(objective: Objective, x: Tensor, documents: Tensor, learnt: Learnt, size: int) -> list[Tensor]:
    """Summed over micro-batches of `size` rows."""
    net = network(causal=isinstance(objective, ArObjective))
    for rows, part in WHOLE.micro_batches(size):
        objective.loss(net, x[rows], documents[rows], part, learnt.rows(rows)).total.backward()  # type: ignore[no-untyped-call]
    return [p.grad for p in net.parameters() if p.grad is not None]


@pytest.mark.parametrize("name", objectives())
def test_micro_batches_with_unequal_numbers_of_learnt_tokens_sum_to_the_whole(name: str) -> None:
    objective, given = objectives()[name], some()
    for whole, parts in zip(gradients(objective, *given, ROWS), gradients(objective, *given, 3), strict=True):
        torch.testing.assert_close(whole, parts, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", PROCESSES)
def test_what_would_have_been_noised_in_prompts_does_not_matter(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other random numbers at given tokens give the same bits; at learnt ones they do not."""
    objective = DiffusionObjective(PROCESSES[name], ElboOptions(steps=None, times=LowDiscrepancy()))
    x, documents, learnt = some()
    before = gradients(objective, x, documents, learnt, ROWS)

    def otherwise(where: Tensor) -> list[Tensor]:
        def changed(shape: torch.Size, source: object) -> Tensor:
            numbers = uniforms(shape, source)  # type: ignore[arg-type]
            return torch.where(where, 1 - numbers, numbers)

        monkeypatch.setattr("scdd.objectives.diffusion.uniforms", changed)
        return gradients(objective, x, documents, learnt, ROWS)

    for one, two in zip(before, otherwise(~learnt.where), strict=True):
        assert torch.equal(one, two)
    assert not all(torch.equal(*both) for both in zip(before, otherwise(learnt.where), strict=True))


def test_prism_refuses() -> None:
    x, documents, learnt = some()
    with pytest.raises(UserError, match="not on pairs"):
        PrismObjective(PROCESSES["mdlm"], QualityHead(16), PrismOptions()).loss(network(), x, documents, WHOLE, learnt)
