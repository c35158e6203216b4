"""Attention inside documents: the kernel against PyTorch's own with a mask, and rows that know nothing of each other."""

from __future__ import annotations

import math
from importlib.util import find_spec

import pytest
import torch
from torch import Tensor

from scdd.core import UserError
from scdd.ops.documents import attention, takes_documents
from tests.ops.cases import CUDA

TRITON = pytest.mark.skipif(find_spec("triton") is None, reason="no Triton here")
HALF = torch.bfloat16 if CUDA == "cuda" else torch.float16  # the interpreter multiplies no bfloat16
NEAR = {torch.float32: 5e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}  # of values about 1
MANY = CUDA == "cuda"  # the interpreter takes its time
LENGTHS = (
    (1, 2, 15, 16, 17, 31, 33, 63, 64, 65, 100, 127, 128, 132, 136, 200, 264, 300) if MANY else (1, 2, 17, 64, 132, 136)
)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several blocks for small rows, in the interpreter too."""
    if not MANY and find_spec("triton") is not None:
        from scdd.ops.documents import triton

        monkeypatch.setattr(triton, "SHAPE", triton.Shape(32, 16, 1, 1))
        monkeypatch.setattr(triton, "IDS", 16)
        monkeypatch.setattr(triton, "SKIPS", 40)


def inputs(batch: int, heads: tuple[int, int], length: int, width: int, dtype: torch.dtype) -> tuple[Tensor, ...]:
    """Queries, keys and values as a network has them: parts of one product, heads behind positions."""
    generator = torch.Generator().manual_seed(length + width)
    every = torch.randn(batch, length, heads[0] + 2 * heads[1], width, generator=generator).to(CUDA, dtype)
    q, k, v = every.split((heads[0], heads[1], heads[1]), dim=2)
    return q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)


def layouts(length: int) -> Tensor:
    """Rows [5, L]: one document, one and padding, several, several whose numbers are in no order, padding alone."""
    at = torch.arange(length)
    return torch.stack(
        [
            torch.zeros(length, dtype=torch.long),
            torch.where(at < 1 + length // 2, 0, -1),
            torch.where(at < length - length // 6, at * 4 // length, -1),
            (at * 7 // 3) % 3 - 1,
            torch.full((length,), -1),
        ]
    ).to(CUDA)


def check(q: Tensor, k: Tensor, v: Tensor, documents: Tensor | None, causal: bool) -> Tensor:
    found = attention(q, k, v, documents, causal, impl="triton")
    exact = attention(q.double(), k.double(), v.double(), documents, causal, impl="reference")
    assert found.shape == exact.shape
    assert found.dtype == q.dtype
    torch.testing.assert_close(found.double(), exact, rtol=NEAR[q.dtype], atol=NEAR[q.dtype])
    return found


@TRITON
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("length", LENGTHS)
def test_the_kernel_is_the_reference_at_every_length(length: int, causal: bool) -> None:
    check(*inputs(5, (3, 1), length, 64, HALF), layouts(length), causal)
    if MANY:
        check(*inputs(5, (4, 4), length, 64, HALF), layouts(length), causal)


@TRITON
@pytest.mark.parametrize("dtype", [HALF, torch.float32])
@pytest.mark.parametrize("heads", [(2, 2), (6, 2), (5, 1)])
@pytest.mark.parametrize("width", [8, 32, 80, 96, 128])
def test_and_at_every_width(width: int, heads: tuple[int, int], dtype: torch.dtype) -> None:
    length = 136 if MANY else 21
    check(*inputs(5, heads, length, width, dtype), layouts(length), causal=False)


@TRITON
@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("length", [7, 16, 24, 45, 80])
def test_and_over_many_blocks(length: int, causal: bool) -> None:
    check(*inputs(5, (3, 1), length, 32, torch.float32), layouts(length), causal)
    check(*inputs(2, (3, 1), length, 32, torch.float32), None, causal)


@TRITON
@pytest.mark.usefixtures("small")
def test_keys_that_are_left_out_would_not_change_a_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    from scdd.ops.documents import triton

    length = 300 if MANY else 70
    given = inputs(5, (3, 1), length, 64, HALF)
    for causal in (False, True):
        found = []
        for least in (0, length, length + 1):
            monkeypatch.setattr(triton, "SKIPS", least)
            found.append(attention(*given, layouts(length), causal, impl="triton"))
        assert torch.equal(found[0], found[1])
        assert torch.equal(found[0], found[2])


@TRITON
@pytest.mark.usefixtures("small")
def test_no_row_depends_on_its_batch() -> None:
    """Alone, in another place, and among others: the same bits. Nor do tokens depend on other documents of their row."""
    length = 136 if MANY else 40
    q, k, v = inputs(5, (6, 2), length, 64, HALF)
    documents = layouts(length)
    whole = attention(q, k, v, documents, impl="triton")
    for i in range(5):
        alone = attention(q[i : i + 1], k[i : i + 1], v[i : i + 1], documents[i : i + 1], impl="triton")
        assert torch.equal(alone[0], whole[i])
    order = torch.tensor([3, 0, 4, 2, 1, 1, 0], device=CUDA)
    moved = attention(q[order], k[order], v[order], documents[order], impl="triton")
    assert torch.equal(moved, whole[order])
    other = (documents != 0)[:, None, :, None]
    q, k, v = (torch.where(other, 7.0, each) for each in (q, k, v))
    changed = attention(q, k, v, documents, impl="triton")
    mine = (documents == 0)[:, None, :, None]
    assert torch.equal(torch.where(mine, changed, 0.0), torch.where(mine, whole, 0.0))


@TRITON
def test_layouts_in_memory_are_no_matter() -> None:
    q, k, v = inputs(2, (6, 2), 20, 32, HALF)
    documents = layouts(20)[1:3]
    usual = check(q, k, v, documents, causal=False)
    assert usual.transpose(1, 2).is_contiguous()
    for change in (Tensor.contiguous, lambda x: x.mT.contiguous().mT, lambda x: torch.cat([x, x], -1)[..., ::2]):
        check(change(q), change(k), change(v), documents, causal=True)
    spread = torch.stack([documents, documents.flip(1)], -1).int()[..., 0]
    assert torch.equal(attention(q, k, v, spread, impl="triton"), usual)
    expanded = documents[:1].expand(2, 20)
    check(q, k, v, expanded, causal=False)
    assert attention(q[:0], k[:0], v[:0], documents[:0], impl="triton").shape == (0, 6, 20, 32)


@TRITON
def test_large_scores_and_other_numbers_of_keys() -> None:
    q, k, v = inputs(2, (3, 1), 24, 64, HALF)
    check(q * 30, k * 30, v, layouts(24)[1:3], causal=False)
    for causal in (False, True):
        check(q[:, :, :5], k, v, None, causal)
        check(q, k[:, :, :9], v[:, :, :9], None, causal)


def test_the_reference_by_hand() -> None:
    """And what runs where: no kernel on a CPU, nor where gradients are wanted."""
    q, k, v = (each.cpu().double() for each in inputs(1, (4, 2), 6, 8, torch.float32))
    documents = torch.tensor([[5, 5, 2, 5, -1, -1]])
    found = attention(q, k, v, documents)
    for h, i in ((0, 0), (3, 3), (2, 2), (1, 5)):
        seen = (documents[0] == documents[0, i]).nonzero()[:, 0]
        scores = k[0, h // 2, seen] @ q[0, h, i] / math.sqrt(8)
        torch.testing.assert_close(found[0, h, i], scores.softmax(0) @ v[0, h // 2, seen])
    first = attention(q, k, v, documents, causal=True)
    torch.testing.assert_close(first[0, :, 2], v[0, [0, 0, 1, 1], 2])
    assert not takes_documents(q, 8)
    with pytest.raises(UserError, match="impl"):
        attention(q, k, v, documents, impl="cuda")
    with pytest.raises(ValueError, match="do not fit"):
        attention(q, k, v, documents[:, :5])


@pytest.mark.gpu
@TRITON
def test_who_takes_documents_on_a_gpu() -> None:
    x = torch.zeros(1, dtype=torch.bfloat16, device="cuda")
    assert not takes_documents(x, 64)
    with torch.no_grad():
        assert takes_documents(x, 64)
        assert takes_documents(x.half(), 128)
        assert not takes_documents(x.float(), 64)
        assert not takes_documents(x, 256)


# -- windows -----------------------------------------------------------------------------------------------------------


def by_hand(q: Tensor, k: Tensor, v: Tensor, documents: Tensor | None, causal: bool, window: int) -> Tensor:
    """Query by query, from the definition, in float64."""
    q, k, v = q.double().cpu(), k.double().cpu(), v.double().cpu()
    batch, heads, length, width = q.shape
    out = torch.empty(batch, heads, length, width, dtype=torch.float64)
    for b in range(batch):
        for i in range(length):
            seen = [
                j
                for j in range(length)
                if (abs(i - j) <= window or j == 0)
                and (j <= i or not causal)
                and (documents is None or documents[b, i] == documents[b, j])
            ]
            for h in range(heads):
                shared = h * k.shape[1] // heads
                weights = (k[b, shared, seen] @ q[b, h, i] * width**-0.5).softmax(0)
                out[b, h, i] = weights @ v[b, shared, seen]
    return out


WAYS = ["reference", "chunked", pytest.param("triton", marks=TRITON)]


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several pieces of small rows."""
    from scdd.ops.documents import chunked

    monkeypatch.setattr(chunked, "QUERIES", 16)


