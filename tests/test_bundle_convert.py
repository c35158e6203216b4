"""Conversion: the same logits as the authors' networks, both layouts, and no pickled code is ever run."""

from __future__ import annotations

import os
import pickle
import sys
import types
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from scdd.bundle.folder import read, write
from scdd.core.errors import UserError
from scdd.core.types import Vocab
from scdd.models.dit import DiT
from scdd.models.options import DiTConfig, make_network
from scdd.models.weights.authors import from_gidd, from_reference
from scdd.models.weights.checkpoint import NetworkFile
from scdd.models.weights.inert import Inert
from scdd.models.weights.unpickle import StoredTensor, read_checkpoint
from tests.layouts import to_gidd, to_reference
from tests.reference_network import State, logits, random_state

HEADS = 2
Z = torch.randint(0, 50, (3, 9), generator=torch.Generator().manual_seed(0))
T = torch.tensor([0.05, 0.5, 0.97], dtype=torch.float64)


def reference(seed: int = 0, adaptive: bool = True) -> State:
    return random_state(rows=50, width=16, depth=2, cond=8, heads=HEADS, seed=seed, adaptive=adaptive)


def load(file: Path, vocab: Vocab | None = None, **told: Any) -> tuple[DiT, int]:
    found = NetworkFile.open(file)
    return found.network(vocab, **told), found.step


def prefixed(state: State, prefix: str = "backbone.") -> State:
    return {prefix + name: value for name, value in state.items()}


def same(ours: Tensor, theirs: Tensor, mask_id: int = 49) -> bool:
    """Equal but at the mask, which is −inf in ours."""
    keep = torch.arange(ours.shape[-1]) != mask_id
    return torch.allclose(ours[..., keep], theirs[..., : ours.shape[-1]][..., keep], rtol=1e-5, atol=1e-5)


def gidd(bias: float = 0.7) -> State:
    state = random_state(rows=128, width=16, depth=2, cond=8, heads=HEADS, seed=3)
    del state["rotary_emb.inv_freq"]
    angles = torch.zeros(1, 32, 3, 1, 8)
    return state | {
        "rotary_emb.cos_cached": angles,
        "rotary_emb.sin_cached": angles,
        "logit_bias": torch.full((1, 1, 1), bias),
    }


@pytest.mark.parametrize("prefix", ["", "backbone.", "backbone._orig_mod.", "module.backbone."])
def test_the_reference_network_without_time(prefix: str) -> None:
    state = reference()
    model = from_reference(prefixed(state, prefix) | {"other.thing": torch.ones(1)} if prefix else state)
    assert model.config == DiTConfig(depth=2, width=16, heads=HEADS, cond_width=8)
    assert model.vocab == Vocab(50, 49)
    assert same(model.logits(Z, T), logits(state, Z, torch.zeros(3), HEADS))
    assert (model.head.weight[50:] == 0).all()


def test_the_reference_network_with_time() -> None:
    state = reference()
    model = from_reference(state, vocab=Vocab(50, 7), time_conditioning=True)
    sigma = -torch.log(1 - (1 - 1e-3) * T)
    assert same(model.logits(Z, T), logits(state, Z, sigma, HEADS), mask_id=7)
    assert not same(model.logits(Z, T), logits(state, Z, torch.zeros(3), HEADS), mask_id=7)


def test_the_reference_autoregressive_network() -> None:
    state = reference(adaptive=False)
    model = from_reference(prefixed(state))
    assert model.config.causal
    assert same(model.logits(Z), logits(state, Z, T, HEADS, causal=True))


@pytest.mark.parametrize("bias", [0.0, 0.7])
def test_gidds_network(bias: float) -> None:
    state = gidd(bias)
    model = from_gidd(state, Vocab(50, 49))
    expected = logits(state, Z, T, HEADS)
    expected = expected.scatter_add(-1, Z[..., None], torch.full((3, 9, 1), bias))
    assert model.config.time_input == "t"
    assert model.config.input_bias == (bias != 0)
    assert same(model.logits(Z, T), expected)


def test_there_and_back_again() -> None:
    state = prefixed(reference())
    back = to_reference(from_reference(state))
    assert back.keys() == state.keys()
    assert all(torch.allclose(back[name], state[name]) for name in state)
    theirs = gidd()
    again = to_gidd(from_gidd(theirs, Vocab(50, 49)), length=32)
    assert again.keys() == theirs.keys()
    used = {name for name in theirs if "rotary" not in name and "embed" not in name}
    assert all(torch.equal(again[name], theirs[name]) for name in used)
    assert torch.equal(again["vocab_embed.embedding"][:50], theirs["vocab_embed.embedding"][:50])


