"""Networks that hand document numbers to a kernel give what they give with a mask."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from importlib.util import find_spec
from typing import Any

import pytest
import torch
from torch import Tensor

from scdd.core import Vocab
from scdd.models.dit import DiT
from scdd.models.llama import Llama
from scdd.models.options import DiTConfig, LlamaConfig
from scdd.ops import documents as ops
from tests.models import test_dit, test_llama
from tests.ops.cases import CUDA

pytestmark = pytest.mark.skipif(find_spec("triton") is None, reason="no Triton here")
BUNDLED = LlamaConfig(depth=14, width=576, heads=9, kv_heads=3, head_width=64, mlp_width=1536)


@pytest.fixture
def kernel_calls(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[torch.Size]]:
    """Shapes of queries that came to the kernel, which runs wherever nobody wants gradients, in the interpreter too."""
    calls: list[torch.Size] = []
    kernel = partial(ops.attention, impl="triton")

    def seen(q: Tensor, *rest: Any) -> Tensor:
        calls.append(q.shape)
        return kernel(q, *rest)

    monkeypatch.setattr(ops, "takes_documents", lambda x, width: not torch.is_grad_enabled())
    monkeypatch.setattr(ops, "attention", seen)
    return calls


def rows() -> tuple[Tensor, Tensor]:
    """Packed, padded at either end, all padding."""
    documents = torch.tensor([[3] * 4 + [8] * 6 + [-1] * 2, [-1] * 3 + [0] * 9, [-1] * 12, [0] * 12])
    return (test_llama.tokens(4, 12) % 49).to(CUDA), documents.to(CUDA)


CASES = {name: partial(test_llama.network, **changes) for name, changes in test_llama.VARIANTS.items()}
CASES |= {"causal": partial(test_llama.network, causal=True), "dit": test_dit.network}
CASES |= {"causal dit": partial(test_dit.network, causal=True)}


@pytest.mark.parametrize("case", CASES)
def test_the_kernel_changes_nothing(case: str, kernel_calls: list[torch.Size]) -> None:
    model, (z, documents) = CASES[case]().to(CUDA), rows()
    masked = model.hidden(z, documents=documents)  # gradients are wanted
    assert not kernel_calls
    with torch.no_grad():
        found = model.hidden(z, documents=documents)
        assert len(kernel_calls) == len(model.layers())
        torch.testing.assert_close(found, masked, rtol=1e-4, atol=5e-5)
        assert torch.isfinite(found).all()
        model.hidden(z)
        same = model.hidden(z, documents=documents[:1])  # one row for all
        torch.testing.assert_close(same[0], found[0], rtol=1e-4, atol=5e-5)
        model.hidden(z, documents=documents >= 0)  # told apart by other than numbers
    assert len(kernel_calls) == 2 * len(model.layers())


def test_a_lookahead_keeps_its_mask(kernel_calls: list[torch.Size]) -> None:
    model, (z, documents) = test_llama.network().to(CUDA), rows()
    with torch.no_grad():
        found = model.hidden(z, documents=documents, lookahead=2)
        assert not kernel_calls
        model.hidden(z, documents=documents, lookahead=0)
    assert len(kernel_calls) == 2
    torch.testing.assert_close(found, model.hidden(z, documents=documents, lookahead=2), rtol=1e-4, atol=5e-5)


def test_numbers_that_no_kernel_takes_become_a_mask_in_the_block(monkeypatch: pytest.MonkeyPatch) -> None:
    """Something inside a block may have made activations of another kind."""
    model, (z, documents) = test_llama.network(), (each.cpu() for each in rows())
    masked = model.hidden(z, documents=documents)
    monkeypatch.setattr(ops, "takes_documents", lambda x, width: True)
    torch.testing.assert_close(model.hidden(z, documents=documents), masked, rtol=1e-4, atol=5e-5)


# -- on a GPU -----------------------------------------------------------------------------------------------------------


def on_gpu(kind: str) -> Llama | DiT:
    vocab, generator = Vocab(1000, 999), torch.Generator().manual_seed(0)
    if kind == "llama":
        model: Llama | DiT = Llama(BUNDLED, vocab, generator)
    else:
        model = DiT(DiTConfig(depth=4, width=768, heads=12, cond_width=128), vocab, generator)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(2).add_(torch.empty_like(parameter).normal_(0, 0.01, generator=generator))
    return model.cuda().eval().requires_grad_(False)


def padded_rows(batch: int, length: int) -> tuple[Tensor, Tensor]:
    z = torch.randint(0, 999, (batch, length), generator=torch.Generator().manual_seed(1)).cuda()
    ends = 1 + (37 * torch.arange(batch) % length)
    documents = torch.where(torch.arange(length) < ends[:, None], torch.arange(length) // 50, -1)
    documents[::3] = documents[::3].clamp(max=0)  # most rows have one text and padding
    return z, documents.cuda()


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["llama", "dit"])
@torch.no_grad()
def test_bfloat16_on_a_gpu_stays_near_float32(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, (z, documents) = on_gpu(kind), padded_rows(16, 136)
    exact = model.hidden(z, documents=documents)
    model.compute_dtype = torch.bfloat16
    found = model.hidden(z, documents=documents)
    monkeypatch.setattr(ops, "takes_documents", lambda x, width: False)
    masked = model.hidden(z, documents=documents)
    assert not torch.equal(found, masked)  # another kernel did it
    errors = [((each.float() - exact).norm() / exact.norm()).item() for each in (found, masked)]
    assert errors[0] < 0.05
    assert errors[0] < 1.2 * errors[1]


@pytest.mark.gpu
@torch.no_grad()
def test_documents_may_change_under_a_graph() -> None:
    model, (z, documents) = on_gpu("llama").bfloat16(), padded_rows(4, 136)
    held = documents.clone()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        model.hidden(z, documents=held)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = model.hidden(z, documents=held)
    for now in (documents, documents.flip(0), torch.zeros_like(documents), torch.full_like(documents, -1)):
        held.copy_(now)
        graph.replay()
        assert torch.equal(found, model.hidden(z, documents=now))
