"""Filters, head statistics and draws: every implementation agrees with the dense definition."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec

import pytest
import torch
from scipy import stats

from scdd.core import Head, UserError, Vocab
from scdd.core.types import padded
from scdd.ops.common import Filters, invert
from scdd.ops.head import Draw, head_stats, redraw, redrawn
from scdd.ops.head.reference import filtered
from scdd.ops.head.reference import logits as dense_logits
from tests.ops.cases import CUDA, IMPLS, case, problems

FILTERS = [
    Filters(),
    Filters(top_p=0.9),
    Filters(top_p=0.99, temperature=1.3),
    Filters(top_k=5),
    Filters(top_p=0.8, top_k=50, temperature=0.7),
    Filters(top_p=0.9999, temperature=2.5),
]


def placed(problem, device: str, dtype: torch.dtype = torch.float32):  # type: ignore[no-untyped-def]
    """(hidden, head, z_t) on a device."""
    hidden = problem.hidden.to(device, dtype)
    head = problem.head(problem.hidden.to(device, torch.float32))
    return hidden, head, problem.z_t.to(device)


@pytest.mark.parametrize(("impl", "device"), IMPLS)
@pytest.mark.parametrize("filters", FILTERS, ids=str)
def test_statistics_are_the_references(filters: Filters, impl: str, device: str) -> None:
    for size, mask_id, input_bias, count in problems(impl):
        problem = case(size, mask_id, count, input_bias=input_bias)
        truth = head_stats(problem.hidden, problem.head(), problem.z_t, filters, impl="reference")
        found = head_stats(*placed(problem, device), filters, impl=impl)
        inside = torch.isfinite(truth.log_p_z)
        assert torch.equal(torch.isfinite(found.log_p_z.cpu()), inside)
        assert torch.allclose(found.log_p_z.cpu().double()[inside], truth.log_p_z[inside], atol=2e-5)
        assert torch.allclose(found.log_total.cpu().double()[inside], truth.log_total[inside], atol=2e-5)


@pytest.mark.parametrize(("impl", "device"), IMPLS)
@pytest.mark.parametrize("filters", [Filters(top_p=0.8), Filters(0.7, nucleus="below")], ids=str)
def test_rows_may_have_temperatures_of_their_own(filters: Filters, impl: str, device: str) -> None:
    """Bit by bit what a row gives with its temperature for all, as far as statistics and draws go."""
    count = 4 if device == "cpu" and impl == "triton" else 12
    hidden, head, z_t = placed(case(60, 9, count), device, torch.bfloat16 if impl == "triton" else torch.float32)
    heats = torch.tensor([0.6, 1.7], dtype=torch.float64)[torch.arange(count) % 2]
    u = torch.rand(count, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).to(device)
    moves = (torch.arange(count) % 4 != 0).to(device)

    def seen(temperature: float | torch.Tensor) -> list[torch.Tensor]:
        each = replace(filters, temperature=temperature)
        stats = head_stats(hidden, head, z_t, each, impl=impl)
        drawn = redraw(hidden, head, moves, u, each, z_t, stats.logits, impl=impl)
        return [x.cpu().nan_to_num(9.0) for x in (stats.log_total, stats.log_p_z, *drawn)]

    mixed, apart = seen(heats.to(device)), {heat: seen(heat) for heat in (0.6, 1.7)}
    for i, heat in enumerate(heats.tolist()):
        for one, other in zip(mixed, apart[heat], strict=True):
            assert one[i] == other[i]
    assert not torch.equal(apart[0.6][3], apart[1.7][3])


@pytest.mark.parametrize(("impl", "device"), IMPLS)
@pytest.mark.parametrize("filters", FILTERS, ids=str)
def test_draws_are_the_references(filters: Filters, impl: str, device: str) -> None:
    """The same uniform numbers give the same tokens, at the positions that move and nowhere else."""
    for size, mask_id, input_bias, count in problems(impl):
        problem = case(size, mask_id, count, input_bias=input_bias)
        u = torch.rand(count, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
        moves = torch.arange(count) % 4 != 0
        truth = redraw(problem.hidden, problem.head(), moves, u, filters, problem.z_t, impl="reference")
        hidden, head, z_t = placed(problem, device)
        logits = head_stats(hidden, head, z_t, filters, impl=impl).logits
        for kept in (None, logits):
            found = redraw(hidden, head, moves.to(device), u.to(device), filters, z_t, kept, impl=impl)
            assert torch.equal(found.tokens.cpu(), truth.tokens)
            assert torch.allclose(found.log_p.cpu()[moves], truth.log_p[moves], atol=2e-5)
            assert (found.tokens.cpu()[~moves] == -1).all()


@pytest.mark.skipif(find_spec("triton") is None, reason="no Triton here")
def test_positions_that_stay_hold_what_they_are_told() -> None:
    """The draw is the same; beside it, what is put there, or −1 and −∞, in tensors that begin as anything."""
    hidden, head, z_t = placed(case(60, 9, 8), CUDA)
    u = torch.rand(8, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).to(CUDA)
    moves = (torch.arange(8) % 3 != 0).to(CUDA)
    logits = head_stats(hidden, head, z_t, impl="triton").logits
    assert logits is not None
    drawn = redraw(hidden, head, moves, u, Filters(), z_t, logits, impl="triton")
    assert (drawn.tokens[~moves] == -1).all()
    assert (drawn.log_p[~moves] == -torch.inf).all()
    log_p = torch.tensor([-1.0, torch.nan, -torch.inf, 0.0] * 2, device=CUDA)
    otherwise = Draw(torch.arange(2**40, 2**40 + 16, device=CUDA)[::2], log_p)
    found = redrawn(logits, head, moves, u, Filters(), z_t, otherwise)
    assert torch.equal(found.tokens, torch.where(moves, drawn.tokens, otherwise.tokens))
    wanted = torch.where(moves, drawn.log_p, log_p)
    assert torch.equal(found.log_p.nan_to_num(9.0), wanted.nan_to_num(9.0))


@pytest.mark.parametrize(("impl", "device"), IMPLS)
def test_ties_stay_together(impl: str, device: str) -> None:
    """Three tied tokens at the crossing: all of them are kept, whatever their order."""
    problem = case(6, 5, count=3, width=6)
    problem.hidden = torch.eye(6, dtype=torch.float64)[:3]
    problem.weight = torch.zeros(128, 6, dtype=torch.float64)
    problem.bias = torch.zeros(128, dtype=torch.float64)
    problem.bias[:5] = torch.tensor([0.5, 0.2, 0.2, 0.2, 0.01]).log()
    problem.z_t = torch.tensor([1, 3, 4])
    found = head_stats(*placed(problem, device), Filters(top_p=0.6), impl=impl)
    expected = torch.tensor([0.2 / 1.1, 0.2 / 1.1, 0.0])
    assert torch.allclose(found.log_p_z.exp().cpu(), expected, atol=1e-6)


def test_the_crossing_token_is_kept() -> None:
    """Holtzman: with masses 0.5, 0.3, 0.2 and top_p = 0.6 the second token crosses, and stays."""
    log_p = filtered(torch.tensor([[0.5, 0.3, 0.2]]).log(), Filters(top_p=0.6))
    assert torch.allclose(log_p.exp(), torch.tensor([[0.625, 0.375, 0.0]], dtype=torch.float64))


@pytest.mark.parametrize(("impl", "device"), [IMPLS[0]])
def test_draws_follow_x_theta(impl: str, device: str) -> None:
    problem = case(9, 4, count=1)
    count = 20_000
    hidden = problem.hidden.float().expand(count, -1)
    moves = torch.ones(count, dtype=torch.bool)
    head = problem.head(hidden)
    generator = torch.Generator().manual_seed(3)
    for filters in (Filters(), Filters(top_p=0.8)):
        drawn = redraw(hidden, head, moves, generator, filters, impl=impl).tokens
        p = filtered(dense_logits(problem.hidden, problem.head()), filters).exp()[0]
        counts = torch.bincount(drawn, minlength=9).double()
        assert counts[p == 0].sum() == 0
        keep = p > 0
        assert stats.chisquare(counts[keep].numpy(), (p[keep] * count).numpy()).pvalue > 1e-4


@pytest.mark.parametrize(("impl", "device"), IMPLS)
def test_extreme_uniform_numbers_draw_possible_tokens(impl: str, device: str) -> None:
    problem = case(200, 0, count=4)
    u = torch.tensor([0.0, 1.0 - 2.0**-53, 2.0**-53, 0.5], dtype=torch.float64, device=device)
    hidden, head, z_t = placed(problem, device)
    moves = torch.ones(4, dtype=torch.bool, device=device)
    drawn = redraw(hidden, head, moves, u, Filters(top_p=0.9), z_t, impl=impl)
    assert torch.isfinite(drawn.log_p).all()
    assert ((drawn.tokens > 0) & (drawn.tokens < 200)).all()


@pytest.mark.parametrize(
    "bad", [{"top_p": 0.0}, {"top_p": 1.1}, {"top_k": 0}, {"temperature": 0.0}, {"temperature": float("nan")}]
)
def test_bad_filters_are_refused(bad: dict[str, float]) -> None:
    with pytest.raises(UserError, match=next(iter(bad))):
        Filters(**bad)  # type: ignore[arg-type]


def rows_of_all_kinds(vocab: Vocab) -> tuple[torch.Tensor, torch.Tensor]:
    """(Logits [n, Vp] as a bfloat16 product leaves them, tokens [n]): spread, peaked, tied, flat, and made to mislead a sample."""
    generator = torch.Generator().manual_seed(5)
    ids = torch.arange(vocab.size)
    sampled = ids // 32 % 8 == 0
    spread = torch.randn(vocab.size, generator=generator) * 2.8
    zipf = -1.3 * torch.log(torch.randperm(vocab.size, generator=generator) + 1.0)
    kinds = [
        spread,
        spread - 20.0,
        zipf + 9.0,
        torch.where(ids == 77, 12.0, spread),
        (spread / 4).round() * 4,  # ties at every threshold
        torch.zeros(vocab.size),
        torch.where(sampled, -30.0, spread),  # a sample sees nothing
        torch.where(sampled, 3.0, spread / 9),  # and here too much
        spread * 1e-3,  # among the densest keys
    ]
    rows, tokens = [], []
    for scores in kinds:
        scores[vocab.mask_id] = -torch.inf
        order = scores.argsort(descending=True)
        for rank in (0, 1, 30, vocab.K - 1) if CUDA == "cuda" else (0, 30):
            rows.append(scores)
            tokens.append(order[rank])
    logits = torch.full((len(rows), padded(vocab.size)), -torch.inf, dtype=torch.bfloat16)
    logits[:, : vocab.size] = torch.stack(rows).bfloat16()
    return logits, torch.stack(tokens)


@pytest.mark.skipif(find_spec("triton") is None, reason="no Triton here")
@pytest.mark.parametrize("sampled", [1, 1 << 30], ids=["guessed", "searched"])
@pytest.mark.parametrize("top_p", [0.3, 0.9, 0.999] if CUDA == "cuda" else [0.9])  # the interpreter takes its time
def test_kernels_find_every_nucleus(top_p: float, sampled: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a guess from a sample and without one, also where the sample misleads."""
    from scdd.ops.head import triton as stats_kernel
    from scdd.ops.head.triton_draw import row_draw

    monkeypatch.setattr(stats_kernel, "SAMPLED", sampled)
    vocab, filters = Vocab(600, 599), Filters(top_p=top_p)
    logits, z_t = rows_of_all_kinds(vocab)
    log_p = filtered(logits[:, : vocab.size], filters)
    truth = log_p.gather(1, z_t[:, None])[:, 0]
    head = Head(torch.zeros(padded(vocab.size), 1), vocab)
    logits, z_t = logits.to(CUDA), z_t.to(CUDA)
    total, found = torch.empty(2, len(z_t), device=CUDA)
    stats_kernel.row_stats(logits, head, z_t, filters, total, found)
    inside = torch.isfinite(truth)
    assert 0 < int(inside.sum()) < len(inside)
    assert torch.equal(torch.isfinite(found.cpu()), inside)
    assert torch.allclose(found.cpu()[inside].double(), truth[inside], atol=2e-5)
    here = logits.cpu().double().gather(1, z_t.cpu()[:, None])[:, 0]
    assert torch.allclose(total.cpu()[inside].double(), (here - truth)[inside], atol=2e-5)

    u = torch.rand(len(z_t), dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    moves = torch.ones(len(z_t), dtype=torch.bool, device=CUDA)
    tokens, drawn = row_draw(logits, head, u.to(CUDA), None, filters, moves)
    wanted, wanted_log_p = invert(log_p, u)
    assert torch.equal(tokens.cpu(), wanted)
    assert torch.allclose(drawn.cpu().double(), wanted_log_p, atol=2e-5)
    apart = torch.stack([u.flip(0), u, u / 2], dim=1).to(CUDA)[:, 1]  # one of three numbers of each position
    again, _ = row_draw(logits[:4], head, apart[:4], None, filters, moves[:4])
    assert torch.equal(again, tokens[:4])


@pytest.mark.skipif(find_spec("triton") is None, reason="no Triton here")
@pytest.mark.parametrize("temperature", [1e-30, 1e-8, 0.05, 1e30])
def test_kernels_bear_any_temperature(temperature: float) -> None:
    """Weights are relative to a token of the row: nothing overflows that is not cut."""
    from scdd.ops.head.triton import row_stats

    vocab, filters = Vocab(300, 299), Filters(top_p=0.9, temperature=temperature)
    logits = torch.full((3, padded(300)), -torch.inf, dtype=torch.bfloat16)
    logits[:, :299] = torch.arange(299).flip(0) / 4.0
    z_t = torch.tensor([0, 1, 298])
    log_p = filtered(logits[:, :300], filters).gather(1, z_t[:, None])[:, 0]
    total, found = torch.empty(2, 3, device=CUDA)
    row_stats(logits.to(CUDA), Head(torch.zeros(padded(300), 1), vocab), z_t.to(CUDA), filters, total, found)
    assert torch.allclose(found.cpu().double(), log_p, atol=2e-5)


@pytest.mark.gpu
def test_bfloat16_logits_with_a_real_vocabulary() -> None:
    """Sixteen key bits find the same nucleus that sorting the same logits finds."""
    problem = case(50_258, 50_257, count=64, width=64)
    problem.weight *= 0.4
    filters = Filters(top_p=0.9)
    hidden = problem.hidden.to("cuda", torch.bfloat16)
    head = problem.head(problem.hidden.to("cuda", torch.float32))
    found = head_stats(hidden, head, problem.z_t.cuda(), filters)
    assert found.logits is not None
    seen = found.logits[:, :50_258].double()
    seen[:, 50_257] = -torch.inf
    log_p = filtered(seen, filters)
    truth = log_p.gather(1, problem.z_t.cuda()[:, None])[:, 0]
    visible = problem.z_t.cuda() != 50_257
    assert torch.equal(torch.isfinite(found.log_p_z[visible]), torch.isfinite(truth[visible]))
    inside = visible & torch.isfinite(truth)
    assert torch.allclose(found.log_p_z[inside].double(), truth[inside], atol=1e-4)
    u = torch.rand(64, dtype=torch.float64, device="cuda")
    every = torch.ones(64, dtype=torch.bool, device="cuda")
    drawn = redraw(hidden, head, every, u, filters, problem.z_t.cuda(), found.logits)
    cumulative = log_p.exp().cumsum(1)
    below = cumulative.gather(1, drawn.tokens[:, None])[:, 0]
    width = log_p.gather(1, drawn.tokens[:, None])[:, 0].exp()
    assert ((u <= below + 1e-5) & (u >= below - width - 1e-5)).all()
    assert isinstance(head, Head)
