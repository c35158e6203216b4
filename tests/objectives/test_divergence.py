"""Position by position: the discrete loss is the KL, the continuous one its rate, the paper's forms differ by constants."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from scdd.core import ElboCoefficients, UserError, Vocab
from scdd.objectives.diffusion import DiffusionObjective
from scdd.objectives.elbo import nelbo
from scdd.objectives.options import ElboOptions
from scdd.ops.elbo.reference import Statistics, loss, position_loss
from scdd.processes.base import Process
from scdd.processes.gidd import GIDD
from scdd.processes.scdd import SCDD
from scdd.schedules.peaked import Peaked

from .. import laws, paper
from ..laws import INSIDE, PAIRS, at, everywhere, kind_of, moderate, over_processes, slope


def losses(process: Process, table: Tensor, t: float, s: float | None = None) -> dict[tuple[int, int], float]:
    """Our loss for every possible (x, z_t), with the network a table of logits by z_t."""
    x, z = everywhere(process)
    values = nelbo(process, table[z], x, z, t, s)
    pairs = list(zip(x.tolist(), z.tolist(), strict=True))
    alive = process.marginal(x, t).gather(1, z[:, None])[:, 0] > 0
    return {pair: value for pair, value, some in zip(pairs, values.tolist(), alive.tolist(), strict=True) if some}


def check_kl(process: Process, seed: int, spread: float, s: float, t: float) -> None:
    """Against KL(q(z_s | z_t, x) ‖ p_θ(z_s | z_t)) between posteriors by Bayes' rule on the paper's kernel."""
    table, x_theta = laws.network(process, seed, spread)
    V, m, kind = process.vocab.size, process.vocab.mask_id, kind_of(process)
    for (x, z), got in losses(process, table, t, s).items():
        q = paper.bayes(kind, paper.unit(x, V), z, at(process, s), at(process, t), m)
        p = paper.bayes(kind, x_theta[z], z, at(process, s), at(process, t), m)
        assert got == pytest.approx(float(paper.kl(q, p)), rel=1e-10, abs=50 * paper.TIGHT), (x, z, s, t)


def check_rate(process: Process, seed: int, spread: float, t: float) -> None:
    """Against Σ_{v≠z} P − Q + Q log(Q/P) between reverse rates, Q those of the truth and P the model's."""
    table, x_theta = laws.network(process, seed, spread)
    V, m = process.vocab.size, process.vocab.mask_id
    forward = paper.rate(kind_of(process), V, m, at(process, t), slope(process, t))

    def reverse(x: paper.Array, z: int) -> paper.Array:
        q = paper.marginal(x, at(process, t), m)
        return forward[:, z] * q / q[z]

    for (x, z), got in losses(process, table, t).items():
        expected = float(paper.generalised_kl(reverse(paper.unit(x, V), z), reverse(x_theta[z], z), z))
        assert got == pytest.approx(expected, rel=1e-9, abs=1e-9), (x, z, t)


@over_processes
def test_discrete_loss_is_the_kl(process: Process) -> None:
    for seed, (s, t) in enumerate(PAIRS):
        check_kl(process, seed, 1.5, s, t)


@over_processes
def test_continuous_loss_is_the_rate_of_the_kl(process: Process) -> None:
    for seed, t in enumerate(INSIDE):
        check_rate(process, seed, 1.5, t)


@settings(moderate, max_examples=30)
@given(
    process=laws.processes(), span=laws.spans(), seed=st.integers(0, 999), spread=st.sampled_from([0.0, 1.0, 4.0, 15.0])
)
def test_losses_on_random_processes(process: Process, span: tuple[float, float], seed: int, spread: float) -> None:
    check_kl(process, seed, spread, *span)
    check_rate(process, seed, spread, min(max(span[1], 1e-3), 0.999))


@over_processes
def test_zero_at_the_truth(process: Process) -> None:
    """x_θ = x costs nothing, exactly, for every x, z_t, t and s; anything else costs, never less than nothing."""
    x, z = everywhere(process)
    sure = torch.full((len(x), process.vocab.size), -torch.inf, dtype=torch.float64)
    sure.scatter_(1, x[:, None], 0.0)
    for s, t in PAIRS:
        torch.testing.assert_close(nelbo(process, sure, x, z, t, s), torch.zeros(len(x)).double(), rtol=0, atol=1e-13)
    for t in [0.0, *INSIDE, 1.0]:
        torch.testing.assert_close(nelbo(process, sure, x, z, t), torch.zeros(len(x)).double(), rtol=0, atol=1e-12)
    table, _ = laws.network(process, 3)
    for s, t in PAIRS:
        assert min(losses(process, table, t, s).values()) > -1e-13
    for t in INSIDE:
        assert min(losses(process, table, t).values()) > -1e-12


