"""A teacher beside the ELBO: the divergence by its definition, and every implementation's values and gradients."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from scdd.core import ElboCoefficients, Head
from scdd.ops import common
from scdd.ops.distil import Teacher
from scdd.ops.distil.reference import divergences
from scdd.ops.elbo import elbo
from scdd.processes.scdd import SCDD
from scdd.schedules.peaked import Peaked
from tests.ops.cases import IMPLS, Case, case, problems, rows_of

Run = tuple[Tensor, Tensor, list[Tensor]]


def taught(problem: Case, device: str, dtype: torch.dtype, temperature: float, width: int = 7) -> Teacher:
    """A teacher of another width, whose divergence counts 0 at every third position."""
    other = case(
        problem.vocab.size, problem.vocab.mask_id, len(problem.x), width, problem.input_bias is not None, seed=5
    )
    moved = [None if v is None else v.to(device, dtype) for v in (other.weight, other.bias, other.input_bias)]
    weight = torch.arange(len(problem.x), dtype=torch.float64).remainder(3).to(device) / 7
    assert moved[0] is not None
    return Teacher(
        other.hidden.to(device, dtype), Head(moved[0], problem.vocab, moved[1], moved[2]), weight, temperature
    )


def run(problem: Case, impl: str, device: str, dtype: torch.dtype, temperature: float | None) -> Run:
    """(Total, losses, gradients of hidden states and head)."""
    inputs = [problem.hidden, problem.weight, problem.bias]
    if problem.input_bias is not None:
        inputs.append(problem.input_bias)
    moved = [v.detach().to(device=device, dtype=dtype).clone().requires_grad_() for v in inputs]
    head = Head(moved[1], problem.vocab, moved[2], moved[3] if len(moved) > 3 else None)
    rows = rows_of(SCDD(problem.vocab, Peaked(0.2)), problem, 0.4, None, dynamic=True)
    placed = ElboCoefficients(*(field.to(device) for field in rows))
    teacher = None if temperature is None else taught(problem, device, dtype, temperature)
    flat = moved[0], head, problem.x.to(device), problem.z_t.to(device), placed
    total, losses = elbo(*flat, impl=impl, teacher=teacher)
    return total.detach().cpu(), losses.cpu(), [grad.cpu() for grad in torch.autograd.grad(3.0 * total, moved)]


def test_the_reference_is_the_definition() -> None:
    """Σ_v p(v) log(p(v)/q(v)) over all tokens but the mask, term by term."""
    problem = case(9, 4, count=6, input_bias=True)
    for tau in (1.0, 2.5):
        teacher, head = taught(problem, "cpu", torch.float64, tau), problem.head()
        found = divergences(problem.hidden, head, problem.z_t, teacher)
        for n in range(6):
            laws = []
            for hidden, side in ((teacher.hidden[n], teacher.head), (problem.hidden[n], head)):
                assert side.bias is not None
                assert side.input_bias is not None
                scores = []
                for v in (v for v in range(9) if v != 4):
                    here = float(side.input_bias) if v == int(problem.z_t[n]) else 0.0
                    scores.append((float(hidden @ side.weight[v]) + float(side.bias[v]) + here) / tau)
                total = sum(map(math.exp, scores))
                laws.append([math.exp(score) / total for score in scores])
            kl = sum(p * math.log(p / q) for p, q in zip(*laws, strict=True))
            assert float(found[n]) == pytest.approx(tau**2 * float(teacher.weight[n]) * kl, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize(("impl", "device"), IMPLS)
@pytest.mark.parametrize("temperature", [1.0, 2.0])
def test_values_and_gradients_are_the_references(impl: str, device: str, temperature: float) -> None:
    for size, mask_id, input_bias, count in problems(impl):
        problem = case(size, mask_id, count, input_bias=input_bias)
        truth = run(problem, "reference", "cpu", torch.float64, temperature)
        plain = run(problem, "reference", "cpu", torch.float64, None)
        found = run(problem, impl, device, torch.float32, temperature)
        assert float(truth[0]) > float(plain[0]) + 1e-3  # it is there, and no divergence is negative
        assert float(found[0]) == pytest.approx(float(truth[0]), rel=1e-5)
        torch.testing.assert_close(found[1].double(), plain[1].double(), rtol=1e-4, atol=1e-5)  # what is reported
        for part, exact in zip(found[2], truth[2], strict=True):
            assert (part.double() - exact).norm() <= 1e-5 * (exact.norm() + 1e-6)


def test_chunks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = case(300, 299, 40, input_bias=True)
    whole = run(problem, "chunked", "cpu", torch.float32, 1.5)
    monkeypatch.setitem(common.CHUNK_BYTES, "cpu", 384 * 4 * 16)
    parts = run(problem, "chunked", "cpu", torch.float32, 1.5)
    torch.testing.assert_close(parts[0], whole[0])
    for one, other in zip(parts[2], whole[2], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


def test_a_student_that_is_its_teacher_is_left_alone() -> None:
    problem = case(40, 39, 9)
    rows = rows_of(SCDD(problem.vocab, Peaked(0.2)), problem, 0.4, None).scaled(torch.zeros(9))
    hidden = problem.hidden.float().requires_grad_()
    head = Head(problem.weight.float(), problem.vocab, problem.bias.float())
    teacher = Teacher(hidden.detach(), head, torch.ones(9))
    total, _ = elbo(hidden, head, problem.x, problem.z_t, rows, teacher=teacher)
    (gradient,) = torch.autograd.grad(total, hidden)
    assert abs(float(total.detach())) < 1e-5
    assert float(gradient.abs().amax()) < 1e-5
