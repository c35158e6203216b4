"""Nuclei and draws from the likely tokens alone: the dense way's and the definition's, whoever shares the batch."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from scdd.ops.common import invert
from scdd.ops.head import chunked
from scdd.ops.nucleus import crossing

TOKENS = 3000


def rows(kind: str) -> Tensor:
    """Scores [n, V] of one sort, the last token forbidden."""
    scores = torch.randn(24, TOKENS, generator=torch.Generator().manual_seed(1))
    scores *= {"flat": 0.1, "usual": 3.0, "peaked": 12.0, "tied": 2.0}[kind]
    if kind == "tied":
        scores = scores.round()
    scores[:, -1] = -torch.inf
    return scores


@pytest.mark.parametrize("top_p", [0.05, 0.5, 0.9, 0.99999])
@pytest.mark.parametrize("kind", ["flat", "usual", "peaked", "tied"])
def test_the_nucleus_is_the_dense_ones_and_the_definitions(kind: str, top_p: float) -> None:
    scores = rows(kind)
    least, total = torch.full((len(scores),), -torch.inf), torch.logsumexp(scores, 1)
    threshold, kept, known = chunked.by_likely(scores, least, total, top_p)
    assert bool(known.all()), "the dense way is for what rounding spoils"
    dense, mass = chunked.by_bins(scores, least, total, top_p)
    assert torch.equal(threshold, dense)
    torch.testing.assert_close(kept, mass, rtol=1e-12, atol=0)
    whole = torch.softmax(scores.double(), 1)
    of_definition = torch.where(scores.double() >= crossing(scores.double(), top_p)[:, None], whole, 0.0).sum(1)
    torch.testing.assert_close(kept, of_definition, rtol=2e-3 if kind == "flat" else 1e-4, atol=1e-6)


def test_top_k_goes_before_and_rows_that_lack_mass_are_done_densely() -> None:
    scores = rows("usual")
    least = torch.topk(scores, 5, dim=1).values[:, -1]
    total = torch.logsumexp(scores.masked_fill(scores < least[:, None], -torch.inf), 1)
    threshold, kept, _ = chunked.by_likely(scores, least, total, 0.999999)
    assert torch.equal(threshold, least)
    torch.testing.assert_close(kept, torch.ones_like(kept), rtol=1e-5, atol=0)
    every = torch.full_like(total, -torch.inf)
    far = torch.logsumexp(scores, 1) + 1.0  # as if a total were far too large
    *_, known = chunked.by_likely(scores, every, far, 0.9)
    assert not bool(known.any())
    found, _ = chunked._nucleus(scores, every, far, 0.9)
    assert torch.equal(found, chunked.by_bins(scores, every, far, 0.9)[0])


@pytest.mark.parametrize("kind", ["flat", "usual", "peaked", "tied"])
def test_draws_are_bit_for_bit_those_from_whole_rows(kind: str) -> None:
    scores = rows(kind)
    total = torch.logsumexp(scores, 1)
    threshold, log_total = chunked._nucleus(scores, torch.full_like(total, -torch.inf), total, 0.9)
    u = torch.rand(len(scores), generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    u[:2] = torch.tensor([0.0, 1 - 2.0**-53])
    whole = scores.masked_fill(scores < threshold[:, None], -torch.inf) - log_total[:, None]
    expected = invert(whole.double(), u)
    found = chunked.draw_likely(scores, threshold, log_total, u)
    assert torch.equal(found[0], expected[0])
    assert torch.equal(found[1], expected[1])


def test_company_moves_no_bit() -> None:
    """Flat rows beside peaked ones make longer lists; a row's numbers are those it has alone."""
    scores = torch.cat([rows("peaked")[:4], rows("flat")[:4], rows("usual")[:4]])
    total = torch.logsumexp(scores, 1)
    least = torch.full_like(total, -torch.inf)
    threshold, kept, _ = chunked.by_likely(scores, least, total, 0.9)
    for i in range(len(scores)):
        one = slice(i, i + 1)
        alone = chunked.by_likely(scores[one], least[one], total[one], 0.9)
        assert torch.equal(alone[0], threshold[one])
        assert torch.equal(alone[1], kept[one])
