"""The ELBO op: every implementation gives the reference's values and gradients, for every process and kind of row."""

from __future__ import annotations

import pytest
import torch

from scdd.core import ElboCoefficients, Head, UserError
from scdd.ops.elbo import elbo
from scdd.ops.elbo.chunked import closed_form
from scdd.ops.elbo.reference import Statistics, position_loss
from tests.ops.cases import IMPLS, PROCESSES, Case, case, problems, rows_of

TIMES = [(0.5, None), (0.5, 0.499), (0.001, 0.0), (1.0, 0.999), (0.02, None)]


def run(problem: Case, rows: ElboCoefficients, impl: str, device: str, dtype: torch.dtype) -> list[torch.Tensor]:
    """[losses, gradients by hidden, weight, bias(, input bias)], the total weighed by 3."""
    inputs = [problem.hidden, problem.weight, problem.bias]
    if problem.input_bias is not None:
        inputs.append(problem.input_bias)
    moved = [v.detach().to(device=device, dtype=dtype).clone().requires_grad_() for v in inputs]
    head = Head(moved[1], problem.vocab, moved[2], moved[3] if len(moved) > 3 else None)
    placed = ElboCoefficients(*(field.to(device) for field in rows))
    total, losses = elbo(moved[0], head, problem.x.to(device), problem.z_t.to(device), placed, impl=impl)
    assert torch.allclose(total, losses.sum())
    assert not losses.requires_grad
    return [losses.cpu(), *(grad.cpu() for grad in torch.autograd.grad(3.0 * total, moved))]


def agree(found: list[torch.Tensor], truth: list[torch.Tensor], tolerance: float) -> None:
    for part, exact in zip(found, truth, strict=True):
        assert torch.isfinite(part).all()
        assert (part.double() - exact).norm() <= tolerance * (exact.norm() + 1e-6), (part, exact)


@pytest.mark.parametrize(("impl", "device"), IMPLS)
@pytest.mark.parametrize(("t", "s"), TIMES)
@pytest.mark.parametrize("name", PROCESSES)
def test_values_and_gradients_are_the_references(name: str, t: float, s: float | None, impl: str, device: str) -> None:
    for size, mask_id, input_bias, count in problems(impl):
        problem = case(size, mask_id, count, input_bias=input_bias)
        rows = rows_of(PROCESSES[name](problem.vocab), problem, t, s)
        truth = run(problem, rows, "reference", "cpu", torch.float64)
        # discrete rows are differences of near neighbours: their float32 weights carry 1e-7 of terms far larger
        agree(run(problem, rows, impl, device, torch.float32), truth, 1e-5 if s is None else 2e-3)


@pytest.mark.parametrize(("impl", "device"), IMPLS)
@pytest.mark.parametrize("name", PROCESSES)
def test_dynamic_rows_agree_too(name: str, impl: str, device: str) -> None:
    problem = case(40, 0, count=3)
    rows = rows_of(PROCESSES[name](problem.vocab), problem, 0.3, None, dynamic=True)
    truth = run(problem, rows, "reference", "cpu", torch.float64)
    agree(run(problem, rows, impl, device, torch.float32), truth, 3e-6)


@pytest.mark.parametrize("name", PROCESSES)
@pytest.mark.parametrize(("t", "s"), [*TIMES, (0.7, 0.0)])
def test_closed_form_is_autograds_in_float64(name: str, t: float, s: float | None) -> None:
    """The derivatives by the three statistics, with β = 0 (s = 0), x = z_t, x ≠ z_t and z_t = m among the rows."""
    problem = case(7, 3, count=30)
    rows = rows_of(PROCESSES[name](problem.vocab), problem, t, s)
    log_p = torch.log_softmax(torch.randn(3, 30, 9, dtype=torch.float64), -1)
    stats = [log_p[0, :, 0], log_p[1, :, 0], torch.rand(30, dtype=torch.float64) * 5]
    same = problem.z_t == problem.x
    stats[1] = torch.where(same | (problem.z_t == 3), stats[0], stats[1])
    leaves = [v.clone().requires_grad_() for v in stats]
    losses = position_loss(rows, same, Statistics(*leaves))
    by_x, by_z, by_S = torch.autograd.grad(losses.sum(), leaves)
    found, g_x, g_z = closed_form(rows, same, *stats)
    scale = rows.w_x.abs() + rows.w_t.abs() + rows.w_e.abs() + 1
    for ours, exact in ((found, losses.detach()), (g_x, by_x), (g_z, by_z), (-rows.w_o, by_S)):
        assert ((ours - exact).abs() / scale).max() < 1e-12