@over_processes
def test_discrete_tends_to_continuous(process: Process) -> None:
    """KL over a step h, divided by h, tends to the continuous loss with an error of first order: halved as h is."""
    table, _ = laws.network(process, 5)
    for t in INSIDE:
        limit = losses(process, table, t)
        coarse, fine = ({k: v / h for k, v in losses(process, table, t, t - h).items()} for h in (2e-4, 1e-4))
        for pair, value in limit.items():
            first, second = coarse[pair] - value, fine[pair] - value
            assert abs(2 * second - first) < 0.02 * abs(first) + 1e-6 * (1 + abs(value)), (pair, t)


@pytest.mark.parametrize("mask", laws.MASKS.values())
@pytest.mark.parametrize(
    "name", ["peaked", "peaked-strong", "peaked-late", "peaked-faint", "decoupled", "homemade", "cosine"]
)
def test_papers_continuous_loss(name: str, mask: int) -> None:
    """`eq:contLoss` (= `eq:loss_continuous`) drops what does not depend on θ: ours is its value less that at x_θ = x.

    At ρ = 1 the value at the truth is 0·log 0, so there the printed form is compared between two networks.
    """
    process = laws.build("SCDD", name, mask)
    one, two = laws.network(process, 1), laws.network(process, 2)
    for t in INSIDE:
        ours, others = losses(process, one[0], t), losses(process, two[0], t)
        for (x, z), got in ours.items():

            def printed(x_theta: paper.Array, x: int = x, z: int = z, t: float = t) -> float:
                return float(paper.continuous(x, x_theta, z, at(process, t), slope(process, t), mask))

            change = printed(one[1][z]) - printed(two[1][z])
            assert got - others[x, z] == pytest.approx(change, rel=1e-9, abs=1e-8)
            if at(process, t)[1] < 1:
                truth = printed(paper.unit(x, process.vocab.size))
                assert got == pytest.approx(printed(one[1][z]) - truth, rel=1e-9, abs=1e-8)


@pytest.mark.parametrize("kind", ["SCDD", "MDLM", "GIDD"])
@pytest.mark.parametrize("name", laws.MASK_ONLY)
def test_mdlms_losses(kind: str, name: str) -> None:
    """pro:mdlm-ours: `eq:loss_mdm` and `eq:loss_mdm_continuous` at masks, nothing at visible tokens, α = γ."""
    process = laws.build(kind, name, 1)
    table, x_theta = laws.network(process, 4)
    for s, t in PAIRS:
        (a_s, _), (a_t, _) = at(process, s), at(process, t)
        for (x, z), got in losses(process, table, t, s).items():
            expected = -(a_s - a_t) / (1 - a_t) * np.log(x_theta[z][x]) if z == 1 else 0.0
            assert got == pytest.approx(float(expected), rel=1e-12, abs=1e-14)
    for t in INSIDE:
        for (x, z), got in losses(process, table, t).items():
            alpha, dalpha = at(process, t)[0], slope(process, t)[0]
            expected = dalpha / (1 - alpha) * np.log(x_theta[z][x]) if z == 1 else 0.0
            assert got == pytest.approx(float(expected), rel=1e-12, abs=1e-14)


@pytest.mark.parametrize("mask", laws.MASKS.values())
@pytest.mark.parametrize("parameters", [(0.2, 1.0, 0.5), (0.1, 1.5, 0.6), (0.5, 1.0, 0.25)])
def test_gidds_loss_in_its_own_parameters(parameters: tuple[float, float, float], mask: int) -> None:
    """pro:gidd-ours: ours is `eq:gidd-loss` with `eq:gidd-weight`, from α_t, β_t and π_t alone; C is 0 in our form."""
    process, own = GIDD(Vocab(5, mask), Peaked(*parameters)), paper.Gidd(*parameters, 5, mask)
    table, x_theta = laws.network(process, 6)
    for t in INSIDE:
        for (x, z), got in losses(process, table, t).items():
            assert got == pytest.approx(own.loss(x, x_theta[z], z, t), rel=1e-9, abs=1e-10)


