"""The gated product and its matrix: the kernels against plain PyTorch, values and gradients."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
import torch
from torch import Tensor

from scdd.core import UserError
from scdd.ops.swiglu import gated_linear, gates_at_once, swiglu_linear
from scdd.ops.swiglu.reference import gated_product

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TRITON = pytest.mark.skipif(find_spec("triton") is None, reason="no Triton here")


def inputs(shape: tuple[int, ...], out: int, bias: bool, dtype: torch.dtype) -> list[Tensor | None]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(*shape[:-1], 2 * shape[-1], generator=generator) * 3
    weight, b = torch.randn(out, shape[-1], generator=generator), torch.randn(out, generator=generator)
    master = torch.float32 if dtype == torch.bfloat16 else dtype
    made = [x.to(DEVICE, dtype).requires_grad_(), weight.to(DEVICE, master).requires_grad_()]
    return [*made, b.to(DEVICE, master).requires_grad_() if bias else None]


def run(given: list[Tensor | None], impl: str, keep: bool = False) -> list[Tensor]:
    """The result and the gradients of a sum that weighs every number of it otherwise."""
    x, weight, bias = given
    assert x is not None
    assert weight is not None
    with torch.autocast(DEVICE, torch.bfloat16, enabled=x.dtype == torch.bfloat16):
        y = swiglu_linear(x, weight, bias, keep, impl)
    assert y.dtype == x.dtype
    weights = torch.sin(torch.arange(y.numel(), device=DEVICE)).view(y.shape) + 0.5
    loss = (y * weights).float().sum()
    wanted = [each for each in given if each is not None]
    grads = torch.autograd.grad(loss, wanted)
    assert [grad.dtype for grad in grads] == [each.dtype for each in wanted]
    return [y.detach(), *grads]


@pytest.mark.parametrize(("rows", "width"), [(130, 1536), (131, 1536), (40, 2048), (77, 2048), (120, 11008), (9, 5632)])
def test_threads_change_no_bit(rows: int, width: int) -> None:
    """Also where there are too few numbers for all of them, and torch would make three, five or seven pieces."""
    x = torch.randn(1, rows, 2 * width, generator=torch.Generator().manual_seed(rows))
    before, found = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 4, 8):
            torch.set_num_threads(threads)
            found.append(gated_product(x))
            assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(each, found[0]) for each in found)


@TRITON
@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize(
    ("shape", "out", "bias"), [((2, 5, 48), 16, False), ((1, 3, 200), 8, True), ((4, 128), 3, True)]
)
def test_the_kernels_are_the_reference(shape: tuple[int, ...], out: int, bias: bool, keep: bool) -> None:
    found = run(inputs(shape, out, bias, torch.float32), "triton", keep)
    exact = run(inputs(shape, out, bias, torch.float64), "reference")
    for part, truth in zip(found, exact, strict=True):
        torch.testing.assert_close(part.double(), truth, rtol=1e-5, atol=2e-5)


@TRITON
@pytest.mark.parametrize("keep", [True, False])
def test_bfloat16_stays_within_its_rounding(keep: bool) -> None:
    found = run(inputs((4, 16, 64), 32, True, torch.bfloat16), "triton", keep)
    given = [t for t in inputs((4, 16, 64), 32, True, torch.bfloat16) if t is not None]
    truth = run([t.detach().double().requires_grad_() for t in given], "reference")
    for part, exact in zip(found, truth, strict=True):
        assert (part.double() - exact).norm() < 0.01 * exact.norm()


@TRITON
@pytest.mark.parametrize("keep", [True, False])
def test_the_product_is_kept_for_the_backward_pass_only_if_asked_for(keep: bool) -> None:
    x, weight, _ = inputs((2, 5, 48), 16, False, torch.float32)
    assert x is not None
    assert weight is not None
    kept: list[Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        swiglu_linear(x, weight, keep=keep, impl="triton")
    assert sorted(t.numel() for t in kept) == sorted((x.numel(), weight.numel(), *[x.numel() // 2] * keep))


def test_the_reference_by_hand() -> None:
    x, weight, bias = inputs((2, 3, 8), 4, True, torch.float32)
    assert x is not None
    assert weight is not None
    gate, up = x[..., :8], x[..., 8:]
    expected = (gate * torch.sigmoid(gate) * up) @ weight.T + bias
    torch.testing.assert_close(swiglu_linear(x, weight, bias), expected)
    with pytest.raises(UserError, match="impl"):
        swiglu_linear(x, weight, bias, impl="cuda")


@pytest.fixture
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several tiles for few numbers, in the interpreter."""
    if DEVICE == "cuda" or find_spec("triton") is None:
        return
    from scdd.ops.swiglu import triton_gate

    monkeypatch.setattr(triton_gate, "MANY", triton_gate.Shape(32, 32, 1, 1))
    monkeypatch.setattr(triton_gate, "FEW", triton_gate.Shape(16, 16, 1, 1))
    monkeypatch.setattr(triton_gate, "ENOUGH", 64)
    monkeypatch.setattr(triton_gate, "DEPTH", 16)
    monkeypatch.setattr(triton_gate, "BESIDE", 2)


