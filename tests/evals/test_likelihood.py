"""The NELBO that is reported: exact where the answer is known, unbiased elsewhere, with error bars that mean it."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from scdd.core import UserError
from scdd.evals.measure.likelihood import (
    POSITIONS,
    POSITIONS_CPU,
    NelboEstimator,
    RowNats,
    batches,
    combined,
    dropped,
    likelihood,
)
from scdd.objectives.elbo import nelbo
from scdd.processes.base import Process
from scdd.processes.gidd import GIDD
from scdd.processes.scdd import SCDD
from scdd.schedules.peaked import Peaked
from tests import paper
from tests.evals.worlds import PROCESSES, VOCAB, enumerated, truth, uniform
from tests.samplers.tables import table

ROWS = [[0, 1, 2, 3, 1], [2, 2, 0, 1], [3, 0, 1, 1, 2, 0]]


def measured(process: Process, denoiser: object, rows: list[list[int]], how: NelboEstimator) -> SimpleNamespace:
    return SimpleNamespace(**combined(likelihood(denoiser, process, rows, how, batch_size=256)))  # type: ignore[arg-type]


@pytest.mark.parametrize("steps", [None, 2, 10])
@pytest.mark.parametrize("kind", PROCESSES)
def test_a_perfect_denoiser_has_none(kind: str, steps: int | None) -> None:
    x = torch.tensor([0, 1, 2, 3, 1, 0])
    rows = [x.tolist(), x[:4].tolist()]
    found = measured(PROCESSES[kind], truth(x, VOCAB), rows, NelboEstimator(steps, 16))
    assert found.nats == pytest.approx(0.0, abs=1e-5)
    assert found.error == pytest.approx(0.0, abs=1e-5)


@pytest.mark.parametrize("steps", [None, 3, 50])
@pytest.mark.parametrize("kind", PROCESSES)
def test_a_uniform_denoiser_costs_log_K(kind: str, steps: int | None) -> None:
    """With x_θ = u the reverse is the true one of data drawn from u, so the bound is tight: KL(δ_x ‖ u) = log K.

    p_θ(z_s | z_t) = q(z_t | z_s)·q_s(z_s | u)/q_t(z_t | u), and q_s(· | u) is the forward chain's own marginal when it
    starts from u: the reverse chain is that chain backwards, whatever the grid, and all that is lost is log δ_x/u.
    """
    process = PROCESSES[kind]
    assert enumerated(process, uniform(VOCAB), 1, steps) == pytest.approx(math.log(VOCAB.K), rel=1e-9)
    found = measured(process, uniform(VOCAB), ROWS * 40, NelboEstimator(steps, 16))
    assert abs(found.nats - math.log(VOCAB.K)) < 4 * found.error
    assert found.error < 0.05 * found.nats


@pytest.mark.parametrize(("kind", "steps"), [("scdd", None), ("scdd", 8), ("gidd", None), ("mdlm", 8)])
def test_error_bars_mean_what_they_say(kind: str, steps: int | None) -> None:
    """Repeated runs: no bias, the truth is within 3 errors, and (estimate − truth)/error has mean square 1."""
    process, denoiser = PROCESSES[kind], table(VOCAB, 1)
    one = {x: enumerated(process, denoiser, x, steps) for x in range(VOCAB.K)}
    rows = ROWS * 40
    expected = sum(one[x] for row in rows for x in row) / sum(map(len, rows))
    runs = [measured(process, denoiser, rows, NelboEstimator(steps, 8, seed=seed)) for seed in range(60)]
    gaps = np.array([found.nats - expected for found in runs])
    z = gaps / np.array([found.error for found in runs])
    assert abs(gaps.mean()) < 3.5 * gaps.std(ddof=1) / math.sqrt(60), "biased"
    assert np.mean(np.abs(z) < 3) > 0.95
    assert 0.85 <= np.mean(np.abs(z) < 2) <= 1.0
    assert 0.6 < np.mean(z**2) < 1.7, "the error is not the spread of the estimates"


def test_spread_contains_the_choice_of_the_text() -> None:
    """A row of one token and a row of another differ by far more than Monte Carlo does."""
    process = PROCESSES["scdd"]
    found = measured(process, table(VOCAB, 2, spread=3.0), [[0] * 30, [1] * 30, [2] * 30], NelboEstimator(None, 32))
    assert found.spread > 3 * found.error


def test_numbers_follow_from_seed_and_index_alone() -> None:
    """Ranks and batches: rows 2, 3, … alone are the same as in the whole."""
    process, denoiser = PROCESSES["scdd"], table(VOCAB)
    rows = [[0, 1, 2, 3]] * 5
    whole = likelihood(denoiser, process, rows, batch_size=5)
    parts = [
        *likelihood(denoiser, process, rows[:2], batch_size=1),
        *likelihood(denoiser, process, rows[2:], indices=range(2, 5), batch_size=2),
    ]
    for a, b in zip(whole, parts, strict=True):
        assert a.nats == pytest.approx(b.nats, rel=1e-6)
    assert whole[0].nats != whole[1].nats, "rows must not share their noise"


def test_padding_changes_nothing() -> None:
    process, denoiser = PROCESSES["scdd"], table(VOCAB)
    alone = likelihood(denoiser, process, [[0, 1, 2]], batch_size=1)
    beside = likelihood(denoiser, process, [[0, 1, 2], [3] * 9], batch_size=2)
    # the noise of a position depends on the row's length only through its place in the batch's numbers
    assert alone[0].tokens == beside[0].tokens == 3
    assert alone[0].nats == pytest.approx(beside[0].nats, rel=1e-6)


@pytest.mark.parametrize(("name", "positions"), [("cpu", POSITIONS_CPU), ("cuda", POSITIONS)])
def test_batches_hold_every_row_once_and_fill_the_device(name: str, positions: int) -> None:
    lengths = sorted(int(n) for n in np.random.default_rng(0).integers(1, positions // 45, 3000))
    device = torch.device(name)
    for size in (None, 7):
        parts = list(batches(lengths, device, size))
        assert [i for part in parts for i in range(part.start, part.stop)] == list(range(len(lengths)))
    assert all(part.stop - part.start == 7 for part in parts[:-1])
    read = [(part.stop - part.start) * max(lengths[part]) for part in batches(lengths, device)]
    assert max(read) <= positions
    assert min(read[:-1]) > 0.9 * positions
    longer = [5, positions + 1, 5]
    assert list(batches(longer, device)) == [slice(0, 1), slice(1, 2), slice(2, 3)], "a row is never cut"
    assert list(batches([], device)) == []


@pytest.mark.parametrize("kind", ["scdd", "mdlm"])
def test_dropped_constants_are_the_papers(kind: str) -> None:
    """KL − dropped is `eq:loss_zt` as printed, for every x, z_t and a few steps; but that SCDD's code has γ inside its logarithms."""
    process, denoiser = PROCESSES[kind], table(VOCAB, 3)
    V, m = VOCAB.size, VOCAB.mask_id
    logits = denoiser.head.weight[:V].T.double()
    for s, t in ((0.25, 0.5), (0.0, 0.125), (0.9, 0.999)):
        levels = [tuple(paper.Real(float(v)) for v in (process.levels(u).gamma, process.levels(u).rho)) for u in (s, t)]
        for x in range(VOCAB.K):
            for z in range(V):
                if float(process.likelihood(torch.tensor(z), torch.tensor(float(z == x)), t)) == 0:
                    continue
                one, here = torch.tensor([[x]]), torch.tensor([[z]])
                times = (torch.tensor([s], dtype=torch.float64), torch.tensor([t], dtype=torch.float64))
                exact = nelbo(process, logits[here], one, here, times[1], times[0])
                ours = float(exact - dropped(process, one, here, *times))
                if kind == "scdd":
                    move = process.transition(here, torch.tensor([[float(z == x)]]).double(), *times)
                    hidden = float(move.mask + move.keep * (z == m))  # P(z_s = m | z_t, x)
                    gammas = [math.log(float(process.levels(u).gamma)) for u in (s, t)]
                    ours += (1 - hidden) * gammas[0] - (z != m) * gammas[1]
                x_theta = denoiser.x_theta()[z].astype(paper.Real)
                assert ours == pytest.approx(float(paper.cross_entropy(x, x_theta, z, *levels, m)), rel=1e-6, abs=1e-9)  # type: ignore[arg-type]