@pytest.mark.parametrize(("impl", "device"), IMPLS)
@pytest.mark.parametrize("log_r", [-25.0, -5.0, 0.0, 9.0, 25.0, 40.0])
@pytest.mark.parametrize("sharp", [0.1, 1.0, 8.0])
def test_floors_of_any_height_under_flat_and_peaked_rows(log_r: float, sharp: float, impl: str, device: str) -> None:
    """Shares r·p from 1e-20 to 1e17 in one row: Σ log(1 + r·p) and its slope keep their digits."""
    problem = case(300, 299, count=3)
    problem.weight, problem.bias = problem.weight * sharp, problem.bias * sharp
    fields = dict.fromkeys(ElboCoefficients._fields, torch.zeros(3, dtype=torch.float64))
    one = torch.ones(3, dtype=torch.float64)
    rows = ElboCoefficients(**{**fields, "log_r": one * log_r, "log_r_t": one, "w_o": one})
    truth = run(problem, rows, "reference", "cpu", torch.float64)
    found = run(problem, rows, impl, device, torch.float32)
    agree(found[:1], truth[:1], 1e-5)
    if log_r >= 0:  # below, a gradient is what is left of terms far larger, in any float32
        agree(found[1:], truth[1:], 1e-4)


@pytest.mark.parametrize(("impl", "device"), IMPLS)
def test_cross_entropy_is_a_special_case(impl: str, device: str) -> None:
    """Rows with w_x = 1 and no floor: the autoregressive objective goes through the same op."""
    problem = case(50, 49)
    one, zero = torch.ones(12, dtype=torch.float64), torch.zeros(12, dtype=torch.float64)
    plain = ElboCoefficients(one * torch.inf, one * torch.inf, one, zero, zero, zero, zero)
    logits = problem.hidden @ problem.weight[:49].T + problem.bias[:49]
    expected = torch.nn.functional.cross_entropy(logits, problem.x, reduction="none")
    losses = run(problem, plain, impl, device, torch.float32)[0]
    assert torch.allclose(losses.double(), expected, rtol=1e-5)


@pytest.mark.parametrize(("impl", "device"), IMPLS)
def test_chunks_do_not_show(impl: str, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same numbers when the work is cut into pieces, and padding and mask get no gradient."""
    problem = case(300, 7, count=12)
    rows = rows_of(PROCESSES["scdd"](problem.vocab), problem, 0.4, None)
    whole = run(problem, rows, impl, device, torch.float32)
    monkeypatch.setattr("scdd.ops.common.CHUNK_BYTES", {"cuda": 384 * 4 * 5, "cpu": 384 * 4 * 5})
    pieces = run(problem, rows, impl, device, torch.float32)
    for a, b in zip(whole, pieces, strict=True):
        assert torch.allclose(a, b, rtol=1e-4, atol=1e-6)
    assert not whole[2][300:].any()
    assert not whole[2][7].any()


@pytest.mark.parametrize(("impl", "device"), IMPLS)
def test_zero_at_the_truth(impl: str, device: str) -> None:
    """x_θ = x costs nothing at any (x, z_t, t): the constants are kept."""
    problem = case(20, 19, count=3)
    problem.weight, problem.hidden = (
        torch.zeros(128, 20).double(),
        torch.nn.functional.one_hot(problem.x, 20).double(),
    )
    problem.weight[:20] = 200.0 * torch.eye(20).double()
    problem.bias = torch.zeros(128).double()
    for name in PROCESSES:
        for t, s in TIMES:
            rows = rows_of(PROCESSES[name](problem.vocab), problem, t, s)
            assert run(problem, rows, impl, device, torch.float32)[0].abs().max() < 1e-5, (name, t, s)


def test_evaluation_computes_no_gradient() -> None:
    problem = case(30, 29)
    rows = rows_of(PROCESSES["scdd"](problem.vocab), problem, 0.4, None)
    hidden = problem.hidden.float()
    total, losses = elbo(hidden, problem.head(hidden), problem.x, problem.z_t, rows)
    assert not total.requires_grad
    truth = elbo(problem.hidden, problem.head(), problem.x, problem.z_t, rows, impl="reference")[1]
    assert torch.allclose(losses.double(), truth, rtol=1e-5)


def test_unknown_implementation_is_refused() -> None:
    problem = case(30, 29)
    rows = rows_of(PROCESSES["scdd"](problem.vocab), problem, 0.4, None)
    with pytest.raises(UserError, match="choose one of auto, reference, chunked, triton"):
        elbo(problem.hidden, problem.head(), problem.x, problem.z_t, rows, impl="cuda")


@pytest.mark.gpu
@pytest.mark.parametrize("name", PROCESSES)
def test_bfloat16_gradients_are_within_its_noise(name: str) -> None:
    """Real vocabulary, bfloat16 activations, float32 head: no further from float64 than bfloat16 rounding explains."""
    problem = case(50_258, 50_257, count=96, width=64)
    problem.weight *= 0.2
    problem.hidden = problem.hidden.bfloat16().double()
    rows = rows_of(PROCESSES[name](problem.vocab), problem, 0.5, None)
    truth = run(problem, rows, "reference", "cpu", torch.float64)
    device = torch.device("cuda")
    hidden = problem.hidden.to(device, torch.bfloat16).requires_grad_()
    weight = problem.weight.to(device, torch.float32).requires_grad_()
    head = Head(weight, problem.vocab, problem.bias.to(device, torch.float32))
    placed = ElboCoefficients(*(field.to(device) for field in rows))
    total, losses = elbo(hidden, head, problem.x.to(device), problem.z_t.to(device), placed)
    grads = torch.autograd.grad(3.0 * total, (hidden, weight))
    agree([losses.cpu(), *(g.cpu() for g in grads)], truth[:3], 2e-2)
