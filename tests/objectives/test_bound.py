"""The whole NELBO, chain by chain: enumerated over every z_{t_0…t_T}, against the exact likelihood, and as T grows."""

from __future__ import annotations

from itertools import pairwise, product
from math import prod

import numpy as np
import pytest
import torch

from scdd.core import Vocab
from scdd.objectives.elbo import nelbo, reconstruction
from scdd.processes.base import Process
from scdd.processes.gidd import GIDD
from scdd.processes.mdlm import MDLM
from scdd.processes.scdd import SCDD
from scdd.schedules.curves import Cosine, Polynomial
from scdd.schedules.decoupled import Decoupled
from scdd.schedules.masked import Masked
from scdd.schedules.peaked import Peaked

from .. import laws, paper
from ..laws import SCHEDULES, Homemade, at, kind_of

CLEAN: paper.Pair = (paper.Real(1), paper.Real(1))
State = tuple[int, ...]

WORLDS = {
    "SCDD-peaked": SCDD(Vocab(4, 3), Peaked(0.3)),
    "SCDD-mask-first": SCDD(Vocab(4, 0), Peaked(0.3, 1.2, 0.4)),
    "SCDD-decoupled": SCDD(Vocab(4, 1), Decoupled(Polynomial(2.0), Cosine())),
    "SCDD-uniform": SCDD(Vocab(4, 2), SCHEDULES["uniform"]),
    "SCDD-homemade": SCDD(Vocab(4, 3), Homemade()),
    "SCDD-masked": SCDD(Vocab(4, 3), Masked("cosine")),
    "MDLM": MDLM(Vocab(4, 1), Masked("linear")),
    "GIDD-peaked": GIDD(Vocab(4, 3), Peaked(0.3)),
    "GIDD-mask-first": GIDD(Vocab(4, 0), Peaked(0.1, 1.2, 0.6)),
    "GIDD-decoupled": GIDD(Vocab(4, 2), Decoupled(Cosine(), Polynomial(end=0.2))),
    "GIDD-uniform": GIDD(Vocab(4, 1), SCHEDULES["uniform"]),
}
GRIDS = {"from zero": [0.0, 0.3, 0.6, 1.0], "from later": [0.05, 0.5, 0.8, 1.0]}