def test_per_byte_and_perplexity() -> None:
    found = combined([RowNats((9.0, 11.0), 5), RowNats((10.0, 10.0), 5)], bytes=40)
    assert found["ppl"] == pytest.approx(math.exp(2.0))
    assert found["bits_per_byte"] == pytest.approx(2.0 * 10 / 40 / math.log(2))
    assert found["error"] == pytest.approx(0.1), "the spread of the two halves"
    assert found["ppl_error"] == pytest.approx(0.1 * math.exp(2.0))


def test_refusals() -> None:
    with pytest.raises(UserError, match="even number"):
        NelboEstimator(looks=3)
    with pytest.raises(UserError, match="ours or authors"):
        NelboEstimator(None, 8, "mine")  # type: ignore[arg-type]
    with pytest.raises(UserError, match="SCDD's and MDLM's"):
        likelihood(uniform(VOCAB), GIDD(VOCAB, Peaked(0.2)), [[0]], NelboEstimator(10, 2, "authors"))
    with pytest.raises(UserError, match="no text"):
        combined([])
    with pytest.raises(UserError, match="no token"):
        likelihood(uniform(VOCAB), SCDD(VOCAB, Peaked(0.2)), [[]])


def test_old_names_of_the_conventions_still_work() -> None:
    old = NelboEstimator(10, 8, "exact")  # type: ignore[arg-type]
    assert old == NelboEstimator(10, 8, "ours")
    assert old.settled()["convention"] == "exact", "measurements are found by this name"
    assert NelboEstimator(None, 8, "reference") == NelboEstimator(1000, 8, "authors")  # type: ignore[arg-type]