@pytest.mark.usefixtures("small", "few")
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("length", "window"), [(3, 1), (40, 7), (45, 20), (70, 13)])
@pytest.mark.parametrize("impl", WAYS)
def test_a_window_shows_its_surroundings_and_the_rows_first_token(
    impl: str, length: int, window: int, causal: bool
) -> None:
    q, k, v = inputs(5, (4, 2), length, 16, torch.float32)
    for documents in (None, layouts(length)):
        found = attention(q, k, v, documents, causal, window, impl="auto" if impl == "chunked" else impl)
        exact = by_hand(q, k, v, documents, causal, window)
        torch.testing.assert_close(found.double().cpu(), exact, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("impl", WAYS)
def test_a_window_as_wide_as_the_row_changes_no_bit(impl: str) -> None:
    q, k, v = inputs(2, (4, 2), 24, 16, torch.float32)
    way = "auto" if impl == "chunked" else impl
    for documents in (None, layouts(24)[:2]):
        plain = attention(q, k, v, documents, impl=way)
        assert torch.equal(attention(q, k, v, documents, window=23, impl=way), plain)
        assert not torch.equal(attention(q, k, v, documents, window=22, impl=way), plain)


@pytest.mark.usefixtures("few")
def test_a_windows_gradients_are_the_references() -> None:
    leaves = [each.double().requires_grad_() for each in inputs(2, (4, 2), 70, 8, torch.float32)]
    upstream = torch.randn(2, 4, 70, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(3)).to(CUDA)
    for documents in (None, layouts(70)[1:3]):
        found, exact = (
            torch.autograd.grad(attention(*leaves, documents, window=9, impl=impl), leaves, upstream)
            for impl in ("auto", "reference")
        )
        for one, other in zip(found, exact, strict=True):
            torch.testing.assert_close(one, other)


@TRITON
@pytest.mark.usefixtures("small")
def test_what_a_window_leaves_out_is_never_read() -> None:
    """Keys beyond it may be anything, NaN too; the row's first is looked at."""
    length, window = 64, 5  # four whole blocks of keys
    q, k, v = inputs(1, (2, 1), length, 16, torch.float32)
    here = attention(q, k, v, window=window, impl="triton")
    k2, v2 = k.clone(), v.clone()
    k2[:, :, 32:], v2[:, :, 32:] = torch.nan, torch.nan
    there = attention(q, k2, v2, window=window, impl="triton")
    if not MANY:  # whose programs have the first 16 places to themselves
        assert torch.equal(here[:, :, :16], there[:, :, :16])
    assert there[:, :, 32:].isnan().all()
    k2, v2 = k.clone(), v.clone()
    v2[:, :, 0] += 1
    assert not torch.equal(attention(q, k2, v2, window=window, impl="triton")[:, :, -1], here[:, :, -1])


def test_a_window_is_about_whole_rows() -> None:
    q, k, v = inputs(1, (2, 1), 8, 16, torch.float32)
    with pytest.raises(ValueError, match="whole rows"):
        attention(q[:, :, :4], k, v, window=2)
