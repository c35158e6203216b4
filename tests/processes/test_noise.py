"""Noise of any distribution π: the same laws as for uniform noise, from `eq:marginal` with π put for u and Bayes' rule."""

from __future__ import annotations

import base64
from dataclasses import dataclass
from itertools import pairwise, product

import numpy as np
import pytest
import torch
from torch import Tensor

from scdd.core import Kernel, UserError, Vocab
from scdd.core.rng import CounterRNG
from scdd.objectives.elbo import nelbo
from scdd.ops.elbo import elbo
from scdd.ops.elbo.reference import loss
from scdd.processes.base import Process, Time
from scdd.processes.dense import bayes, kernel_matrix, rate_matrix
from scdd.processes.elbo import WEIGHTS
from scdd.processes.gidd import GIDD
from scdd.processes.mdlm import MDLM
from scdd.processes.noise import Noise, read, unigram
from scdd.processes.scdd import SCDD
from scdd.samplers.ancestral import Ancestral
from scdd.samplers.intrinsic import intrinsic
from scdd.schedules.curves import Cosine, Polynomial
from scdd.schedules.decoupled import Decoupled
from scdd.schedules.masked import Masked
from scdd.schedules.peaked import Peaked
from tests.laws import everywhere, network
from tests.ops.cases import case, rows_of
from tests.samplers.tables import assert_frequencies, one_step, table

VOCAB = Vocab(6, 2)
PI = [0.05, 0.4, 0.1, 0.15, 0.3]
NOISE = Noise(VOCAB, PI)
SCHEDULES = [Peaked(0.2), Peaked(0.5, 1.2, 0.3), Decoupled(gamma=Polynomial(2.0), rho=Cosine())]
PROCESSES = [kind(VOCAB, schedule, NOISE) for kind in (SCDD, GIDD) for schedule in SCHEDULES]
SPANS = [(0.0, 0.001), (0.0, 0.4), (0.2, 0.201), (0.3, 0.7), (0.7, 0.999), (0.5, 1.0)]
over = pytest.mark.parametrize("process", PROCESSES, ids=lambda p: f"{type(p).__name__}-{p.schedule!r}")


def times(x: Tensor, t: float) -> Tensor:
    return torch.full(x.shape, t, dtype=torch.float64)


def pi() -> np.ndarray:
    """π by id, 0 at the mask."""
    return np.insert(np.array(PI), VOCAB.mask_id, 0.0)


def marginal(process: Process, x: np.ndarray, t: float) -> np.ndarray:
    at = process.levels(t)
    seen = float(at.gamma) * (float(at.rho) * x + float(at.one_minus_rho) * pi())
    return seen + float(at.one_minus_gamma) * np.eye(6)[VOCAB.mask_id]


@over
def test_forward_laws(process: Process) -> None:
    """Rows sum to one, Chapman–Kolmogorov, and the kernel leads from marginal to marginal, with π in them."""
    tokens = [v for v in range(6) if v != VOCAB.mask_id]
    for s, t in SPANS:
        matrix = kernel_matrix(process, s, t)
        assert float(matrix.min()) >= 0
        torch.testing.assert_close(matrix.sum(1), torch.ones(6, dtype=torch.float64), rtol=0, atol=1e-13)
        between = kernel_matrix(process, 0.5 * s, s) @ matrix
        torch.testing.assert_close(between, kernel_matrix(process, 0.5 * s, t), rtol=0, atol=1e-13)
        for x in tokens:
            expected = marginal(process, np.eye(6)[x], t)
            np.testing.assert_allclose(process.marginal(torch.tensor(x), t).numpy(), expected, atol=1e-14)
            np.testing.assert_allclose(marginal(process, np.eye(6)[x], s) @ matrix.numpy(), expected, atol=1e-13)


@over
def test_rates_are_the_limit_of_kernels(process: Process) -> None:
    for t in (0.3, 0.77):
        quotient = [(kernel_matrix(process, t - h, t) - torch.eye(6)) / h for h in (1e-5, 5e-6)]
        rates = rate_matrix(process, t)
        torch.testing.assert_close(2 * quotient[1] - quotient[0], rates, rtol=0, atol=1e-5)
        assert float(rates.sum(1).abs().max()) < 1e-11


