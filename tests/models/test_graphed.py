"""A network behind a CUDA graph answers as the network itself does."""

from __future__ import annotations

import pytest
import torch

from scdd.core import Vocab
from scdd.models.dit import DiT
from scdd.models.graphed import Graphed
from scdd.models.options import SIZES


def network(device: str) -> DiT:
    model = DiT(SIZES["nano"], Vocab(33, 32), torch.Generator().manual_seed(0)).to(device).eval()
    for block in model.blocks:
        torch.nn.init.normal_(block.modulation.weight, std=0.1)  # type: ignore[union-attr, arg-type]
    return model


@pytest.mark.gpu
def test_replays_equal_the_network_for_every_shape_and_call() -> None:
    model = network("cuda")
    graphed = Graphed(model, most=2)
    with torch.no_grad():
        for shape in ((2, 8), (3, 16), (2, 8), (1, 4), (3, 16)):
            tokens = torch.randint(33, shape, device="cuda")
            times = torch.rand(shape[0], dtype=torch.float64, device="cuda")
            assert torch.equal(graphed.hidden(tokens, times), model.hidden(tokens, times))


def test_without_a_gpu_it_is_the_network() -> None:
    model = network("cpu")
    graphed = Graphed(model)
    tokens = torch.randint(33, (2, 8))
    with torch.no_grad():
        assert torch.equal(graphed.hidden(tokens), model.hidden(tokens))
        assert torch.equal(graphed.logits(tokens), model.logits(tokens))
    assert graphed.vocab is model.vocab
    assert graphed.head.weight is model.head.weight
