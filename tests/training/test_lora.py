"""LoRA: only thin matrices are trained, what is published is the network as it then is, and runs go on bit for bit."""

from __future__ import annotations

import shutil
import signal
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import scdd
from scdd.assemble.job import adapters
from scdd.bundle.folder import read
from scdd.core.errors import OptionError, UserError
from scdd.core.types import Vocab
from scdd.models.dit import DiT
from scdd.models.llama import Llama
from scdd.models.network import Network
from scdd.models.options import DiTConfig, LlamaConfig
from scdd.training.lora import adapt, merged, plain_names
from scdd.training.options import LoraOptions, TrainingOptions

from .. import tiny
from .conftest import Launch, said, weights
from .test_resume import same

pytest.importorskip("peft")
VOCAB = Vocab(size=12, mask_id=11)
OPTIONS = LoraOptions(rank=3, alpha=5.0)


def made(time: bool = False, seed: int = 0) -> DiT:
    config = DiTConfig(depth=2, width=16, heads=2, cond_width=8, time_conditioning=time)
    generator = torch.Generator().manual_seed(seed)
    net = DiT(config, VOCAB, generator)
    with torch.no_grad():
        for p in net.parameters():
            p.add_(0.3 * torch.randn(p.shape, generator=generator))
    return net


def check(plain: Network, adapted: Network, z: torch.Tensor, t: torch.Tensor) -> None:
    """Adapters start as no change; when they are one, the merged weights are the same network under its own names."""
    before = plain.logits(z, t)
    adapt(adapted, OPTIONS, torch.Generator().manual_seed(1))
    torch.testing.assert_close(adapted.logits(z, t), before, rtol=1e-5, atol=1e-5)
    trained = {name: p for name, p in adapted.named_parameters() if p.requires_grad}
    assert trained
    assert all("lora_" in name for name in trained)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for p in trained.values():
            p.normal_(0.0, 0.3, generator=generator)
    after = adapted.logits(z, t)
    assert not torch.allclose(after, before, atol=0.1)
    state = adapted.state_dict()
    weights = {plain: merged(name, state.__getitem__, OPTIONS) for plain, name in plain_names(state).items()}
    assert weights.keys() == plain.state_dict().keys()
    plain.load_weights(weights)
    torch.testing.assert_close(plain.logits(z, t), after, rtol=1e-4, atol=1e-4)
    adapted.logits(z, t)[..., : VOCAB.K].square().mean().backward()  # type: ignore[no-untyped-call]
    assert all((p.grad is not None) == (name in trained) for name, p in adapted.named_parameters())


@pytest.mark.parametrize("time", [False, True])
def test_merged_weights_are_the_adapted_network(time: bool) -> None:
    z, t = torch.randint(12, (3, 7), generator=torch.Generator().manual_seed(5)), torch.tensor([0.1, 0.5, 0.9])
    check(made(time), made(time), z, t)


def decoder(**changes: Any) -> Llama:
    config = LlamaConfig(depth=2, width=16, heads=4, kv_heads=2, head_width=4, mlp_width=24, **changes)
    net = Llama(config, VOCAB, torch.Generator().manual_seed(3))
    generator = torch.Generator().manual_seed(4)
    with torch.no_grad():
        for p in net.parameters():
            p.add_(0.2 * torch.randn(p.shape, generator=generator))
    return net


@pytest.mark.parametrize("bias", [False, True])
def test_merged_weights_are_the_adapted_decoder(bias: bool) -> None:
    z = torch.randint(12, (3, 7), generator=torch.Generator().manual_seed(5))
    one, other = (decoder(qkv_bias=bias, mlp_bias=bias, tied=bias) for _ in range(2))
    check(one, other, z, torch.tensor([0.1, 0.5, 0.9]))


def test_a_window_is_the_same_under_adapters() -> None:
    """The adapted decoder has the merged one's values, and its factors the gradients that follow from the merged matrices'."""
    z = torch.randint(12, (2, 140), generator=torch.Generator().manual_seed(5))
    plain, adapted, whole = decoder(attention_window=3), decoder(attention_window=3), decoder()
    check(plain, adapted, z, torch.tensor([0.1, 0.9]))
    whole.load_state_dict(plain.state_dict())
    assert not torch.allclose(plain.logits(z), whole.logits(z), atol=1e-3), "or the window cuts nothing"
    plain.logits(z)[..., : VOCAB.K].square().mean().backward()  # type: ignore[no-untyped-call]
    for name in plain.hidden_matrices():
        layer, matrix = adapted.get_submodule(name.removesuffix(".weight")), plain.get_parameter(name)
        down, up = (layer.get_parameter(f"lora_{factor}.default.weight") for factor in "AB")
        assert matrix.grad is not None
        assert matrix.grad.abs().max() > 1e-3
        close = partial(torch.testing.assert_close, rtol=1e-3, atol=1e-5, msg=lambda text, n=name: f"{n}: {text}")
        close(up.grad, OPTIONS.scale * matrix.grad @ down.detach().T)
        close(down.grad, OPTIONS.scale * up.detach().T @ matrix.grad)