@pytest.mark.parametrize("mask", laws.MASKS.values())
@pytest.mark.parametrize("parameters", [(0.2, 1.0, 0.5), (0.5, 1.0, 0.25)])
def test_dynamic_weights_of_gidd_plus(parameters: tuple[float, float, float], mask: int) -> None:
    """`eq:gidd-loss` with 2 on masked, 1 on noised, (B/K)·e^{−λ/2} on clean tokens, λ = log((1 − t)/t), at most 2.

    In γ and ρ that last weight is (1 − ρ)/(K·ρ); with t_peak = ½ and exponent 1 the two are one.
    """
    process, own = GIDD(Vocab(5, mask), Peaked(*parameters)), paper.Gidd(*parameters, 5, mask)
    table, x_theta = laws.network(process, 7)
    x, z = everywhere(process)
    capped = 0
    for t in [*INSIDE, 0.9999]:
        got = loss(table[z], x, z, process.weighted_coefficients(x, z, t, "dynamic"), mask)
        rho = at(process, t)[1]
        clean = float(min(2.0, (1 - rho) / (4 * rho)))
        capped += clean == 2.0
        if parameters[1:] == (1.0, 0.5):
            assert clean == pytest.approx(min(2.0, own.B / 4 * (t / (1 - t)) ** 0.5), rel=1e-12)
        for i, (a, b) in enumerate(zip(x.tolist(), z.tolist(), strict=True)):
            weight = 2.0 if b == mask else clean if a == b else 1.0
            q, p = own.marginal(paper.unit(a, 5), t), own.marginal(x_theta[b], t)
            divergence = paper.kl(q, p) + q[b] / p[b] - np.log(q[b] / p[b]) - 1
            assert got[i].item() == pytest.approx(weight * float(divergence), rel=1e-10, abs=1e-12)
    assert capped == 1


def test_dynamic_weights_on_an_absorbing_mask() -> None:
    """SCDD's divergences are KL(f‖f_θ) + IS, f the distribution of a visible token; the weights are the same."""
    process = laws.build("SCDD", "peaked", 2)
    table, x_theta = laws.network(process, 8)
    x, z = everywhere(process)
    for t in INSIDE:
        rho = at(process, t)[1]
        got = loss(table[z], x, z, process.weighted_coefficients(x, z, t, "dynamic"), 2)
        for i, (a, b) in enumerate(zip(x.tolist(), z.tolist(), strict=True)):
            f, g = (rho * v + (1 - rho) * paper.uniform(5, 2) for v in (paper.unit(a, 5), x_theta[b]))
            same = 0.0 if b == 2 else f[b] / g[b] - np.log(f[b] / g[b]) - 1
            weight = 2.0 if b == 2 else min(2.0, (1 - rho) / (4 * rho)) if a == b else 1.0
            assert got[i].item() == pytest.approx(float(weight * (paper.kl(f, g) + same)), rel=1e-10, abs=1e-12)


@pytest.mark.parametrize("kind", [SCDD, GIDD])
@pytest.mark.parametrize("p_u", [0.1, 0.2])
def test_weights_of_gidds_code(kind: type[Process], p_u: float) -> None:
    """(B/V)·exp(½·sigmoid(−t)) on clean tokens, B = 2·p_u/(1 − p_u), whatever the time; else GIDD+'s weights, and its loss."""
    process, own = kind(Vocab(5, 2), Peaked(p_u)), paper.Gidd(p_u, 1.0, 0.5, 5, 2)
    table, x_theta = laws.network(process, 7)
    x, z = everywhere(process)
    for t in [1e-3, *INSIDE, 0.999]:
        got = loss(table[z], x, z, process.weighted_coefficients(x, z, t, "gidd+code"), 2)
        clean = 2 * p_u / (1 - p_u) / 5 * np.exp(0.5 / (1 + np.exp(t)))
        for i, (a, b) in enumerate(zip(x.tolist(), z.tolist(), strict=True)):
            weight = 2.0 if b == 2 else clean if a == b else 1.0
            q, p = own.marginal(paper.unit(a, 5), t), own.marginal(x_theta[b], t)
            divergence = paper.kl(q, p) + q[b] / p[b] - np.log(q[b] / p[b]) - 1
            assert got[i].item() == pytest.approx(weight * float(divergence), rel=1e-9, abs=1e-12)


def test_weights_of_gidds_code_need_its_schedule() -> None:
    options = ElboOptions(None, "gidd+code")
    with pytest.raises(UserError, match="use schedule peaked"):
        DiffusionObjective(laws.build("SCDD", "decoupled"), options)
    masked = laws.build("MDLM", "linear")
    x, z = everywhere(masked)
    table, _ = laws.network(masked, 7)
    a, b = (loss(table[z], x, z, masked.weighted_coefficients(x, z, 0.3, n), 4) for n in ("gidd+", "gidd+code"))
    assert torch.allclose(a, b), "without noise both are MDLM with bounded weights"