class Chains:
    """All chains of L tokens on a grid of times; the network is a table of logits by (t, z_t), over whole sequences."""

    def __init__(self, process: Process, grid: list[float], length: int = 1) -> None:
        self.process, self.grid, self.length = process, grid, length
        self.V, self.m, self.kind = process.vocab.size, process.vocab.mask_id, kind_of(process)
        self.times = [at(process, t) for t in grid]
        self.states: list[State] = list(product(range(self.V), repeat=length))
        rng = np.random.default_rng(0)
        self.logits = rng.normal(size=(len(grid), len(self.states), length, self.V)) * 1.5
        masked = np.where(np.arange(self.V) == self.m, -np.inf, self.logits).astype(paper.Real)
        self.x_theta = np.exp(masked) / np.exp(masked).sum(-1, keepdims=True)
        self.kernels = [paper.forward(self.kind, self.V, self.m, s, t) for s, t in pairwise([CLEAN, *self.times])]
        self.reverse = [self._reverse(i) for i in range(len(grid))]

    def _reverse(self, i: int) -> dict[State, list[paper.Array]]:
        """p_θ(z_{t_{i−1}} | z_{t_i}) at each position, for each z_{t_i}; from t_0, p_θ(x | z_0)."""
        s = [CLEAN, *self.times][i]
        out: dict[State, list[paper.Array]] = {}
        for j, state in enumerate(self.states):
            rows = []
            for place, z in enumerate(state):
                joint = self.kernels[i][:, z] * paper.marginal(self.x_theta[i, j, place], s, self.m)
                rows.append(joint / joint.sum() if joint.sum() > 0 else joint)
            out[state] = rows
        return out

    def step(self, i: int, later: State, earlier: State) -> paper.Real:
        return paper.Real(prod(row[v] for row, v in zip(self.reverse[i][later], earlier, strict=True)))

    def prior(self, z: State) -> paper.Real:
        """p(z_1) = q(z_1 | x), whatever x: so the prior term of `eq:NELBO` is 0."""
        rows = [paper.marginal(paper.unit(x, self.V), self.times[-1], self.m) for x in self.tokens]
        for row in rows[1:]:
            np.testing.assert_allclose(row.astype(float), rows[0].astype(float), atol=1e-15)
        return paper.Real(prod(rows[0][v] for v in z))

    @property
    def tokens(self) -> list[int]:
        return laws.ordinary(self.process)

    def nelbo(self, x: State) -> float:
        """E_q log(q(z_{0:1} | x)/p_θ(x, z_{0:1})) over every chain: `eq:jointDist` below, `eq:p_theta_marginal` above."""
        total = paper.Real(0)
        for chain in product(self.states, repeat=len(self.grid)):
            q = prod(
                matrix[v, z]
                for (a, b), matrix in zip(pairwise([x, *chain]), self.kernels, strict=True)
                for v, z in zip(a, b, strict=True)
            )
            if q == 0:
                continue
            steps = [self.step(i, chain[i], x if i == 0 else chain[i - 1]) for i in range(len(self.grid))]
            total += q * (np.log(q) - np.log(self.prior(chain[-1])) - sum(np.log(p) for p in steps))
        return float(total)

    def log_likelihood(self, x: State) -> float:
        """log p_θ(x), `eq:p_theta_marginal` summed exactly, from t = 1 downwards."""
        weights = {z: self.prior(z) for z in self.states}
        for i in reversed(range(1, len(self.grid))):
            weights = {v: sum(weights[z] * self.step(i, z, v) for z in self.states) for v in self.states}
        return float(np.log(sum(weights[z] * self.step(0, z, x) for z in self.states)))

    def chance(self, x: State, i: int) -> list[float]:
        """q(z_{t_i} | x) of every state."""
        rows = [paper.marginal(paper.unit(token, self.V), self.times[i], self.m) for token in x]
        return [float(prod(row[v] for row, v in zip(rows, z, strict=True))) for z in self.states]

    def ours(self, x: State) -> tuple[float, float]:
        """(Diffusion over all i = 1…T, reconstruction at t_0) from the library, E over z_t exact."""
        z, clean = torch.tensor(self.states), torch.tensor([x]).expand(len(self.states), -1)

        def expected(values: torch.Tensor, i: int) -> float:
            return sum(p * v for p, v in zip(self.chance(x, i), values.sum(1).tolist(), strict=True) if p > 0)

        steps = list(enumerate(pairwise(self.grid), start=1))
        diffusion = sum(
            expected(nelbo(self.process, torch.tensor(self.logits[i]), clean, z, t, s), i) for i, (s, t) in steps
        )
        rebuilt = reconstruction(self.process, torch.tensor(self.logits[0]), clean, z, self.grid[0])
        return diffusion, expected(rebuilt, 0)


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("world", WORLDS)
def test_nelbo_is_the_sum_over_all_chains(world: str, grid: str) -> None:
    """`eq:NELBO`: diffusion + reconstruction + 0 is E_q log(q/p_θ) enumerated, and bounds −log p_θ(x)."""
    chains = Chains(WORLDS[world], GRIDS[grid])
    for token in chains.tokens[:2]:
        diffusion, rebuilt = chains.ours((token,))
        whole = chains.nelbo((token,))
        assert diffusion + rebuilt == pytest.approx(whole, rel=1e-11, abs=1e-11)
        assert rebuilt >= -1e-14
        assert whole >= -chains.log_likelihood((token,)) - 1e-12
    if grid == "from zero" and world != "SCDD-homemade":
        assert rebuilt == pytest.approx(0.0, abs=1e-14), "at γ_0 = ρ_0 = 1 nothing is left to rebuild"


def test_sequences_sum_over_positions() -> None:
    """Two tokens that the network reads together: the per-position losses add up to the NELBO of the pair."""
    for process in (SCDD(Vocab(3, 1), Peaked(0.4)), GIDD(Vocab(3, 2), Peaked(0.4))):
        chains = Chains(process, [0.1, 0.6, 1.0], length=2)
        x = (chains.tokens[0], chains.tokens[1])
        assert sum(chains.ours(x)) == pytest.approx(chains.nelbo(x), rel=1e-11)
        assert chains.nelbo(x) > -chains.log_likelihood(x)


