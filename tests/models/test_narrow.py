"""Networks that train in FP8: near bfloat16's gradients, the same weights under the same names, and refusals."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from scdd.assemble import training as build
from scdd.core import UserError, Vocab
from scdd.models.compiled import compile_network
from scdd.models.dit import DiT
from scdd.models.llama import Llama
from scdd.models.narrow import NarrowLinear, set_fp8, to_fp8
from scdd.models.network import Network
from scdd.models.options import DiTConfig, LlamaConfig
from scdd.ops import fp8
from scdd.recipe import load as recipe
from scdd.training.parallel import World

VOCAB = Vocab(300, 299)
NETWORKS = {
    "llama": lambda: Llama(LlamaConfig(depth=2, width=96, heads=6, kv_heads=2, head_width=16, mlp_width=128), VOCAB),
    "dit": lambda: DiT(DiTConfig(depth=2, width=64, heads=4, cond_width=32), VOCAB),
    "dit with time": lambda: DiT(DiTConfig(depth=2, width=64, heads=2, cond_width=32, time_conditioning=True), VOCAB),
}
NAMED = pytest.mark.parametrize("name", NETWORKS)


def network(name: str, device: str = "cpu") -> Network:
    torch.manual_seed(0)
    made = NETWORKS[name]().to(device)
    for parameter in made.parameters():
        if not parameter.detach().any():
            torch.nn.init.normal_(parameter, std=0.05)
    made.compute_dtype = torch.bfloat16
    return made


def states_of(net: Network) -> Tensor:
    device = next(net.parameters()).device
    z = torch.randint(300, (3, 32), generator=torch.Generator().manual_seed(1)).to(device)
    return net.hidden(z, torch.linspace(0.2, 0.9, 3, device=device))


def gradients(net: Network) -> dict[str, Tensor]:
    """Of a sum that weighs every number of the hidden states otherwise."""
    net.zero_grad()
    states = states_of(net)
    (states * torch.sin(torch.arange(states.numel(), device=states.device)).view_as(states)).float().sum().backward()
    return {name: p.grad.clone() for name, p in net.named_parameters() if p.grad is not None}


def near(found: dict[str, Tensor], truth: dict[str, Tensor], share: float) -> None:
    assert found.keys() == truth.keys()
    every = [torch.cat([grads[key].double().flatten() for key in truth]) for grads in (found, truth)]
    assert 0 < (every[0] - every[1]).norm() < share * every[1].norm()


@NAMED
def test_gradients_near_bfloat16s_and_nothing_else_changes(name: str) -> None:
    net = network(name)
    plain, weights = gradients(net), dict(net.state_dict())
    with torch.no_grad():
        before = states_of(net)
    assert to_fp8(net) == 8
    assert sum(isinstance(each, NarrowLinear) for each in net.modules()) == 8
    near(gradients(net), plain, 0.2)
    assert list(net.state_dict()) == list(weights)
    assert all(p.data_ptr() == weights[key].data_ptr() for key, p in net.state_dict().items())
    with torch.no_grad():  # a checkpoint's network is validated and sampled from
        assert torch.equal(states_of(net), before)


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("name", ["llama", "dit"])
def test_the_compiler_sees_one_graph(name: str, recompute: bool) -> None:
    net = network(name)
    to_fp8(net)
    net.recompute = recompute  # type: ignore[assignment]
    plain = gradients(net)
    torch._dynamo.reset()
    compile_network(net, backend="aot_eager")
    for key, truth in gradients(net).items():
        assert (truth - plain[key]).norm() <= 0.05 * plain[key].norm() + 1e-6, key


def test_refusals(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="the device is cpu: use bf16"):
        set_fp8(network("dit"), torch.device("cpu"))
    narrow = ["training.compile=true", "training.precision=fp8"]
    spec = recipe.load("nano", [*narrow, "training.steps=2", "training.batch_size=4"])
    with pytest.raises(UserError, match="precision fp8 needs a GPU"):
        build.trainer(spec, tmp_path / "run", World(), build.corpus(spec))
    with pytest.raises(UserError, match="lora keeps them"):
        recipe.load("nano", [*narrow, "training.lora={rank: 2}"])
    with pytest.raises(UserError, match="set compile to true"):
        recipe.load("nano", ["training.compile=false", "training.precision=fp8"])


def test_a_network_without_such_matrices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fp8, "supported", lambda device: True)
    odd = DiT(DiTConfig(depth=1, width=24, heads=2, cond_width=8), VOCAB)
    with pytest.raises(UserError, match="multiples of 16"):
        set_fp8(odd, torch.device("cpu"))


def test_a_recipe_trains_and_resumes_to_the_same_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the reference, on a CPU, which a recipe would refuse."""
    monkeypatch.setattr(fp8, "supported", lambda device: True)
    changes = [
        "steps=4",
        "batch_size=4",
        "validate_batches=1",
        "compile=true",
        "precision=fp8",
        "background_save=false",
    ]
    spec = recipe.load("nano", [f"training.{each}" for each in changes])
    data = build.corpus(spec)

    def weights(folder: str, stop: int) -> list[Tensor]:
        trainer = build.trainer(spec, tmp_path / folder, World(), data)
        assert any(isinstance(each, NarrowLinear) for each in trainer.module.modules())
        trainer.resume()
        batches = iter(trainer.loader)
        while trainer.step < stop:
            trainer.advance(next(batches))
        trainer.save()
        return [p.detach().clone() for p in trainer.module.parameters()]

    start, whole = weights("a", 0), weights("b", 4)
    weights("c", 2)
    resumed = weights("c", 4)
    assert all(each.dtype == torch.float32 for each in whole)
    assert all(torch.equal(x, y) for x, y in zip(whole, resumed, strict=True))
    assert not all(torch.equal(x, y) for x, y in zip(whole, start, strict=True))


@pytest.mark.gpu
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@NAMED
def test_a_gpus_gradients(name: str, compiled: bool) -> None:
    if not fp8.supported(torch.device("cuda")):
        pytest.skip("this GPU has no FP8 products")
    net = network(name, "cuda")
    plain = gradients(net)
    set_fp8(net, torch.device("cuda"))
    if compiled:
        torch._dynamo.reset()
        compile_network(net)
    near(gradients(net), plain, 0.2)
