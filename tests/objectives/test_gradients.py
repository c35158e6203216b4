"""Gradients: right where they exist, finite everywhere a training run can go; and the reference op on a head."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from scdd.core import Head, Vocab
from scdd.core.types import padded
from scdd.objectives.elbo import nelbo, reconstruction
from scdd.ops.elbo.reference import elbo, loss
from scdd.ops.head import reference as reference_head
from scdd.processes.base import Process
from scdd.processes.dense import kernel_matrix
from scdd.processes.gidd import GIDD
from scdd.processes.scdd import SCDD
from scdd.schedules.peaked import Peaked

from .. import laws
from ..laws import everywhere, over_processes

STEPS: list[tuple[float | None, float]] = [
    (None, 0.0),
    (None, 1e-12),
    (None, 0.5),
    (None, 1.0),
    (0.0, 0.001),
    (0.0, 1.0),
    (0.4, 0.5),
    (0.999, 1.0),
]


def leaf(
    process: Process, seed: int, spread: float, dtype: torch.dtype = torch.float64
) -> tuple[Tensor, Tensor, Tensor]:
    """(x, z_t, logits that ask for gradients), for all pairs."""
    x, z = everywhere(process)
    logits = torch.randn(len(x), process.vocab.size, generator=torch.Generator().manual_seed(seed)) * spread
    return x, z, logits.to(dtype).requires_grad_()


@over_processes
def test_gradients_are_finite_everywhere(process: Process) -> None:
    """t = 0, t = 1, rows without a floor, z_t = m, z_t = x, impossible z_t; flat, plain and near-certain networks."""
    x, z, one = leaf(process, 1, 1.0)
    logits = torch.stack([one.detach() * spread for spread in (0.0, 1.0, 30.0)]).requires_grad_()
    x, z, before = x.expand(3, -1), z.expand(3, -1), logits.detach().clone()
    for s, t in STEPS:
        values = nelbo(process, logits, x, z, t, s)
        assert torch.isfinite(values).all(), (s, t)
        (gradient,) = torch.autograd.grad(values.sum(), logits)
        assert torch.isfinite(gradient).all(), (s, t)
        assert (gradient[..., process.vocab.mask_id] == 0).all(), "x_θ(m) = 0 whatever its logit"
    assert torch.equal(logits.detach(), before), "the caller's logits are left alone"


@over_processes
def test_gradients_of_dynamic_rows_are_finite(process: Process) -> None:
    for t in (0.0, 0.5, 1.0):
        x, z, logits = leaf(process, 2, 1.0)
        values = loss(logits, x, z, process.weighted_coefficients(x, z, t, "dynamic"), process.vocab.mask_id)
        (gradient,) = torch.autograd.grad(values.sum(), logits)
        assert torch.isfinite(values).all()
        assert torch.isfinite(gradient).all()


@over_processes
def test_gradient_is_that_of_the_dense_kl(process: Process) -> None:
    """Autograd through Bayes' rule on matrices, θ in x_θ alone, agrees: the constants that we keep have no gradient."""
    m = process.vocab.mask_id
    for s, t in [(0.3, 0.5), (0.9, 0.95)]:
        x, z, logits = leaf(process, 3, 1.5)
        alive = process.marginal(x, t).gather(1, z[:, None])[:, 0] > 0
        (ours,) = torch.autograd.grad(nelbo(process, logits, x, z, t, s)[alive].sum(), logits)
        total = torch.zeros((), dtype=torch.float64)
        for i in alive.nonzero()[:, 0].tolist():
            masked = logits[i].masked_fill(torch.arange(len(logits[i])) == m, -torch.inf)
            column = kernel_matrix(process, s, t)[:, z[i]]
            p, q = (column * process.marginal(v, s) for v in (torch.softmax(masked, 0), x[i]))
            q, some = q / q.sum(), q > 0
            total = total - (q[some] * torch.log(p[some] / p.sum())).sum()
        (dense,) = torch.autograd.grad(total, logits)
        torch.testing.assert_close(ours, dense, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("s", [None, 0.4])
@pytest.mark.parametrize("kind", ["SCDD", "GIDD"])
def test_gradient_is_that_of_the_value(kind: str, s: float | None) -> None:
    process = laws.build(kind, "peaked", 1)
    x, z = torch.tensor([0, 0, 0]), torch.tensor([0, 2, 1])  # z_t = x, noise, mask
    logits = torch.randn(3, 5, generator=torch.Generator().manual_seed(4), dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda free: nelbo(process, free, x, z, 0.5, s), (logits,))
    assert torch.autograd.gradcheck(lambda free: reconstruction(process, free, x, z, 0.1), (logits,))


@pytest.mark.parametrize("name", laws.MASK_ONLY)
def test_visible_tokens_of_mdlm_have_no_gradient(name: str) -> None:
    process = laws.build("MDLM", name)
    x, z, logits = leaf(process, 5, 1.0)
    for s, t in [(0.3, 0.5), (None, 0.5)]:
        (gradient,) = torch.autograd.grad(nelbo(process, logits, x, z, t, s).sum(), logits)
        assert gradient[z != process.vocab.mask_id].abs().max() < 1e-14
        assert gradient[z == process.vocab.mask_id].abs().max() > 0.01


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_low_precision_logits_are_read_in_float64(dtype: torch.dtype) -> None:
    process = laws.build("SCDD", "peaked")
    x, z, logits = leaf(process, 6, 1.0, dtype)
    values = nelbo(process, logits, x, z, 0.5, 0.4)
    assert values.dtype == torch.float64
    assert torch.equal(values, nelbo(process, logits.double(), x, z, 0.5, 0.4))
    values.sum().backward()  # type: ignore[no-untyped-call]
    assert logits.grad is not None
    assert logits.grad.dtype == dtype
    assert torch.isfinite(logits.grad).all()


def test_batches_of_sequences() -> None:
    """[B, L, V] logits with times [B] give [B, L] losses, row by row those of one time alone."""
    process = laws.build("SCDD", "peaked", 2)
    generator = torch.Generator().manual_seed(0)
    x = process.vocab.token(torch.randint(4, (3, 7), generator=generator))
    s, t = torch.tensor([0.1, 0.4, 0.8]).double(), torch.tensor([0.2, 0.5, 1.0]).double()
    z = process.corrupt(x, t, generator)
    logits = torch.randn(3, 7, 5, generator=generator)
    for early in (s, None):
        together = nelbo(process, logits, x, z, t, early)
        assert together.shape == (3, 7)
        for row in range(3):
            alone = nelbo(process, logits[row], x[row], z[row], float(t[row]), None if early is None else float(s[row]))
            torch.testing.assert_close(alone, together[row], rtol=1e-14, atol=0)


@pytest.mark.parametrize("mask", laws.MASKS.values())
@pytest.mark.parametrize("kind", [SCDD, GIDD])
def test_reference_op_on_a_head(kind: type[Process], mask: int) -> None:
    """Hidden states through a padded head with biases: the same losses as from the logits, and gradients to all of it."""
    process = kind(Vocab(5, mask), Peaked(0.2))
    x, z = everywhere(process)
    generator = torch.Generator().manual_seed(1)
    hidden = torch.randn(len(x), 6, generator=generator, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(padded(5), 6, generator=generator, dtype=torch.float64, requires_grad=True)
    bias = torch.randn(padded(5), generator=generator, dtype=torch.float64, requires_grad=True)
    push = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    head = Head(weight, process.vocab, bias, push)
    rows = process.elbo_coefficients(x, z, 0.5, 0.4)
    total, each = elbo(hidden, head, x, z, rows.flatten(x.shape))

    logits = hidden @ weight[:5].T + bias[:5] + push * torch.eye(5, dtype=torch.float64)[z]
    expected = nelbo(process, logits, x, z, 0.5, 0.4)
    torch.testing.assert_close(each, expected.detach(), rtol=1e-12, atol=1e-14)
    assert not each.requires_grad
    torch.testing.assert_close(total, expected.sum(), rtol=1e-12, atol=1e-14)
    ours = torch.autograd.grad(total, (hidden, weight, bias, push))
    theirs = torch.autograd.grad(expected.sum(), (hidden, weight, bias, push))
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)
    assert (ours[1][5:] == 0).all(), "padding takes no part"


def test_weighted_rows_weigh_the_loss() -> None:
    process = laws.build("GIDD", "peaked", 0)
    x, z, logits = leaf(process, 7, 1.0)
    rows, weight = (
        process.elbo_coefficients(x, z, 0.5),
        torch.rand(len(x), generator=torch.Generator().manual_seed(0)).double(),
    )
    torch.testing.assert_close(
        loss(logits, x, z, rows.scaled(weight), 0), weight * loss(logits, x, z, rows, 0), rtol=1e-12, atol=1e-14
    )


def test_a_head_that_biases_its_input_needs_it() -> None:
    head = Head(torch.zeros(128, 2), Vocab(5, 4), input_bias=torch.tensor(1.0))
    with pytest.raises(ValueError, match="needs z_t"):
        reference_head.logits(torch.zeros(1, 2), head)
