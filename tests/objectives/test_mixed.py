"""A share of rows read left to right, and attention that grows: what they change, and what they must not."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from scdd.assemble import training as build
from scdd.core import UserError, Vocab
from scdd.core.types import Learnt
from scdd.lm.training import train
from scdd.models.llama import Llama
from scdd.models.options import LlamaConfig
from scdd.objectives.ar import ArObjective
from scdd.objectives.base import BatchSlice
from scdd.objectives.diffusion import DiffusionObjective
from scdd.objectives.mixed import Causally, MixedObjective
from scdd.objectives.options import ElboOptions
from scdd.processes.autoregressive import Autoregressive
from scdd.processes.scdd import SCDD
from scdd.recipe.load import loads
from scdd.schedules.peaked import Peaked
from scdd.training.parallel import LossModule, World

VOCAB = Vocab(11, 10)
SHAPE = LlamaConfig(depth=2, width=16, heads=2, kv_heads=1, head_width=8, mlp_width=24)
TOTAL, LENGTH = 8, 6


@pytest.fixture
def network() -> Llama:
    return Llama(SHAPE, VOCAB, torch.Generator().manual_seed(0))


@pytest.fixture
def tokens() -> torch.Tensor:
    return torch.randint(VOCAB.K, (TOTAL, LENGTH), generator=torch.Generator().manual_seed(1))


@pytest.fixture
def learnt() -> Learnt:
    """Of another number in each row."""
    where = torch.rand(TOTAL, LENGTH, generator=torch.Generator().manual_seed(2)) < 0.5
    where[:, [0, 3, 5]] = False
    where[:, 1] = True
    return Learnt(where, where.sum().double())


def diffusion() -> DiffusionObjective:
    return DiffusionObjective(SCDD(VOCAB, Peaked(0.2)), ElboOptions(None))


def gradients(network: Llama) -> list[torch.Tensor]:
    found = [p.grad.clone() for p in network.parameters() if p.grad is not None]
    network.zero_grad()
    return found


def test_each_loss_on_its_rows(network: Llama, tokens: torch.Tensor) -> None:
    """A quarter of eight rows: two are read, six are noised as they would be without the others."""
    whole = BatchSlice(3, 5, 0, TOTAL, TOTAL)
    mixed = MixedObjective(diffusion(), 0.25).loss(network, tokens, None, whole)
    noised = diffusion().loss(network, tokens[:6], None, whole.cut(0, 6))
    read = ArObjective(Autoregressive(VOCAB)).loss(Causally(network), tokens[6:], None, whole.cut(6, 2))
    assert torch.allclose(mixed.total, noised.total + read.total)
    assert torch.equal(mixed.nats, noised.nats), "what is reported is the diffusion loss"
    assert mixed.tokens.sum() == 6 * LENGTH


def test_the_first_steps_are_read_and_then_it_begins(network: Llama, tokens: torch.Tensor) -> None:
    """Steps 0 to 4 are the autoregressive objective's alone, from 5 on it is as if they had not been."""
    mixed, told = MixedObjective(diffusion(), 0.25, first=5), []
    assert mixed.changes_at == 5, "for whoever compares losses"
    mixed.diffusion.end_step = lambda reduce: told.append(mixed._step)  # type: ignore[method-assign]
    for step in (0, 4, 5, 9):
        whole = BatchSlice(3, step, 0, TOTAL, TOTAL)
        found = mixed.loss(network, tokens, None, whole)
        mixed.end_step(lambda sums: None)
        if step < 5:
            read = ArObjective(Autoregressive(VOCAB)).loss(Causally(network), tokens, None, whole)
            assert torch.equal(found.total, read.total)
            assert found.nats.numel() == 0
        else:
            assert torch.equal(found.total, MixedObjective(diffusion(), 0.25).loss(network, tokens, None, whole).total)
        halves = [mixed.loss(network, tokens[r], None, p).total for r, p in whole.micro_batches(3)]
        torch.testing.assert_close(sum(halves), found.total)
    assert told == [5, 9]


def test_given_tokens_are_given_to_both(network: Llama, tokens: torch.Tensor, learnt: Learnt) -> None:
    """Each loss is told of its own rows' tokens, and both are shares of the mean over all that are learnt."""
    whole, documents = BatchSlice(3, 5, 0, TOTAL, TOTAL), torch.tensor([[0, 0, 0, 1, 1, -1]] * TOTAL)
    mixed = MixedObjective(diffusion(), 0.25)
    found = mixed.loss(network, tokens, documents, whole, learnt)
    first, last = slice(0, 6), slice(6, TOTAL)
    noised = diffusion().loss(network, tokens[first], documents[first], whole.cut(0, 6), learnt.rows(first))
    ar = ArObjective(Autoregressive(VOCAB))
    read = ar.loss(Causally(network), tokens[last], documents[last], whole.cut(6, 2), learnt.rows(last))
    assert torch.allclose(found.total, noised.total + read.total)
    assert not torch.allclose(found.total, mixed.loss(network, tokens, documents, whole).total)
    assert found.tokens.tolist() == learnt.where[first].sum(1).tolist()
    reported = mixed.evaluate(network, tokens, documents, whole, learnt)
    assert torch.equal(reported.nats, diffusion().evaluate(network, tokens, documents, whole, learnt).nats)