def test_all_four_matrices_of_a_block_are_adapted_or_those_that_are_named() -> None:
    for targets, count in ((None, 8), (("qkv",), 2), (("blocks.1.out", "mlp_in"), 3)):
        net = made()
        options = LoraOptions(2, 2.0, targets)
        adapt(net, options, torch.Generator())
        assert sum(name.endswith("lora_A.default.weight") for name in net.state_dict()) == count
        assert adapters(net.config, options) == sum(p.numel() for p in net.parameters() if p.requires_grad)
    with pytest.raises(UserError, match=r"lora.targets names q_proj, .*choose of qkv, out, mlp_in, mlp_out"):
        adapt(made(), LoraOptions(2, 2.0, ("q_proj",)), torch.Generator())


@pytest.mark.slow
def test_an_adapted_network_is_one_graph() -> None:
    net, z, t = made(), torch.randint(12, (2, 5)), torch.tensor([0.2, 0.7])
    adapt(net, OPTIONS, torch.Generator().manual_seed(1))
    eager = net.hidden(z, t)
    net.compile(fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(net.hidden(z, t), eager)


def test_without_peft_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(
        UserError, match=r"lora needs the peft package: in a checkout of scdd, pip install -e '\.\[lora\]'"
    ):
        adapt(made(), OPTIONS, torch.Generator())


def test_adapters_do_not_depend_on_global_state() -> None:
    drawn = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        net = made()
        adapt(net, OPTIONS, torch.Generator().manual_seed(7))
        drawn.append({name: p for name, p in net.state_dict().items() if "lora" in name})
    assert all(torch.equal(drawn[0][name], drawn[1][name]) for name in drawn[0])


def test_a_network_without_linear_layers_is_refused() -> None:
    net = made()
    for block in net.blocks:
        for name, child in list(block.named_children()):
            if isinstance(child, nn.Linear):
                setattr(block, name, nn.Identity())
    net.time.first = net.time.second = net.modulation = nn.Identity()  # type: ignore[assignment]
    with pytest.raises(UserError, match="has none: train it as a whole"):
        adapt(net, OPTIONS, torch.Generator())


def test_muon_has_no_whole_matrices_to_train() -> None:
    with pytest.raises(OptionError, match="muon trains whole matrices"):
        TrainingOptions(steps=1, batch_size=1, muon=0.02, lora=LoraOptions())


@pytest.fixture
def launch(launch: Launch) -> Launch:
    """Runs that find peft imported."""
    return partial(launch, imports=["peft"])


@pytest.fixture
def sets(tmp_path: Path, text: Path) -> list[str]:
    start = tiny.checkpoint(tmp_path / "start")
    tuned = f"data={{kind: text, path: {text}, tokenizer: {start}/tokenizer.json, length: 16, valid_fraction: 0.2}}"
    return [tuned, f"training.start_from={start}", "model={kind: pretrained}", "training.lora={rank: 2}"]


def test_a_run_trains_adapters_alone_and_publishes_a_plain_network(
    launch: Launch, tmp_path: Path, sets: list[str]
) -> None:
    out = tmp_path / "run"
    assert launch(out, sets=[*sets, "training.steps=10"]) == [0], said(tmp_path, out)
    assert "M are trained, on cpu" in said(tmp_path, out)
    start, published = read(tmp_path / "start").weights, read(out).weights
    assert published.keys() == start.keys()
    changed = {name for name in start if not torch.equal(start[name], published[name])}
    assert changed == {f"blocks.{i}.{name}.weight" for i in range(2) for name in ("qkv", "out", "mlp_in", "mlp_out")}
    assert scdd.load(out).generate(length=8, steps=4)[0].text
    state = load_file(next((out / "checkpoints").glob("step-*")) / "resume" / "state.safetensors")
    assert torch.equal(state["model.network.blocks.0.out.base_layer.weight"], start["blocks.0.out.weight"])
    held = {name for name in state if name.startswith(("optimiser.", "ema."))}
    assert held
    assert all("lora_" in name for name in held)


def test_it_goes_on_with_the_same_bits_without_what_it_started_from(
    launch: Launch, tmp_path: Path, sets: list[str]
) -> None:
    assert launch(tmp_path / "calm", sets=sets) == [0]
    assert launch(tmp_path / "killed", sets=sets, operation=26) == [-signal.SIGKILL]
    shutil.copy(tmp_path / "start" / "tokenizer.json", tmp_path / "kept.json")
    shutil.rmtree(tmp_path / "start")
    (tmp_path / "start").mkdir()
    shutil.move(tmp_path / "kept.json", tmp_path / "start" / "tokenizer.json")  # which the data section names
    assert launch(tmp_path / "killed", sets=sets) == [0], said(tmp_path, tmp_path / "killed")
    assert "resuming from" in said(tmp_path, tmp_path / "killed")
    same(tmp_path / "calm", tmp_path / "killed")


@pytest.mark.dist
def test_adapters_on_shards_are_adapters_on_whole_matrices(launch: Launch, tmp_path: Path, sets: list[str]) -> None:
    sets = [*sets, "training.steps=6", "training.epsilon=1e-2"]  # or AdamW makes steps of rounding
    assert launch(tmp_path / "one", sets=sets) == [0]
    out = tmp_path / "fsdp"
    assert launch(out, 2, [*sets, "training.parallel=fsdp"]) == [0, 0], said(tmp_path, out)
    whole = weights(tmp_path / "one")
    for name, value in weights(out).items():
        torch.testing.assert_close(value, whole[name], atol=1e-5, rtol=1e-4, msg=name)
