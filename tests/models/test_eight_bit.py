"""Networks in 8 bits: near the float32 ones, the same for every batch and number of threads, and the way back."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import scdd
from scdd.bundle import folder as bundle
from scdd.core import UserError, machine
from scdd.models.dit import DiT
from scdd.models.eight_bit import EightBitLinear, set_eight_bits, to_eight_bits, to_floats
from scdd.models.llama import Llama
from scdd.models.network import Network
from scdd.models.options import LlamaConfig
from scdd.ops import int8
from scdd.ops.common import Filters
from scdd.ops.head import head_stats, redraw, top
from scdd.ops.int8 import TOP, rounded, supported
from tests import tiny
from tests.layouts import numbers

VOCAB = tiny.tokenizer().vocab
pytestmark = pytest.mark.skipif(not supported(), reason="no exact 8-bit products on this CPU")


def llama() -> Llama:
    config = LlamaConfig(depth=2, width=32, heads=4, kv_heads=2, head_width=8, mlp_width=48, tied=True)
    return Llama(config, VOCAB, torch.Generator().manual_seed(1)).eval().requires_grad_(False)


def dit() -> DiT:
    return tiny.network().eval().requires_grad_(False)


def tokens(length: int = 24) -> torch.Tensor:
    return torch.randint(0, VOCAB.size, (1, length), generator=torch.Generator().manual_seed(2))


@pytest.mark.parametrize("make", [dit, llama])
def test_near_the_float32_network_and_back(make: type[Network]) -> None:
    """Each map rounds by up to half a 127th of a row's largest number; four maps a block, two blocks: some hundredths."""
    network, z = make(), tokens()
    before = network.hidden(z)
    to_eight_bits(network)
    replaced = [each for each in network.modules() if isinstance(each, EightBitLinear)]
    assert len(replaced) == 8
    after = network.hidden(z)
    error = float((after - before).norm() / before.norm())
    assert 0 < error < 0.05
    rows = numbers(network)
    to_floats(network)
    assert numbers(network) == rows
    assert not any(isinstance(each, EightBitLinear) for each in network.modules())
    back = network.hidden(z)
    assert float((back - before).norm() / before.norm()) < 0.05
    assert network.head.scale is None