@pytest.mark.parametrize("some", [False, True], ids=["all learnt", "some given"])
@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_micro_batches_change_nothing(
    network: Llama, tokens: torch.Tensor, learnt: Learnt, size: int, some: bool
) -> None:
    objective, whole = MixedObjective(diffusion(), 0.375), BatchSlice(3, 5, 0, TOTAL, TOTAL)
    objective.loss(network, tokens, None, whole, learnt if some else None).total.backward()
    expected = gradients(network)
    for rows, part in whole.micro_batches(size):
        objective.loss(network, tokens[rows], None, part, learnt.rows(rows) if some else None).total.backward()
    for mine, theirs in zip(gradients(network), expected, strict=True):
        assert torch.allclose(mine, theirs, atol=1e-6)


def test_reading_sees_nothing_that_follows(network: Llama, tokens: torch.Tensor) -> None:
    changed = tokens.clone()
    changed[:, -1] = (changed[:, -1] + 1) % VOCAB.K
    seen, other = (Causally(network).hidden(rows) for rows in (tokens, changed))
    assert torch.equal(seen[:, :-1], other[:, :-1])
    assert not torch.equal(network.hidden(tokens)[:, :-1], network.hidden(changed)[:, :-1])


def test_attention_grows_with_the_step_alone(network: Llama, tokens: torch.Tensor) -> None:
    module = LossModule(network, diffusion(), grow_attention=4)
    far = []
    for step in (0, 1, 2, 3, 4, 9, 2):
        module(tokens, None, None, BatchSlice(0, step, 0, TOTAL, TOTAL))
        far.append(network.lookahead)
    assert far == [0, 1, 3, 4, None, None, 3]
    module(tokens, None, None, BatchSlice(0, 0, 0, TOTAL, TOTAL), report=True)
    assert network.lookahead == 3, "a validation leaves it as it is"


RECIPE = """
name: tiny
data: {kind: text, length: 16, vocab_size: 300}
model: {kind: dit, size: custom, depth: 1, width: 8, heads: 2}
process: {kind: scdd}
training: {steps: 2, batch_size: 4}
"""


@pytest.mark.parametrize("change", ["objective.ar_share=0.5", "training.grow_attention=2"])
def test_a_network_that_cannot_be_told_is_refused(change: str, tmp_path: Path) -> None:
    spec = loads(RECIPE, overrides=[change])
    with pytest.raises(UserError, match=rf"{change.partition('=')[0]} needs a .*network"):
        build.trainer(spec, tmp_path / "run", World(), build.corpus(spec))


def test_it_trains_from_a_recipe(tmp_path: Path) -> None:
    shape = "{kind: llama, size: custom, depth: 1, width: 8, heads: 2, kv_heads: 1, mlp_width: 12}"
    both = [
        "objective.ar_share=0.5",
        "training.grow_attention=2",
        "training.precision=float32",
        "training.recompute=true",
    ]
    spec = loads(RECIPE, overrides=[f"model={shape}", *both])
    trainer = build.trainer(spec, tmp_path / "run", World(), build.corpus(spec))
    trainer.run()
    assert trainer.module.network.lookahead is not None, "two steps are not yet past the second"


def test_attention_that_would_never_be_whole_is_refused() -> None:
    with pytest.raises(UserError, match="grow_attention 3 is more than the 2 steps"):
        loads(RECIPE, overrides=["training.grow_attention=3"])


def test_ranks_cut_their_rows_alike_and_never_across_the_border() -> None:
    for ranks in (1, 2, 4):
        for border in range(9):
            for size in (None, 1, 2, 3):
                cuts = set()
                for rank in range(ranks):
                    own = BatchSlice(0, 0, rank * 8 // ranks, 8 // ranks, 8)
                    pieces = list(own.micro_batches(size, border))
                    rows = [own.first + row for which, _ in pieces for row in range(which.start, which.stop)]
                    assert rows == list(range(own.first, own.first + own.count))
                    for which, part in pieces:
                        assert (part.first, part.count) == (own.first + which.start, which.stop - which.start)
                        assert part.count <= (size or 8)
                        assert not part.first < border < part.first + part.count
                    cuts.add(tuple((which.start, which.stop) for which, _ in pieces))
                assert len(cuts) == 1, "a rank that runs the network once more than the others would wait for them"


def test_a_share_of_no_row_is_told_and_one_of_every_row_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shape = "{kind: llama, size: custom, depth: 1, width: 8, heads: 2, kv_heads: 1, mlp_width: 12}"
    for share, code in ((0.5, None), (0.1, None), (0.9, "every row")):
        spec = loads(RECIPE, overrides=[f"model={shape}", f"objective.ar_share={share}", "training.tensorboard=false"])
        if code is not None:
            with pytest.raises(UserError, match=r"objective\.ar_share 0\.9 of training\.batch_size 4 is every row"):
                train(spec, tmp_path / str(share))
            continue
        train(spec, tmp_path / str(share))
        assert ("nothing is read left to right" in capsys.readouterr().out) == (share == 0.1)


def test_a_run_that_recomputes_learns_the_same(tmp_path: Path) -> None:
    shape = "{kind: llama, size: custom, depth: 1, width: 8, heads: 2, kv_heads: 1, mlp_width: 12}"
    weights = []
    for recompute in ("false", "true"):
        more = [f"model={shape}", f"training.recompute={recompute}", "training.precision=float32"]
        spec = loads(RECIPE, overrides=more)
        trainer = build.trainer(spec, tmp_path / recompute, World(), build.corpus(spec))
        trainer.run()
        weights.append(trainer.module.state_dict())
    for name, weight in weights[0].items():
        torch.testing.assert_close(weight, weights[1][name])
