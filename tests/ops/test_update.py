"""The optimiser's op: against PyTorch's own AdamW, and the fused kernel against the plain statement."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
import torch
from torch import Tensor

from scdd.ops.update import Rates, Slots, update

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
IMPLS = ["reference", *(["triton"] if find_spec("triton") else [])]
SIZES = [(3, 128), (1,), (517,), (16, 256), (7, 5)]
BETAS, EPSILON, DECAY = (0.9, 0.999), 1e-9, 0.02


def slots(with_shadow: bool = True, offset: int = 0) -> Slots:
    """Parameters of many sizes; with an offset, views that start off the alignment of whole tensors."""
    generator = torch.Generator().manual_seed(0)

    def made(size: tuple[int, ...], kind: str) -> Tensor:
        drawn = torch.randn(torch.Size(size).numel() + offset, generator=generator)
        drawn = drawn.abs() if kind == "second" else drawn
        return drawn.to(DEVICE)[offset:].view(size)

    return Slots(*([made(size, kind) for size in SIZES if with_shadow or kind != "shadow"] for kind in Slots._fields))


def clone(given: Slots) -> Slots:
    return Slots(*([t.clone() for t in group] for group in given))


def rates(updates: int, pull: float = 0.1) -> Rates:
    return Rates(3e-3, BETAS, EPSILON, DECAY, updates, pull)


@pytest.mark.parametrize("impl", IMPLS)
def test_it_is_adamw(impl: str) -> None:
    """Five updates from zero moments beside torch.optim.AdamW on gradients scaled by hand."""
    own = slots()
    for group in (own.first, own.second):
        for tensor in group:
            tensor.zero_()
    theirs = [w.clone().requires_grad_() for w in own.weights]
    optimiser = torch.optim.AdamW(theirs, lr=3e-3, betas=BETAS, eps=EPSILON, weight_decay=DECAY)
    shadow = [s.clone() for s in own.shadow]
    scale = torch.tensor(0.5, device=DEVICE)
    for n in range(1, 6):
        gradients = [torch.randn_like(w) for w in own.weights]
        for p, g in zip(theirs, gradients, strict=True):
            p.grad = g * 0.5
        optimiser.step()
        shadow = [s + 0.1 * (p.detach() - s) for s, p in zip(shadow, theirs, strict=True)]
        update(own._replace(gradients=gradients), scale, rates(n), impl)
    for ours, expected in ((own.weights, theirs), (own.shadow, shadow)):
        for a, b in zip(ours, expected, strict=True):
            torch.testing.assert_close(a, b.detach(), rtol=2e-6, atol=2e-6)


@pytest.mark.skipif("triton" not in IMPLS, reason="no Triton here")
@pytest.mark.parametrize("offset", [0, 1, 4])
@pytest.mark.parametrize("with_shadow", [True, False])
def test_the_fused_kernel_is_the_reference(with_shadow: bool, offset: int) -> None:
    fused, plain = slots(with_shadow, offset), clone(slots(with_shadow, offset))
    scale = torch.tensor(0.3, device=DEVICE)
    update(fused, scale, rates(7), "triton")
    update(plain, scale, rates(7), "reference")
    for name in ("weights", "first", "second", "shadow"):
        for a, b in zip(getattr(fused, name), getattr(plain, name), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize("impl", IMPLS)
def test_a_scale_that_is_no_number_leaves_everything_as_it_is(impl: str) -> None:
    own, scale = slots(), torch.tensor(torch.nan, device=DEVICE)
    own.gradients[0].fill_(torch.inf)
    own.gradients[1].fill_(torch.nan)
    before = clone(own)
    update(own, scale, rates(7), impl)
    for name in ("weights", "first", "second", "shadow"):
        for a, b in zip(getattr(own, name), getattr(before, name), strict=True):
            assert torch.equal(a, b), name


def test_nothing_to_do() -> None:
    update(Slots([], [], [], [], []), torch.ones((), device=DEVICE), rates(1))
