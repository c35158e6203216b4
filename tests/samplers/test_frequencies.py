"""Every sampler's transition frequencies against its dense definition, written here from the papers' formulas."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from torch import Tensor

from scdd.core import Vocab
from scdd.core.rng import CounterRNG
from scdd.ops.common import Filters
from scdd.processes.autoregressive import Autoregressive
from scdd.processes.gidd import GIDD
from scdd.processes.mdlm import MDLM
from scdd.processes.scdd import SCDD
from scdd.samplers.ancestral import Ancestral
from scdd.samplers.ar import Ar
from scdd.samplers.base import Model
from scdd.samplers.gidd_correct import GiddCorrect
from scdd.samplers.informed import Informed
from scdd.samplers.p2 import P2
from scdd.samplers.prism import Prism
from scdd.samplers.remdm import Remdm
from scdd.samplers.step import TokenRows
from scdd.samplers.threshold import Threshold
from scdd.schedules.masked import Masked
from scdd.schedules.peaked import Peaked

from .. import paper
from ..laws import at
from .tables import Array, Table, assert_frequencies, one_step, table, walk

VOCAB = Vocab(5, 2)
MASK, V = VOCAB.mask_id, VOCAB.size
ORDINARY = [v for v in range(V) if v != MASK]
DRAWS = 30_000
PROCESSES = {
    "SCDD": SCDD(VOCAB, Peaked(p_u=0.4)),
    "GIDD": GIDD(VOCAB, Peaked(p_u=0.4)),
    "MDLM": MDLM(VOCAB, Masked("log-linear")),
}
MDLM_ = PROCESSES["MDLM"]
PAIRS = [(0.9, 0.5), (0.5, 0.45), (0.3, 0.0)]


def everywhere(columns: int = 1) -> torch.Tensor:
    """DRAWS rows for each id, [V · DRAWS, columns]."""
    return torch.arange(V).repeat_interleave(DRAWS)[:, None].expand(-1, columns).contiguous()


def clean(pair: tuple[float, float], s: float) -> tuple[float, float]:
    return (1.0, 1.0) if s == 0.0 else pair


@pytest.mark.parametrize("kind", PROCESSES)
@pytest.mark.parametrize(("t", "s"), PAIRS)
@pytest.mark.parametrize("filters", [Filters(), Filters(top_p=0.8, temperature=0.7)], ids=["plain", "filtered"])
def test_ancestral(kind: str, t: float, s: float, filters: Filters) -> None:
    process, denoiser = PROCESSES[kind], table(VOCAB)
    frame = one_step(denoiser, process, Ancestral(), everywhere(), t, s, filters)
    x_theta = denoiser.x_theta(filters)
    for z in range(V):
        possible = paper.marginal(x_theta[z], at(process, t), MASK)[z] > 0
        if possible:
            expected = paper.bayes(kind, x_theta[z], z, clean(at(process, s), s), at(process, t), MASK)
        else:  # MDLM under filters: a token that x_θ holds impossible carries over
            expected = paper.unit(z, V)
        assert_frequencies(frame.tokens[z * DRAWS : (z + 1) * DRAWS], expected)


def masked_row(x: Array, fill: float) -> Array:
    return fill * x + (1 - fill) * paper.unit(MASK, V)


@pytest.mark.parametrize("variant", ["cap", "rescale"])
@pytest.mark.parametrize(("t", "s"), PAIRS)
def test_remdm(variant: str, t: float, s: float) -> None:
    denoiser = table(VOCAB)
    frame = one_step(denoiser, MDLM_, Remdm(variant=variant, eta=0.3), everywhere(), t, s)
    alpha_t, alpha_s = 1 - t, 1 - s
    most = min(1.0, (1 - alpha_s) / alpha_t)
    sigma = min(0.3, most) if variant == "cap" else 0.3 * most
    for z in range(V):
        if z == MASK:
            expected = masked_row(denoiser.x_theta()[z], (alpha_s - (1 - sigma) * alpha_t) / (1 - alpha_t))
        else:
            expected = (1 - sigma) * paper.unit(z, V) + sigma * paper.unit(MASK, V)
        assert_frequencies(frame.tokens[z * DRAWS : (z + 1) * DRAWS], expected)


def test_remdm_conf_remasks_by_the_probability_at_birth() -> None:
    """Two masks are filled in a first step; σ_l = softmax(−p(token when drawn))·σ_max in the second."""
    denoiser, t, r, s = table(VOCAB, spread=2.0), 1.0, 0.4, 0.3
    z = torch.full((60_000, 2), MASK)
    source = CounterRNG(0, range(len(z)))
    frames = list(walk(Model(denoiser, MDLM_), Remdm("conf"), (t, r, s, 0.0), z, source, rows_per_forward=len(z)))
    first, second = frames[0].tokens, frames[1].tokens
    x = denoiser.x_theta()[MASK]
    most = min(1.0, s / (1 - r))
    fill = ((1 - s) - (1 - r)) / r
    for a, b in itertools.product(range(V), repeat=2):
        rows = (first[:, 0] == a) & (first[:, 1] == b)
        psi = np.array([-np.inf if v == MASK else -x[v] for v in (a, b)])
        share = np.zeros(2) if np.isinf(psi).all() else np.exp(psi) / np.exp(psi).sum()
        for column, z_t in enumerate((a, b)):
            sigma = share[column] * most
            expected = (
                masked_row(x, fill) if z_t == MASK else (1 - sigma) * paper.unit(z_t, V) + sigma * paper.unit(MASK, V)
            )
            assert_frequencies(second[rows, column], expected)


def test_remdm_loop_stands_still_and_remasks_there_only() -> None:
    denoiser, eta = table(VOCAB), 0.1
    sampler = Remdm(variant="loop", eta=eta, t_on=0.6, t_off=0.2, alpha_on=0.75)
    z = torch.full((40_000, 1), MASK)
    grid = (*(1 - i / 10 for i in range(10)), 0.0)
    frames = list(walk(Model(denoiser, MDLM_), sampler, grid, z, CounterRNG(0, range(len(z))), rows_per_forward=len(z)))
    times = [frame.t for frame in frames] + [0.0]
    alphas = [(1 - u) / 0.4 * 0.75 if u > 0.6 + 1e-9 else 0.75 if u > 0.2 - 1e-9 else 1 - u / 0.2 * 0.25 for u in grid]
    np.testing.assert_allclose([1 - t for t in times], alphas, atol=1e-9)
    before = torch.full_like(z, MASK)
    for frame in frames:
        visible = before != MASK
        standing = abs(frame.t - frame.s) < 1e-12
        assert standing == (1 - 0.1 * frame.step > 0.2 - 1e-9 and frame.step > 4)
        share = float((frame.moved[visible] == 3).double().mean()) if visible.any() else 0.0
        if standing:
            count = int(visible.sum())
            assert abs(share - eta) < 5 * math.sqrt(eta * (1 - eta) / count)
            filled = float((frame.tokens[~visible] != MASK).double().mean())
            assert abs(filled - eta * 0.75 / 0.25) < 5 * math.sqrt(0.25 / int((~visible).sum()))
        else:
            assert share == 0.0
        # the marginal stays the schedule's all along
        assert abs(float((frame.tokens == MASK).double().mean()) - frame.s) < 5 * math.sqrt(0.25 / len(z))
        before = frame.tokens


@pytest.mark.parametrize(("t", "s"), PAIRS)
def test_informed(t: float, s: float) -> None:
    """Rows hold every id once: MDLM's step at the mask, and the lowest margin of the rest is redrawn."""
    denoiser = table(VOCAB)
    z = torch.arange(V).expand(DRAWS, V).contiguous()
    frame = one_step(denoiser, MDLM_, Informed(corrections=2), z, t, s)
    x = denoiser.x_theta()
    margins = {z: math.log(x[z, z]) - math.log(max(x[z, v] for v in ORDINARY if v != z)) for z in ORDINARY}
    doubtful = sorted(margins, key=margins.__getitem__)[:2]
    for z_t in range(V):
        if z_t == MASK:
            expected = masked_row(x[z_t], (t - s) / t)
        else:
            expected = x[z_t] if z_t in doubtful else paper.unit(z_t, V)
        assert_frequencies(frame.tokens[:, z_t], expected)