def test_our_own_network_in_gidds_layout_never_yields_padding() -> None:
    model = DiT(DiTConfig(2, 16, HEADS, cond_width=8, time_conditioning=True, time_input="t"), Vocab(50, 49))
    state = to_gidd(model, length=9)
    assert logits(state, Z, T, HEADS).softmax(-1)[..., 50:].max() == 0
    cos = state["rotary_emb.cos_cached"]
    assert cos.shape == (1, 9, 3, 1, 8)
    assert torch.allclose(cos[0, :, 0, 0, 0], torch.arange(9.0).cos())
    assert (cos[:, :, 2] == 1).all()


def test_what_does_not_fit_is_refused() -> None:
    state = reference()
    with pytest.raises(UserError, match="attn_out"):
        from_reference({k: v for k, v in state.items() if "attn_out" not in k})
    with pytest.raises(UserError, match="heads="):
        from_reference({k: v for k, v in state.items() if "inv_freq" not in k})
    with pytest.raises(UserError, match="another network"):
        from_reference(state | {"blocks.1.mlp.0.bias": torch.zeros(3)})
    with pytest.raises(UserError, match="its tokenizer's length"):
        from_gidd(gidd(), Vocab(200, 199))


def foreign(name: str) -> type:
    """A class of a module that will be gone when the checkpoint is read, as omegaconf may be."""
    module = sys.modules.setdefault("vanishing", types.ModuleType("vanishing"))
    if not hasattr(module, name):
        setattr(module, name, type(name, (), {"__module__": "vanishing"}))
    kind: type = getattr(module, name)
    return kind


def node(value: Any) -> Any:
    """omegaconf's way of keeping a value."""
    kind: Any = foreign("DictConfig" if isinstance(value, dict) else "AnyNode")
    made = kind()
    inner = {k: node(v) for k, v in value.items()} if isinstance(value, dict) else value
    made.__dict__.update({"_content" if isinstance(value, dict) else "_val": inner, "_parent": None})
    return made


@pytest.fixture
def lightning(tmp_path: Path) -> Path:
    """A checkpoint as Lightning writes it for the reference code."""
    raw, averaged = reference(seed=1), reference(seed=2)
    parameters = [v for k, v in averaged.items() if "rotary" not in k]
    config = node({"time_conditioning": True, "model": {"hidden_size": 16, "n_heads": HEADS}})
    content = {
        "epoch": 1,
        "global_step": 1234,
        "pytorch-lightning_version": "2.2.1",
        "state_dict": prefixed(raw) | {"noise.sigma_max": torch.tensor(1.0), "train_metrics.nll": torch.zeros(())},
        "loops": {"fit_loop": {"state_dict": {}}},
        "callbacks": {"ModelCheckpoint": {"best": Path("x"), "seen": {1, 2}}},
        "optimizer_states": [{"state": {0: {"step": torch.tensor(5.0), "exp_avg": torch.randn(3)}}}],
        "hyper_parameters": {"config": config, "tokenizer": node("gpt2")},
        "ema": {"decay": 0.9999, "num_updates": 9, "shadow_params": [torch.nn.Parameter(p) for p in parameters]},
        "sampler": {"random_state": None},
    }
    file = tmp_path / "last.ckpt"
    torch.save(content, file)
    sys.modules.pop("vanishing")
    return file


def test_a_lightning_checkpoint_gives_its_ema_weights(lightning: Path, tmp_path: Path) -> None:
    with pytest.raises(Exception, match=r"vanishing|Unsupported|weights_only"):
        torch.load(lightning, weights_only=True)  # the plain way does not work on such a file
    tree = read_checkpoint(lightning)
    assert isinstance(tree["state_dict"]["backbone.vocab_embed.embedding"], StoredTensor)
    assert isinstance(tree["hyper_parameters"]["config"], Inert)

    found = read(lightning)
    folder = write(tmp_path / "converted", found, found.weights)
    bundle = read(folder)
    assert bundle.step == 1234
    assert bundle.network is not None
    model = make_network(bundle.network, bundle.vocab)
    model.load_weights(bundle.weights)
    assert isinstance(model, DiT)
    assert model.config.time_conditioning  # found in the foreign configuration
    sigma = -torch.log(1 - (1 - 1e-3) * T)
    assert same(model.logits(Z, T), logits(reference(seed=2), Z, sigma, HEADS))
    raw, _ = load(lightning, ema=False, time_conditioning=False)
    assert same(raw.logits(Z), logits(reference(seed=1), Z, torch.zeros(3), HEADS))