@over
def test_reverse_is_bayes_rule(process: Process) -> None:
    """Dense, and as keep / model / noise / mask: all by matrices that this test multiplies itself."""
    z = torch.arange(6)
    x_theta = torch.tensor([0.1, 0.2, 0.0, 0.3, 0.15, 0.25], dtype=torch.float64)
    for s, t in SPANS:
        if float(process.levels(t).gamma) == 0.0:
            continue
        joint = marginal(process, x_theta.numpy(), s)[:, None] * kernel_matrix(process, s, t).numpy()
        expected = (joint / joint.sum(0)).T
        np.testing.assert_allclose(bayes(process, x_theta, s, t).numpy(), expected, atol=1e-12)
        np.testing.assert_allclose(process.posterior(z, x_theta.expand(6, 6), s, t).numpy(), expected, atol=1e-12)
        move = process.transition(z, x_theta, s, t)
        keep, model, noise, mask = (part.expand(6)[:, None].numpy() for part in move)
        mixed = keep * np.eye(6) + model * x_theta.numpy() + noise * pi() + mask * np.eye(6)[VOCAB.mask_id]
        np.testing.assert_allclose(mixed, expected, atol=1e-12)


@over
def test_discrete_rows_are_the_divergence(process: Process) -> None:
    """Each row of the bound is KL(q(z_s | z_t, x) ‖ p_θ(z_s | z_t)) over all ids; 0 where x_θ = x."""
    logits, _ = network(process, 4)
    x, z = everywhere(process)
    certain = torch.full((6, 6), -1e4, dtype=torch.float64).fill_diagonal_(1e4)
    for s, t in [(0.2, 0.201), (0.0, 0.4), (0.3, 0.7), (0.7, 0.99)]:
        got = nelbo(process, logits[z], x, z, times(x, t), times(x, s))
        theta = torch.softmax(logits.index_fill(1, torch.tensor([VOCAB.mask_id]), -torch.inf), -1)
        truth = process.posterior(z, torch.nn.functional.one_hot(x, 6).double(), s, t)
        model = process.posterior(z, theta[z], s, t)
        kl = torch.where(truth > 0, truth * (truth / model).log(), 0.0).sum(-1)
        possible = process.likelihood(z, (z == x).double(), t) > 0
        torch.testing.assert_close(got[possible], kl[possible], rtol=1e-8, atol=1e-11)
        sure = nelbo(process, certain[x], x, z, times(x, t), times(x, s))
        assert float(sure[possible].abs().max()) < 1e-9


