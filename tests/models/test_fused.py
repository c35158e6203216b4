"""Networks whose attention and MLPs run in kernels of `ops` while training: the gradients of torch's own."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from scdd.core import Vocab
from scdd.models import attention
from scdd.models.compiled import compile_network
from scdd.models.dit import DiT
from scdd.models.llama import Llama
from scdd.models.network import Network
from scdd.models.options import DiTConfig, LlamaConfig

VOCAB = Vocab(300, 299)
NETWORKS = {
    "llama": lambda: Llama(LlamaConfig(depth=2, width=192, heads=6, kv_heads=2, head_width=32, mlp_width=256), VOCAB),
    "llama with biases": lambda: Llama(
        LlamaConfig(depth=2, width=128, heads=2, kv_heads=2, head_width=64, mlp_width=128, qkv_bias=True), VOCAB
    ),
    "dit": lambda: DiT(DiTConfig(depth=2, width=128, heads=4, cond_width=32), VOCAB),
    "dit with time": lambda: DiT(DiTConfig(depth=2, width=128, heads=2, cond_width=32, time_conditioning=True), VOCAB),
}


def gradients(network: Network) -> dict[str, Tensor]:
    """Of a sum that weighs every number of the hidden states otherwise."""
    network.zero_grad()
    z = torch.randint(300, (3, 64), generator=torch.Generator().manual_seed(1)).cuda()
    states = network.hidden(z, torch.linspace(0.2, 0.9, 3, device="cuda"))
    (states * torch.sin(torch.arange(states.numel(), device="cuda")).view_as(states)).float().sum().backward()
    return {name: p.grad.clone() for name, p in network.named_parameters() if p.grad is not None}


@pytest.mark.gpu
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("name", NETWORKS)
def test_gradients_are_those_of_torchs_own(name: str, compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    network = NETWORKS[name]().cuda()
    if isinstance(network, Llama):
        network.lookahead = None
    for parameter in network.parameters():
        if not parameter.detach().any():
            torch.nn.init.normal_(parameter, std=0.05)
    monkeypatch.setattr(attention, "FUSED", False)
    exact = gradients(network)  # in float32, where nothing is fused
    network.compute_dtype = torch.bfloat16
    plain = gradients(network)
    monkeypatch.setattr(attention, "FUSED", True)
    if compiled:
        compile_network(network)
    found = gradients(network)
    assert found.keys() == exact.keys()
    for key, truth in exact.items():
        usual = (plain[key] - truth).norm()
        assert (found[key] - truth).norm() <= 2 * usual + 0.01 * truth.norm(), key