def test_an_ema_of_another_network_is_refused(tmp_path: Path) -> None:
    for shadow in ([torch.zeros(3)] * 40, [torch.zeros(3)]):
        torch.save({"state_dict": prefixed(reference()), "ema": {"shadow_params": shadow}}, tmp_path / "x.ckpt")
        with pytest.raises(UserError, match="convert without its EMA"):
            load(tmp_path / "x.ckpt")


def test_safetensors_and_plain_state_dicts(tmp_path: Path) -> None:
    save_file(prefixed(reference()), tmp_path / "model.safetensors")
    torch.save(gidd(), tmp_path / "gidd.pt")
    model, step = load(tmp_path / "model.safetensors")
    assert step == 0
    assert same(model.logits(Z), logits(reference(), Z, torch.zeros(3), HEADS))
    other, _ = load(tmp_path / "gidd.pt", vocab=Vocab(50, 49))
    assert other.config.time_input == "t"
    with pytest.raises(UserError, match="name the tokenizer"):
        load(tmp_path / "gidd.pt")
    with pytest.raises(UserError, match="has 50 ids"):
        load(tmp_path / "model.safetensors", vocab=Vocab(60, 59))


class Payload:
    """Pickles as a call."""

    def __init__(self, function: Any, *args: Any) -> None:
        self.call = (function, args)

    def __reduce__(self) -> Any:
        return self.call


def test_a_malicious_pickle_runs_nothing(tmp_path: Path) -> None:
    marker, file = tmp_path / "owned", tmp_path / "evil.ckpt"
    for attack in (
        Payload(os.system, f"touch {marker}"),
        Payload(eval, f"open({str(marker)!r}, 'w')"),
        Payload(Path.touch, marker),
    ):
        pickle.loads(pickle.dumps(attack))
        assert marker.exists()  # the payload is live ammunition
        marker.unlink()
        torch.save({"state_dict": prefixed(reference()), "a": attack, "b": [attack, {"k": attack}]}, file)
        assert isinstance(read_checkpoint(file)["a"], Inert)
        model, _ = load(file)  # and the weights are still there
        assert same(model.logits(Z), logits(reference(), Z, torch.zeros(3), HEADS))
        assert not marker.exists()


def test_a_hand_written_pickle_that_reaches_for_functions_runs_nothing(tmp_path: Path) -> None:
    marker, file = tmp_path / "owned", tmp_path / "evil.ckpt"
    # getattr(__import__("os"), "system")("touch …"), in pickle's own instructions
    program = b"cbuiltins\ngetattr\n(cbuiltins\n__import__\n(S'os'\ntRS'system'\ntR(S'touch %s'\ntR."
    program %= str(marker).encode()
    pickle.loads(program)
    assert marker.exists()
    marker.unlink()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("archive/data.pkl", program)
    assert isinstance(read_checkpoint(file), Inert)
    assert not marker.exists()
    with pytest.raises(UserError, match="holds no weights"):
        load(file)


def test_shared_sliced_and_half_precision_tensors_arrive_whole(tmp_path: Path) -> None:
    base = torch.arange(24.0).view(4, 6)
    content = {
        "base": base,
        "slice": base[1:3, ::2],
        "turned": base.T,
        "half": base.to(torch.bfloat16),
        "ids": torch.arange(5),
        "empty": torch.empty(0, 3),
        "parameter": torch.nn.Parameter(base),
        "dtype": torch.float16,
    }
    torch.save(content, tmp_path / "x.pt")
    tree = read_checkpoint(tmp_path / "x.pt")
    for name, value in content.items():
        if isinstance(value, Tensor):
            assert torch.equal(tree[name].load(), value.detach()), name
    assert tree["dtype"] == torch.float16


def test_damaged_files_are_named(tmp_path: Path) -> None:
    file = tmp_path / "x.ckpt"
    with pytest.raises(UserError, match=r"no checkpoint file .*x\.ckpt"):
        read_checkpoint(file)
    file.write_bytes(b"not a zip")
    with pytest.raises(UserError, match=r"x\.ckpt is not a PyTorch zip"):
        read_checkpoint(file)
    torch.save({"state_dict": prefixed(reference())}, file)
    content = bytearray(file.read_bytes())
    at = content.index(reference()["blocks.0.mlp.0.weight"].numpy().tobytes()[:64])
    content[at] ^= 255
    file.write_bytes(content)
    with pytest.raises(UserError, match=r"x\.ckpt is damaged"):
        load(file)
    with pytest.raises(UserError, match="no checkpoint folder"):
        read(tmp_path / "nothing")
