"""The arithmetic of a network's costs against the network itself: its tensors, its products, what its forward pass leaves."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from scdd.core import ElboCoefficients, Vocab
from scdd.core.options import padded
from scdd.models import llama
from scdd.models.count import (
    FLOAT,
    HALF,
    QUERIES,
    SHORT,
    WIDTHS,
    Keeping,
    Shape,
    attends_at_once,
    flops,
    kept,
    matrices,
    matrix_weights,
    parameters,
    pieces,
    whole_block,
)
from scdd.models.options import DECODERS, SIZES, DiTConfig, LlamaConfig, make_network
from scdd.ops import attention
from scdd.ops.documents import chunked
from scdd.ops.elbo import elbo

VOCAB = Vocab(150, 149)  # padded to 256
DIT = DiTConfig(depth=2, width=32, heads=4, cond_width=8)
LLAMA = LlamaConfig(depth=2, width=32, heads=4, kv_heads=4, head_width=8, mlp_width=96)
NEAR = replace(LLAMA, attention_window=20)
SHAPES = {
    "dit": DIT,
    "dit with time and input bias": replace(DIT, time_conditioning=True, input_bias=True),
    "causal dit": replace(DIT, causal=True),
    "llama": LLAMA,
    "near": NEAR,
    "llama with everything": replace(
        LLAMA, kv_heads=2, head_width=16, qkv_bias=True, out_bias=True, mlp_bias=True, qk_norm=True, tied=False
    ),
    **{f"dit {name}": shape for name, shape in SIZES.items() if name != "medium"},
    **DECODERS,
}


def network(shape: Shape, device: str = "meta") -> Any:
    kind = "dit" if isinstance(shape, DiTConfig) else "llama"
    with torch.device(device):
        return make_network({"kind": kind, **asdict(shape)}, VOCAB)


@pytest.mark.parametrize("name", SHAPES)
def test_parameters_are_the_networks_own(name: str) -> None:
    shape, net = SHAPES[name], network(SHAPES[name])
    sizes = {name: p.numel() for name, p in net.named_parameters()}
    counted = parameters(shape, VOCAB.size)
    for part, prefix in {"embedding": "embedding.", "blocks": "blocks.", "head": "output."}.items():
        assert getattr(counted, part) == sum(n for name, n in sizes.items() if name.startswith(prefix)), part
    assert counted.total == sum(sizes.values())
    assert matrix_weights(shape) == sum(sizes[name] for name in net.hidden_matrices())
    first = {name: tuple(net.get_parameter(f"blocks.0.{name}.weight").shape) for name in matrices(shape)}
    assert matrices(shape) == first


class Made(TorchDispatchMode):
    """Remembers the storage of every tensor that is made, without keeping it alive."""

    def __init__(self) -> None:
        super().__init__()
        self.sizes: dict[StorageWeakRef, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            if isinstance(tensor, torch.Tensor):
                storage = tensor.untyped_storage()
                self.sizes[StorageWeakRef(storage)] = storage.nbytes()
        return out


def live_after_forward(net: Any, rows: int, length: int) -> int:
    """Bytes of the tensors that a forward pass made and left behind."""
    tokens, times = torch.randint(VOCAB.K, (rows, length)), torch.rand(rows)
    with Made() as made:
        states = net.hidden(tokens, times)
    assert states.requires_grad
    own = {StorageWeakRef(p.untyped_storage()) for p in (*net.parameters(), *net.buffers(), tokens, times)}
    return sum(size for storage, size in made.sizes.items() if not storage.expired() and storage not in own)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    "name", ["dit", "dit with time and input bias", "llama", "recompute", "dit, recompute", "near"]
)
def test_kept_is_what_a_forward_pass_leaves(name: str, dtype: str) -> None:
    """The slope in the number of rows; what does not grow with it are weights in bfloat16."""
    again = name.endswith("recompute")
    shape = DIT if name == "dit, recompute" else SHAPES.get(name, LLAMA)
    net = network(shape, "cpu")
    net.recompute = again
    half = 4 if dtype == "float32" else 2
    net.compute_dtype = None if half == 4 else torch.bfloat16
    few, many, length = 2, 10, 300 if name == "near" else 32
    net.hidden(torch.zeros(1, length, dtype=torch.int64), torch.rand(1))  # some things are made once
    left = {rows: live_after_forward(net, rows, length) for rows in (few, many)}
    slope = (left[many] - left[few]) / ((many - few) * length)
    how = Keeping(half=half, fused=False, recompute=again, length=length)
    expected = kept(shape, how)
    if again:  # the one block that is whole comes in the backward pass
        expected -= whole_block(shape, how)
    assert slope == pytest.approx(expected, rel=0.035)  # a time is a row of conditioning, too
    copies = left[few] - few * length * slope
    if name == "llama":  # a DiT's gates are folded into weights first; recomputing keeps the generator's state
        assert copies == pytest.approx(HALF * matrix_weights(shape) if half == HALF else 0, rel=0.05, abs=500)


def test_short_rows_keep_queries_and_keys_once() -> None:
    """As `models.attention.fuses` decides it and `ops.attention` keeps it."""
    assert (SHORT.start, SHORT.stop, WIDTHS) == (16, attention.LONGEST + 1, attention.WIDTHS)
    shape = DECODERS["smollm2-135m"]
    long, short = (kept(shape, Keeping(length=length)) for length in (513, 512))
    assert long - short == shape.depth * HALF * (shape.heads + shape.kv_heads) * shape.head_width
    for how in (
        {"masked": True},
        {"adapted": frozenset({"qkv"})},
        {"half": FLOAT},
        {"fused": False},
        {"recompute": True},
    ):
        assert not attends_at_once(shape, Keeping(length=512, **how)), how  # type: ignore[arg-type]
    assert attends_at_once(shape, Keeping(length=512, adapted=frozenset({"out", "mlp_out"})))
    for other in (replace(shape, causal=True), replace(shape, qk_norm=True), replace(shape, attention_window=99)):
        assert not attends_at_once(other, Keeping(length=512))
    assert attends_at_once(SIZES["small"], Keeping(length=512))
    assert not attends_at_once(SIZES["small"], Keeping(length=8))


def test_kernels_and_recomputing_keep_less() -> None:
    for shape in (DIT, LLAMA):
        plain, fused = kept(shape, Keeping(fused=False)), kept(shape)
        assert fused < plain
    of_mlps = 2 * LLAMA.depth * LLAMA.mlp_width
    assert kept(LLAMA, Keeping(products=True)) - kept(LLAMA) == of_mlps
    assert kept(LLAMA, Keeping(products=True, fused=False)) == kept(LLAMA, Keeping(fused=False))
    assert kept(DECODERS["smollm2-1.7b"], Keeping(recompute=True)) < 0.25 * kept(DECODERS["smollm2-1.7b"])


@pytest.mark.parametrize("name", ["dit", "llama", "llama with everything", "recompute", "dit, recompute", "near"])
def test_flops_are_those_that_torch_counts(name: str) -> None:
    again = name.endswith("recompute")
    shape = DIT if name == "dit, recompute" else SHAPES.get(name, LLAMA)
    net = network(shape, "cpu")
    net.recompute = again
    rows, length = 2, 400 if name == "near" else 24
    x = torch.randint(VOCAB.K, (rows, length))
    weights = ElboCoefficients(*(torch.full((rows * length,), value) for value in (0.5, 0.5, 1.0, 1.0, 1.0, 0.0, 0.0)))
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        hidden = net.hidden(x, torch.rand(rows))
        total, _ = elbo(hidden.flatten(0, 1), net.head, x.flatten(), x.flatten(), weights)
        total.backward()
    counted = counter.get_total_flops() / x.numel()
    expected = flops(shape, VOCAB.size, length, recompute=again)
    if again:  # in plain products attention is no kernel that could be kept
        expected += 4 * shape.depth * length * shape.heads * shape.head_width
    assert counted == pytest.approx(expected, rel=0.02)  # a DiT's conditioning is the rest


def test_a_window_is_counted_where_it_cuts_and_nowhere_else() -> None:
    for length in (16, 21):
        assert pieces(NEAR, length) == []
        assert flops(NEAR, VOCAB.size, length) == flops(LLAMA, VOCAB.size, length)
        assert kept(NEAR, Keeping(length=length)) == kept(LLAMA, Keeping(length=length))
    assert flops(NEAR, VOCAB.size, 4096) < flops(NEAR, VOCAB.size, 1024) * 1.05 < flops(LLAMA, VOCAB.size, 1024)
    wide = replace(NEAR, attention_window=200)
    assert [each.queries for each in pieces(wide, 300)] == [QUERIES, QUERIES, 300 - 2 * QUERIES]
    assert [(each.keys, each.copied) for each in pieces(wide, 300)] == [(300, 0), (300, 0), (245, 245)]
    assert chunked.QUERIES == QUERIES


def test_a_causal_network_needs_half_of_attention() -> None:
    both = flops(DIT, VOCAB.size, 64), flops(replace(DIT, causal=True), VOCAB.size, 64)
    assert both[0] - both[1] == 6 * DIT.depth * 64 * DIT.width
    assert both[0] == 6 * (matrix_weights(DIT) + padded(VOCAB.size) * DIT.width) + 12 * DIT.depth * 64 * DIT.width
    assert torch.float32.itemsize == FLOAT


@pytest.mark.parametrize("change", [{}, {"qk_norm": True}, {"causal": True}, {"attention_window": 9}], ids=str)
@pytest.mark.parametrize("recompute", [False, True])
def test_what_is_counted_as_fused_is_what_blocks_ask_for(
    change: dict[str, Any], recompute: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A GPU's answer comes from `ops.attention.pays`; here everything but that is asked."""
    asked: list[bool] = []

    def fuses(x: Tensor, heads: tuple[int, int, int], causal: bool, *more: object) -> bool:
        asked.append(not causal and all(each is None for each in more))
        return False

    monkeypatch.setattr(llama, "fuses", fuses)
    shape = replace(LLAMA, head_width=32, **change)
    net = network(shape, "cpu")
    net.recompute = recompute
    net.hidden(torch.zeros(1, 24, dtype=torch.int64), torch.rand(1))
    assert any(asked) == attends_at_once(shape, Keeping(length=24, recompute=recompute))