@pytest.mark.parametrize(("t", "s"), [(0.5, 0.45), (0.5, 0.2), (0.3, 0.0)])
def test_prism(t: float, s: float) -> None:
    """Quality by id: the lowest round(σ·n) of the n visible tokens are remasked, masks filled to match."""
    denoiser, quality = table(VOCAB), torch.tensor([0.3, -1.0, 9.0, 0.1, 2.0])
    z = torch.arange(V).repeat(5).expand(6_000, 5 * V).contiguous()  # 20 visible tokens a row
    head = lambda hidden: (hidden * quality).sum(-1)  # noqa: E731
    frame = one_step(denoiser, MDLM_, Prism(remask=0.3), z, t, s, quality=head)
    sigma = min(0.3, s / (1 - t))
    count = math.floor(sigma * 20 + 0.5)
    worst = sorted((p for p in range(5 * V) if p % V != MASK), key=lambda p: (float(quality[p % V]), p))[:count]
    fill = ((1 - s) - (1 - sigma) * (1 - t)) / t
    for position in range(5 * V):
        z_t = position % V
        if z_t == MASK:
            expected = masked_row(denoiser.x_theta()[z_t], fill)
        else:
            expected = paper.unit(MASK if position in worst else z_t, V)
        assert_frequencies(frame.tokens[:, position], expected)