def gate_inputs(rows: int, channels: int, width: int, bias: bool, dtype: torch.dtype) -> list[Tensor | None]:
    generator = torch.Generator().manual_seed(rows)
    x, weight = torch.randn(rows, channels, generator=generator), torch.randn(2 * width, channels, generator=generator)
    b = torch.randn(2 * width, generator=generator) if bias else None
    return [None if t is None else t.to(DEVICE, dtype) for t in (x, weight * channels**-0.5, b)]


@TRITON
@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("rows", [1, 17, 63, 64, 100, 200])
def test_the_gate_behind_its_product_is_the_reference(rows: int, bias: bool) -> None:
    channels, width = (576, 1536) if DEVICE == "cuda" else (48, 96)
    half = torch.bfloat16 if DEVICE == "cuda" else torch.float16  # the interpreter multiplies no bfloat16
    for dtype, near in ((torch.float32, 1e-5), (half, 1e-2)):
        if DEVICE == "cuda" and dtype == torch.float32:
            continue  # it is there for 16 bits
        x, weight, b = gate_inputs(rows, channels, width, bias, dtype)
        assert x is not None
        assert weight is not None
        found = gated_linear(x.view(1, rows, -1), weight, b, impl="triton")
        wide = [None if t is None else t.double() for t in (x, weight, b)]
        exact = gated_linear(wide[0], wide[1], wide[2], impl="reference")  # type: ignore[arg-type]
        assert found.shape == (1, rows, width)
        assert found.dtype == dtype
        assert (found[0].double() - exact).norm() < near * exact.norm()


@TRITON
@pytest.mark.usefixtures("small_tiles")
def test_a_position_does_not_depend_on_its_company_behind_the_gate() -> None:
    """Few positions and many take other tiles: the same bits on a GPU. The interpreter leaves a tile's sums to a library."""
    near = 0.0 if DEVICE == "cuda" else 2e-3
    channels, width = (576, 1536) if DEVICE == "cuda" else (48, 96)
    half = torch.bfloat16 if DEVICE == "cuda" else torch.float16
    x, weight, _ = gate_inputs(3000 if DEVICE == "cuda" else 130, channels, width, False, half)
    assert x is not None
    assert weight is not None
    whole = gated_linear(x, weight, impl="triton")
    for first, last in ((0, 1), (5, 40), (100, 130)):
        part = gated_linear(x[first:last], weight, impl="triton")
        torch.testing.assert_close(part, whole[first:last], rtol=near, atol=near)
    assert gated_linear(x[:0], weight, impl="triton").shape == (0, width)


def test_who_gates_at_once() -> None:
    """Not a CPU, nor who wants gradients; on a GPU 16 bits and whole blocks."""
    x = torch.zeros(4, 576, dtype=torch.bfloat16)
    assert not gates_at_once(x, torch.zeros(3072, 576, dtype=torch.bfloat16))
    x, weight = x.to(DEVICE), torch.zeros(3072, 576, dtype=torch.bfloat16, device=DEVICE)
    assert not gates_at_once(x, weight)
    with torch.no_grad():
        assert gates_at_once(x, weight) == (DEVICE == "cuda" and find_spec("triton") is not None)
        assert not gates_at_once(x, weight.float())
        assert not gates_at_once(x[:, :570], weight[:, :570])
        wide = torch.zeros(3072, 2048, dtype=torch.bfloat16, device=DEVICE)
        assert not gates_at_once(wide[:4], wide), (
            "where the product is what takes the time, the library's is the quicker one"
        )


@TRITON
def test_no_gradient_is_lost_in_silence() -> None:
    x, weight, _ = gate_inputs(4, 64, 128, False, torch.float32)
    assert x is not None
    assert weight is not None
    with pytest.raises(RuntimeError, match="no gradient"):
        gated_linear(x, weight.requires_grad_(), impl="triton")


@pytest.mark.gpu
def test_near_the_library_s_product() -> None:
    """Up to bfloat16's rounding of what the reference rounds once more."""
    x, weight, _ = gate_inputs(8448, 576, 1536, False, torch.bfloat16)
    assert x is not None
    assert weight is not None
    with torch.no_grad():
        apart = gated_linear(x, weight, impl="reference")
        assert torch.allclose(gated_linear(x, weight), apart, rtol=2**-7, atol=2**-7)