@over
def test_continuous_rows_are_the_limit_of_discrete_ones(process: Process) -> None:
    logits, _ = network(process, 5)
    x, z = everywhere(process)
    for t in (0.3, 0.6):
        late = times(x, t)

        def quotient(h: float, t: float = t, late: Tensor = late) -> Tensor:
            return nelbo(process, logits[z], x, z, late, times(x, t - h)) / h

        limit = nelbo(process, logits[z], x, z, late)
        torch.testing.assert_close(2 * quotient(5e-6) - quotient(1e-5), limit, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", [each for each in WEIGHTS if each not in ("elbo", "gidd+code")])
def test_bounded_weights(name: str) -> None:
    """2 at a mask, 1 at noise, (1 − ρ)·π(x)/ρ at a clean token, on KL + IS of the visible or of the whole marginal."""
    process = SCDD(VOCAB, Peaked(0.2), NOISE)
    logits, x_theta = network(process, 6)
    (x, z), m = everywhere(process), VOCAB.mask_id
    noise = process.noise_scores(torch.device("cpu"))
    for t in (0.1, 0.6):
        got = loss(logits[z], x, z, process.weighted_coefficients(x, z, times(x, t), name), m, noise)
        at = process.levels(t)
        rho, gamma = float(at.rho), float(at.gamma)
        for i, (a, b) in enumerate(zip(x.tolist(), z.tolist(), strict=True)):
            f, g = (rho * v + (1 - rho) * pi() for v in (np.eye(6)[a], x_theta[b].astype(float)))
            kl = sum(f[v] * np.log(f[v] / g[v]) for v in range(6) if v != m)
            same = 0.0 if b == m else f[b] / g[b] - np.log(f[b] / g[b]) - 1
            weight = 2.0 if b == m else min(2.0, (1 - rho) * pi()[a] / rho) if a == b else 1.0
            expected = weight * (kl * (gamma if name == "gidd+" else 1.0) + same)
            assert float(got[i]) == pytest.approx(expected, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize(("kind", "t", "s"), [(SCDD, 0.5, None), (GIDD, 0.5, None), (SCDD, 0.4, 0.3), (GIDD, 0.9, 0.5)])
def test_fast_values_and_gradients_are_the_references(kind: type[Process], t: float, s: float | None) -> None:
    """Chunked torch, which is also what Triton's place is taken by, against the dense float64 form."""
    for size, mask_id, bias in ((6, 2, False), (150, 149, True)):
        problem = case(size, mask_id, 12, input_bias=bias)
        values = np.random.default_rng(1).uniform(0.05, 3, problem.vocab.K)
        process = kind(problem.vocab, Peaked(0.2), Noise(problem.vocab, values / values.sum()))
        noise, rows = process.noise_scores(torch.device("cpu")), rows_of(process, problem, t, s)
        found = []
        for impl, dtype in (("reference", torch.float64), ("chunked", torch.float32), ("triton", torch.float32)):
            inputs = [v.to(dtype).requires_grad_() for v in (problem.hidden, problem.weight, problem.bias)]
            head = type(problem.head())(
                inputs[1], problem.vocab, inputs[2], None if not bias else problem.input_bias.to(dtype)
            )  # type: ignore[union-attr]
            total, losses = elbo(inputs[0], head, problem.x, problem.z_t, rows, impl=impl, noise=noise)
            found.append([losses.double(), *(g.double() for g in torch.autograd.grad(total, inputs))])
        for other in found[1:]:
            for part, exact in zip(other, found[0], strict=True):
                assert (part - exact).norm() <= (1e-5 if s is None else 2e-3) * (exact.norm() + 1e-6)


@pytest.mark.parametrize("kind", [SCDD, GIDD])
def test_a_uniform_vector_is_the_papers_noise(kind: type[Process]) -> None:
    plain, given = kind(VOCAB, Peaked(0.2)), kind(VOCAB, Peaked(0.2), Noise(VOCAB, [0.2] * 5))
    logits, _ = network(plain, 2)
    x, z = everywhere(plain)
    t = times(x, 0.4)
    for s in (None, t - 0.1):
        torch.testing.assert_close(
            nelbo(plain, logits[z], x, z, t, s), nelbo(given, logits[z], x, z, t, s), rtol=1e-12, atol=1e-13
        )
    assert intrinsic(plain, (1.0, 0.6, 0.2, 0.0)).corrections == pytest.approx(
        intrinsic(given, (1.0, 0.6, 0.2, 0.0)).corrections
    )


def test_draws_follow_the_noise() -> None:
    process, x = SCDD(VOCAB, Peaked(0.4), NOISE), torch.full((1, 40_000), 5)
    z = process.corrupt(x, 0.5, CounterRNG(0, [0]))
    assert_frequencies(z, marginal(process, np.eye(6)[5], 0.5))
    u = torch.tensor([0.0, 0.0499, 0.05, 0.4501, 0.999999999])
    assert process.noise_token(u).tolist() == [0, 0, 1, 3, 5]
    denoiser = table(VOCAB, 3)
    for token in (0, VOCAB.mask_id):
        frame = one_step(denoiser, process, Ancestral(), torch.full((1, 30_000), token), 0.7, 0.4)
        law = process.posterior(torch.tensor(token), torch.tensor(denoiser.x_theta()[token]), 0.4, 0.7)
        assert_frequencies(frame.tokens, law.numpy() / float(law.sum()))


@over
def test_intrinsic_rates_by_the_whole_chain(process: Process) -> None:
    """Corrections of a perfect denoiser: every chain of tokens, for every right token, as often as the noise has it."""
    grid, expected = (1.0, 0.7, 0.3, 0.1, 0.0), 0.0
    for x, chance in zip([v for v in range(6) if v != VOCAB.mask_id], PI, strict=True):
        hot = torch.nn.functional.one_hot(torch.tensor(x), 6).double().expand(6, 6)
        state = torch.tensor(marginal(process, np.eye(6)[x], 1.0))
        for t, s in pairwise(grid):
            law = process.posterior(torch.arange(6), hot, s, t)
            visible = [v for v in range(6) if v != VOCAB.mask_id]
            expected += chance * sum(float(state[a] * law[a, b]) for a, b in product(visible, visible) if a != b)
            state = state @ law
    assert intrinsic(process, grid).corrections == pytest.approx(expected, abs=1e-10)


def test_a_process_is_known_by_its_fields_and_its_noise() -> None:
    assert repr(SCDD(VOCAB, Peaked(0.2))) == "SCDD(Vocab(size=6, mask_id=2), Peaked(p_u=0.2, exponent=1, t_peak=0.5))"
    assert f"Noise('given', {NOISE.digest})" in repr(PROCESSES[0])
    other = Noise(VOCAB, [0.2] * 5)
    assert repr(SCDD(VOCAB, Peaked(0.2), other)) != repr(PROCESSES[0])
    assert MDLM(VOCAB, Masked()).has_uniform_noise is False

    class Slow(Process):
        """One of somebody's own, with a field."""

        def __init__(self, vocab: Vocab, schedule: Peaked, pace: float) -> None:
            super().__init__(vocab, schedule)
            self.pace, self._cache = pace, {"no": "field"}

        def kernel(self, z_t: Tensor, s: Time, t: Time) -> Kernel:
            raise NotImplementedError

        def rates(self, z_t: Tensor, t: Time) -> Kernel:
            raise NotImplementedError

    @dataclass(repr=False)
    class Slower(Slow):
        """With fields of a dataclass."""

        vocab: Vocab
        schedule: Peaked
        pace: float = 0.5

        def __post_init__(self) -> None:
            Slow.__init__(self, self.vocab, self.schedule, self.pace)

    slow = Slow(VOCAB, Peaked(0.2), 0.25)
    assert slow.has_uniform_noise
    assert repr(slow).startswith("Slow(Vocab")
    assert repr(slow).endswith(", pace=0.25)")
    assert repr(Slower(VOCAB, Peaked(0.2))).endswith(", pace=0.5)")


def test_unigram_noise_leaves_no_token_out() -> None:
    counts = torch.tensor([3, 0, 99, 5, 0, 1])
    assert unigram(VOCAB, counts).values.tolist() == pytest.approx([4 / 14, 1 / 14, 6 / 14, 1 / 14, 2 / 14])


def test_saved_noise_comes_back_and_damage_is_refused() -> None:
    saved = NOISE.saved()
    back = read(saved, VOCAB, "here")
    assert torch.equal(back.values, NOISE.values)
    assert repr(back) == repr(NOISE)

    def stored(values: list[float]) -> dict[str, str]:
        return {"name": "x", "float64": base64.b64encode(np.array(values, dtype="<f8").tobytes()).decode()}

    bad = [
        None, {}, [1.0], {"name": 3, "float64": "AA"}, {"name": "x", "float64": "%%"}, {"name": "x", "float64": "A" * 999},
        stored([0.5, 0.5]), stored([0.2] * 4 + [float("nan")]), stored([0.3] * 5), stored([0.0, 0.1, 0.2, 0.3, 0.4]),
        stored([-0.2, 0.3, 0.3, 0.3, 0.3]), stored([float("inf")] * 5),
    ]  # fmt: skip
    for damaged in bad:
        with pytest.raises(UserError, match="here"):
            read(damaged, VOCAB, "here")
    with pytest.raises(UserError, match="another vocabulary"):
        SCDD(Vocab(6, 3), Peaked(0.2), NOISE)