@pytest.mark.parametrize("eta", [0.0, 1.0, 3.0])
@pytest.mark.parametrize(("t", "s"), [(0.8, 0.6), (0.8, 0.5), (0.5, 0.0)])
def test_p2(eta: float, t: float, s: float) -> None:
    """Joint frequencies of rows [m, m, a, b] over all candidates that the masks may draw."""
    denoiser = table(VOCAB)
    a, b = 0, 4
    z = torch.tensor([MASK, MASK, a, b]).expand(DRAWS, 4).contiguous()
    frame = one_step(denoiser, MDLM_, P2(eta=eta), z, t, s)
    x = denoiser.x_theta()
    outcome: dict[tuple[int, ...], float] = {}
    for y1, y2 in itertools.product(ORDINARY, repeat=2):
        candidate = [y1, y2, a, b]
        score = [math.log(x[MASK, y1]), math.log(x[MASK, y2]), eta * math.log(x[a, a]), eta * math.log(x[b, b])]
        worst = sorted(range(4), key=lambda i: (score[i], i))[: math.floor(4 * s)]
        row = tuple(MASK if i in worst else candidate[i] for i in range(4))
        outcome[row] = outcome.get(row, 0.0) + float(x[MASK, y1] * x[MASK, y2])
    codes = (frame.tokens * torch.tensor([V**3, V**2, V, 1])).sum(1)
    expected = np.zeros(V**4)
    for row, p in outcome.items():
        expected[row[0] * V**3 + row[1] * V**2 + row[2] * V + row[3]] = p
    assert_frequencies(codes, expected)
    if eta == 0.0:
        assert bool((frame.tokens[:, 2:] == torch.tensor([a, b])).all())


def test_threshold() -> None:
    """With 2 of 3 steps done, a third of the masks must be filled, and all masks that are sure enough."""
    denoiser = table(VOCAB)
    z = torch.full((DRAWS, 4), MASK)
    x = denoiser.x_theta()[MASK]
    surest = float(x.max())
    sure = one_step(denoiser, MDLM_, Threshold(surest - 1e-6), z, 0.9, 0.5)
    unsure = one_step(denoiser, MDLM_, Threshold(min(1.0, surest + 1e-6)), z, 0.9, 0.5)
    for column in range(4):
        assert_frequencies(sure.tokens[:, column], x)
        # nobody is sure: ⌈4 masks / 2 steps⌉ of equal confidence, the first ones
        assert_frequencies(unsure.tokens[:, column], x if column < 2 else paper.unit(MASK, V))


def test_gidd_correct() -> None:
    """A round: proposals at temperature τ; of those that differ, the likeliest one is taken."""
    process, denoiser, tau = PROCESSES["GIDD"], table(VOCAB), 0.8
    z = torch.tensor([0, 4]).expand(DRAWS, 2).contiguous()
    sampler = GiddCorrect(corrections=1, temperature=tau)
    frozen_walk = list(
        walk(Model(denoiser, process), sampler, (1e-9, 0.0), z, CounterRNG(3, range(DRAWS)), rows_per_forward=DRAWS)
    )
    before, after = frozen_walk[0].tokens, frozen_walk[1].tokens
    x = denoiser.x_theta(Filters(temperature=tau))
    for a, b in itertools.product(ORDINARY, repeat=2):
        rows = (before[:, 0] == a) & (before[:, 1] == b)
        if int(rows.sum()) < 2_000:
            continue
        expected = np.zeros(V * V)
        for y1, y2 in itertools.product(ORDINARY, repeat=2):
            score = [x[a, y1] if y1 != a else -1.0, x[b, y2] if y2 != b else -1.0]
            row = (a, b)
            if max(score) > 0:
                row = (y1, b) if score[0] >= score[1] else (a, y2)
            expected[row[0] * V + row[1]] += x[a, y1] * x[b, y2]
        assert_frequencies(after[rows, 0] * V + after[rows, 1], expected)


class Bigrams(Table):
    """A causal network that remembers one token: p(x_{i+1} | x_{≤ i}) is row x_i of the table."""

    class config:
        causal = True

    def cache(self, capacity: int) -> None:
        return None

    def hidden(
        self, z_t: Tensor, t: Tensor | None = None, documents: Tensor | None = None, cache: None = None
    ) -> Tensor:
        return super().hidden(z_t)


def test_ar() -> None:
    """Bigram counts of long rows against the table, filters included."""
    filters, known = Filters(top_p=0.9), table(VOCAB)
    network = Bigrams(known.head.weight[:V].T, VOCAB)
    z = torch.full((16, 640), MASK)
    z[:, 0] = torch.tensor(ORDINARY).repeat(4)
    model, rows = Model(network, Autoregressive(VOCAB)), TokenRows(z, frozen=z != MASK)
    (frame,) = walk(model, Ar(), (1.0, 0.0), rows, CounterRNG(0, range(16)), filters=filters, record=False)
    before, after = frame.tokens[:, :-1], frame.tokens[:, 1:]
    for token in ORDINARY:
        assert_frequencies(after[before == token], known.x_theta(filters)[token])