@pytest.mark.parametrize("world", WORLDS)
def test_model_is_a_distribution(world: str) -> None:
    """Σ_x p_θ(x) = 1: the enumeration above compares with a likelihood, not with any number (`eq:p_theta_marginal`)."""
    chains = Chains(WORLDS[world], GRIDS["from later"])
    assert sum(np.exp(chains.log_likelihood((x,))) for x in chains.tokens) == pytest.approx(1.0, abs=1e-12)


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("world", [name for name in WORLDS if not name.startswith("GIDD")])
def test_cross_entropy_form_differs_by_the_first_log_density(world: str, grid: str) -> None:
    """`eq:loss_zt` summed over all i is our exact KL less E f_0(z_0): a constant of the data, 0 if ρ_0 = 1.

    Interpretation. Let f_t(z) = log(ρ_t·1[z = x] + (1 − ρ_t)/K) for a visible z, f_t(m) = 0: the log of what the paper
    keeps of q_t(z | x). It drops, from each KL, E[f_s(z_s) | z_t] − f_t(z_t); over the grid and under q these telescope
    to E f_0(z_0) − E f_1(z_1), and z_1 = m makes the last 0 (where γ ≡ 1 it is −log K). So with t_0 = 0 and ρ_0 = 1
    the printed loss is the exact diffusion term; with t_0 > 0, as in training at i ≥ 1, it is off by E f_0(z_0) < 0.
    """
    chains = Chains(WORLDS[world], GRIDS[grid])
    process, m, K = WORLDS[world], chains.m, chains.V - 1

    def mean_log_density(x: int, i: int) -> float:
        rho, total = chains.times[i][1], 0.0
        for (z,), p in zip(chains.states, chains.chance((x,), i), strict=True):
            if p > 0 and z != m:
                total += p * float(np.log(rho * (z == x) + (1 - rho) / K))
        return total

    for x in chains.tokens:
        printed = 0.0
        for i, (s, t) in enumerate(pairwise(chains.times), start=1):
            for j, p in enumerate(chains.chance((x,), i)):
                if p > 0:
                    printed += p * float(paper.cross_entropy(x, chains.x_theta[i, j, 0], j, s, t, m))
        exact, first = chains.ours((x,))[0], mean_log_density(x, 0)
        last = mean_log_density(x, len(chains.grid) - 1)
        assert exact - printed == pytest.approx(first - last, rel=1e-10, abs=1e-11)
        if world != "SCDD-uniform":
            assert last == 0.0
        if at(process, chains.grid[0])[1] < 1:
            assert first < -1e-3, "or the comparison says nothing"


@pytest.mark.parametrize("kind", [SCDD, GIDD])
def test_finer_grids_tend_to_continuous_time(kind: type[Process]) -> None:
    """T·E_t of the discrete loss → ∫ of the continuous one, with an error of order 1/T on a smooth schedule."""
    process = kind(Vocab(4, 3), Homemade())
    table = torch.tensor(np.random.default_rng(3).normal(size=(4, 4)))
    x, z = torch.tensor(0), torch.arange(4)

    def expected(t: torch.Tensor, s: torch.Tensor | None = None) -> torch.Tensor:
        """E over z_t at each of the times t."""
        n = len(t)
        values = nelbo(process, table.expand(n, 4, 4), x.expand(n, 4), z.expand(n, 4), t, s)
        chance = process.marginal(x.expand(n), t)
        return torch.where(chance > 0, chance * values, 0.0).sum(1)

    def discrete(T: int) -> float:
        grid = torch.linspace(0, 1, T + 1, dtype=torch.float64)
        return float(expected(grid[1:], grid[:-1]).sum())

    nodes, weights = np.polynomial.legendre.leggauss(200)
    integral = float((expected(torch.tensor((nodes + 1) / 2)) * torch.tensor(weights / 2)).sum())
    errors = [discrete(T) - integral for T in (100, 200, 400)]
    assert errors[0] / errors[1] == pytest.approx(2.0, rel=0.005)
    assert errors[1] / errors[2] == pytest.approx(2.0, rel=0.005)
    assert abs(errors[2]) < 0.002 * integral


def test_reconstruction_of_noise() -> None:
    """−log p_θ(x | z_0) by `eq:backwardParam` at s = t_{−1}, for every x and z_0, masks included; `eq:gidd-backward` too."""
    for process in (WORLDS["SCDD-homemade"], WORLDS["GIDD-peaked"], WORLDS["MDLM"]):
        m = process.vocab.mask_id
        table, x_theta = laws.network(process, 2)
        x, z = laws.everywhere(process)
        got = reconstruction(process, table[z], x, z, 0.1)
        for i, (a, b) in enumerate(zip(x.tolist(), z.tolist(), strict=True)):
            expected = paper.bayes(kind_of(process), x_theta[b], b, CLEAN, at(process, 0.1), m)[a]
            if expected > 0:
                assert got[i].item() == pytest.approx(-float(np.log(expected)), rel=1e-12, abs=1e-13)
            else:
                assert got[i].item() == np.inf