@pytest.mark.parametrize("name", ["gidd+", "gidd+code", "scdd+"])
def test_weights_of_one_name_are_one_loss_for_both_processes(name: str) -> None:
    """SCDD and GIDD share marginals, so under the same weights they are trained alike; "dynamic" is each one's own."""
    for mask in laws.MASKS.values():
        scdd, gidd = (kind(Vocab(5, mask), Peaked(0.2)) for kind in (SCDD, GIDD))
        x, z = everywhere(scdd)
        table, _ = laws.network(scdd, 9)
        own = {"gidd+": gidd, "scdd+": scdd}.get(name)
        for t in INSIDE:
            a, b = (loss(table[z], x, z, each.weighted_coefficients(x, z, t, name), mask) for each in (scdd, gidd))
            assert torch.allclose(a, b, rtol=1e-12, atol=1e-14)
            if own is None:
                continue
            alone = loss(table[z], x, z, own.weighted_coefficients(x, z, t, "dynamic"), mask)
            assert torch.allclose(a, alone, rtol=1e-12, atol=1e-14)


def test_at_a_mask_scdd_plus_weighs_one_over_gamma_times_as_much() -> None:
    process = laws.build("SCDD", "peaked", 2)
    table, _ = laws.network(process, 8)
    x, z = everywhere(process)
    for t in INSIDE:
        ours, theirs = (loss(table[z], x, z, process.weighted_coefficients(x, z, t, n), 2) for n in ("scdd+", "gidd+"))
        masked = (z == 2) & (x != 2)
        assert torch.allclose(ours[masked] * at(process, t)[0], theirs[masked], rtol=1e-12)


@pytest.mark.parametrize("kind", [SCDD, GIDD])
@pytest.mark.parametrize("p_u", [1e-6, 1e-3, 0.5])
def test_large_vocabulary(kind: type[Process], p_u: float) -> None:
    """K = 50,257: the closed form of three numbers keeps the digits of the dense KL, r up to 1e11 included."""
    K = 50_257
    process = kind(Vocab(K + 1, 100), Peaked(p_u))
    values = np.random.default_rng(0).normal(size=K + 1) * 3
    values[[5, 17]] = 12.0, 9.0
    logits = torch.tensor(values)
    values[100] = -np.inf
    x_theta = np.exp(values.astype(paper.Real) - 12)
    x_theta /= x_theta.sum()
    hot = np.zeros(K + 1, dtype=paper.Real)
    hot[5] = 1
    for s, t in [(0.001, 0.002), (0.4, 0.401), (0.99, 0.999)]:
        (g_s, r_s), (g_t, _) = at(process, s), at(process, t)
        g, r = paper.ratios(at(process, s), at(process, t))
        for z in (5, 17, 900, 100):

            def dense(v: paper.Array, z: int = z) -> paper.Array:
                before = g_s * (r_s * v + (1 - r_s) / K)  # noqa: B023
                before[100] = 1 - g_s  # noqa: B023
                if kind is GIDD:
                    mixed = (1 - g_t) - g * r * (1 - g_s) if z == 100 else g_t * (1 - r) / K  # noqa: B023
                    column = np.full(K + 1, mixed)
                    column[z] += g * r  # noqa: B023
                else:
                    column = np.full(K + 1, 1 - g if z == 100 else g * (1 - r) / K)  # noqa: B023
                    column[100] = float(z == 100)
                    column[z] += 0 if z == 100 else g * r  # noqa: B023
                joint = before * column
                return joint / joint.sum()

            q, p = dense(hot), dense(x_theta)
            expected = float(np.sum(q[q > 0] * np.log(q[q > 0] / p[q > 0])))
            got = nelbo(process, logits[None], torch.tensor([5]), torch.tensor([z]), t, s).item()
            assert got == pytest.approx(expected, rel=1e-9, abs=1e-12), (z, s, t)


def test_signal_that_is_gone_costs_nothing() -> None:
    """Where ρ_t = 0 a visible token says nothing of x: no loss, no NaN, discrete and continuous."""
    for kind in (SCDD, GIDD):
        process = kind(Vocab(5, 4), laws.Early())
        x, z = everywhere(process)
        table, _ = laws.network(process, 0)
        for s in (None, 0.85):
            values = nelbo(process, table[z], x, z, 0.9, s)
            assert values.abs().max() < 1e-12
        values = nelbo(process, table[z], x, z, 0.9, 0.5)
        assert torch.isfinite(values).all()
        assert values[z == 4].min() > 0


def test_the_gain_keeps_its_last_digits() -> None:
    """log(1 + r·p) above r·p = e^20, where torch's softplus by default gives up e^{−20}: 8e-10 here."""
    one, log_r = torch.ones(1, dtype=torch.float64), torch.tensor([21.0], dtype=torch.float64)
    rows = ElboCoefficients(log_r, log_r, 0 * one, one, 0 * one, 0 * one, 0 * one)
    certain = Statistics(log_p_x=-one, log_p_z=0 * one, S=0 * one)
    got = position_loss(rows, torch.tensor([False]), certain).item()
    assert got == pytest.approx(-21.0 - np.exp(-21.0), abs=1e-14)