def test_the_head_rounds_states_and_nothing_else() -> None:
    """Statistics, draws and the best tokens are the reference's of states that were rounded beforehand."""
    network, z = dit(), tokens()
    to_eight_bits(network)
    hidden, head = network.hidden(z)[0], network.head
    step = hidden.abs().amax(1, keepdim=True) / TOP
    rounded, filters = (hidden / step).round() * step, Filters(top_p=0.8)
    u = torch.rand(len(hidden), generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    fast, plain = head_stats(hidden, head, z[0], filters), head_stats(rounded, head, z[0], filters, "reference")
    torch.testing.assert_close(fast.log_p_z.double(), plain.log_p_z.double(), rtol=1e-5, atol=1e-5)
    moves = torch.ones(len(hidden), dtype=torch.bool)
    drawn = [
        redraw(x, head, moves, u, filters, z[0], None, impl) for x, impl in ((hidden, "auto"), (rounded, "reference"))
    ]
    assert torch.equal(drawn[0].tokens, drawn[1].tokens)
    dense = network.logits(z)[0]
    assert float((dense.argmax(1) == top(hidden, head, z[0]).tokens[:, 0]).float().mean()) > 0.9


def test_times_of_their_own_gate_as_floats_do() -> None:
    """Rows of a batch at different times cannot share folded gates: the same numbers either way."""
    layer = EightBitLinear(rounded(torch.randn(8, 16, generator=torch.Generator().manual_seed(4))), torch.ones(8))
    x, gate = torch.randn(2, 3, 16), torch.randn(1, 1, 8)
    torch.testing.assert_close(layer.gated(x, gate), layer.gated(x, gate.expand(2, 1, 8)), rtol=1e-5, atol=1e-6)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint that is stored in 8 bits."""
    place = tmp_path_factory.mktemp("eight")
    read = bundle.read(tiny.checkpoint(place / "whole"))
    return bundle.write(place / "model", read, read.weights, kind="int8")


def test_matrices_are_used_as_they_are_stored(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bit by bit what float32 weights of the same file are rounded to; and nothing is rounded on the way."""
    around = scdd.load(folder, device="cpu", dtype="float32").to("cpu", "int8").network
    stored = bundle.read(folder, narrow=True)
    assert stored.matrices
    assert not stored.matrices.keys() & stored.weights.keys()
    whole = bundle.read(folder).weights
    assert all(torch.equal(each, whole[name]) for name, each in stored.widened().weights.items())
    assert stored.widened().weights.keys() == whole.keys()

    sizes: list[int] = []
    monkeypatch.setattr(int8, "rounded", lambda weight: (sizes.append(weight.numel()), rounded(weight))[1])
    straight = scdd.load(folder, device="cpu", dtype="int8").network
    assert max(sizes, default=0) < min(codes.numel() for codes, _ in stored.matrices.values()), (
        "small ones are stored whole"
    )
    expected, found = around.state_dict(), straight.state_dict()
    assert expected.keys() == found.keys()
    assert all(torch.equal(found[name], each) and found[name].dtype == each.dtype for name, each in expected.items())
    assert torch.equal(straight.head.weight, around.head.weight)
    assert torch.equal(straight.head.scale, around.head.scale)  # type: ignore[arg-type]
    assert not any(weight.requires_grad for weight in straight.parameters())


def test_small_work_stays_on_one_thread_and_products_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    if machine._libgomp() is None:
        pytest.skip("another library runs the threads")
    network, z, before = dit(), tokens(), torch.get_num_threads()
    to_eight_bits(network)
    seen: dict[str, set[int]] = {"product": set(), "norm": set()}
    real, norm = torch._int_mm, network.norm.forward

    def product(*given: torch.Tensor) -> torch.Tensor:
        seen["product"].add(torch.get_num_threads())
        return real(*given)

    def seam(*given: torch.Tensor) -> object:
        seen["norm"].add(torch.get_num_threads())
        return norm(*given)

    monkeypatch.setattr(torch, "_int_mm", product)
    monkeypatch.setattr(network.norm, "forward", seam)
    try:
        torch.set_num_threads(2)
        network.hidden(z)
    finally:
        torch.set_num_threads(before)
    assert seen == {"product": {2}, "norm": {1}}


def test_texts_do_not_depend_on_threads_or_batch_in_any_dtype(folder: Path) -> None:
    before = torch.get_num_threads()
    for dtype in ("float32", "bfloat16", "int8"):
        lm = scdd.load(folder, device="cpu", dtype=dtype)  # type: ignore[arg-type]
        texts = []
        try:
            for threads, batch in ((1, 1), (2, 3), (4, 2)):
                torch.set_num_threads(threads)
                texts.append([each.tokens for each in lm.generate(3, seed=5, steps=4, batch_size=batch)])
        finally:
            torch.set_num_threads(before)
        assert texts[0] == texts[1] == texts[2]


@pytest.mark.parametrize("has", [True, False])
def test_the_usual_dtype(has: bool, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By what is stored and what the CPU has: known beforehand, never by a clock."""
    monkeypatch.setattr(machine, "multiplies_eight_bits", lambda: has)
    lm = scdd.load(folder, device="cpu")
    assert lm.dtype == ("int8" if has else "float32")
    assert f"{lm.dtype} on cpu" in repr(lm)
    whole = scdd.load(folder, device="cpu", dtype="float32")
    assert (whole.dtype, whole.parameters) == ("float32", lm.parameters)
    assert scdd.load(tiny.checkpoint(tmp_path / "whole"), device="cpu").dtype == "float32", "stored as it is"
    assert lm.to("cpu", "int8").to("cpu").dtype == "int8", "nobody asked for anything else"
    assert lm.to("cpu", torch.bfloat16).dtype == "bfloat16"
    assert lm.to("cpu", "int8").generate(steps=2)[0].tokens


def test_mistakes(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from scdd.cli.main import main

    lm = scdd.load(folder, device="cpu", dtype="float32")
    with pytest.raises(UserError, match="dtype is 'int4': choose one of float32, bfloat16, int8"):
        lm.to("cpu", "int4")  # type: ignore[arg-type]
    with pytest.raises(UserError, match="dtype int8 is for CPUs"):
        set_eight_bits(lm.network, True, torch.device("cuda"))
    lm.network.takes_eight_bits = False
    with pytest.raises(UserError, match="dtype int8 is for the networks dit and llama"):
        lm.to("cpu", "int8")
    assert main(["sample", "--model", str(folder), "--dtype", "float16"]) == 2
    assert capsys.readouterr().err == "error: --dtype is 'float16': choose one of float32, bfloat16, int8.\n"
