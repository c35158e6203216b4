"""The authors' convention is what their code does (`tests.authors`, by brute force), and ours is not it."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from scdd.core import Vocab
from scdd.core.errors import OptionError
from scdd.core.rng import CounterRNG
from scdd.evals.measure.likelihood import NelboEstimator, _noised_at, authors_times, combined, dropped, likelihood
from scdd.evals.measure.recovery import recover, token_scores
from scdd.evals.measure.specs import RecoverySpec, Repair
from scdd.evals.measure.walk import repaired
from scdd.objectives.elbo import nelbo
from scdd.ops.common import Filters
from scdd.ops.head import head_stats, redraw
from scdd.ops.head.reference import filtered
from scdd.processes.base import Process
from scdd.processes.mdlm import MDLM
from scdd.processes.scdd import SCDD
from scdd.samplers.base import PASS, Context, Model, Tokens
from scdd.samplers.loop import sample_loop
from scdd.samplers.options import SamplingOptions
from scdd.samplers.plan import Walk, make_plan
from scdd.samplers.step import TokenRows
from scdd.schedules.masked import Masked
from scdd.schedules.peaked import Peaked
from tests import authors
from tests.evals.worlds import free_rows
from tests.samplers.tables import Table, assert_frequencies, table

VOCAB = Vocab(7, 3)
GPT2 = Vocab(50258, 50257)
P_U = (0.1, 0.2)
RECORDED = json.loads((Path(__file__).parent / "authors.json").read_text(encoding="utf-8"))
# what the paper's Val PPL adds to a perfect model of GPT-2's vocabulary
CONSTANTS = {float(p_u): value for p_u, value in RECORDED["constants"].items()}


def logits_of(denoiser: Table) -> torch.Tensor:
    """[V, V] float64: a row for each z_t."""
    return denoiser.head.weight[: denoiser.vocab.size].T.double()


def test_recorded_cases() -> None:
    """The figures in authors.json: nuclei, laws of one step and of a recovered token, by the package alone."""
    vocab, x_theta = Vocab(5, 2), torch.tensor(RECORDED["x_theta"], dtype=torch.float64)
    cut = filtered(x_theta.log(), Filters(0.8, nucleus="below")).exp()
    assert torch.allclose(cut, torch.tensor(RECORDED["nucleus"], dtype=torch.float64), rtol=0, atol=1e-12)
    denoiser, laws = Table(x_theta.log().nan_to_num(neginf=-50.0), vocab), 0
    for case in RECORDED["steps"] + RECORDED["recovery"]:
        process, N = SCDD(vocab, Peaked(case["p_u"])), case["steps"]
        plan = make_plan(SamplingOptions(), {"steps": N, "convention": "authors"})
        walk = Walk.of(Model(denoiser, process), plan, torch.ones((1, 1), dtype=torch.bool))
        at = walk.step(case.get("step", N - 1))
        found = process.posterior(torch.tensor(case["z"]), cut[case["z"]], at.at_s, at.at_t)
        if "step" not in case:  # then every token gives way to its argmax
            found = torch.zeros(5, dtype=torch.float64).index_add_(0, x_theta.argmax(1), found)
        assert torch.allclose(found, torch.tensor(case["law"], dtype=torch.float64), rtol=0, atol=1e-12)
        laws += 1
    assert laws == 48


@pytest.mark.parametrize("p_u", P_U)
def test_constants_of_the_reported_perplexity(p_u: float) -> None:
    """At x_θ = x the KL is 0, and what is reported is what was dropped: recorded, by brute force and by the package."""
    assert authors.perfect(p_u, GPT2.K) == pytest.approx(CONSTANTS[p_u], abs=1e-9)
    process = SCDD(GPT2, Peaked(p_u))
    times = authors_times((torch.arange(999, dtype=torch.float64) + 0.5) / 999, 1000)
    assert times.s is not None
    assert torch.allclose(torch.stack([times.s, times.t], 1), torch.tensor(authors.steps_drawn()).double(), atol=1e-12)
    z = torch.tensor([5, 7, GPT2.mask_id]).expand(999, 3)
    constants = dropped(process, torch.full((999, 3), 5), z, times.s, times.t)
    at = process.levels(times.t)
    noise = at.gamma * at.one_minus_rho / GPT2.K
    chance = torch.stack([at.gamma * at.rho + noise, (GPT2.K - 1) * noise, at.one_minus_gamma], dim=1)
    assert float(-(chance * constants).sum(1).mean() * 1000) == pytest.approx(CONSTANTS[p_u], abs=1e-6)
    # without γ, as the equation is printed, the sums are others, by what telescopes
    printed = {0.1: 0.09666429, 0.2: 0.20285328}[p_u]
    before, after = (process.levels(time).gamma for time in (times.s, times.t))
    gammas = float((after * after.log() - before * before.log()).mean() * 1000)
    assert CONSTANTS[p_u] - gammas == pytest.approx(printed, abs=1e-7)


@pytest.mark.parametrize("p_u", P_U)
def test_reported_perplexity_on_fixed_logits(p_u: float) -> None:
    """Every step of the 999 and every z_t, weighed: the exact mean, to 1e-6; and the estimator's within its error."""
    process, denoiser, x = SCDD(VOCAB, Peaked(p_u)), table(VOCAB, 1), 2
    x_theta = denoiser.x_theta()
    V, m = VOCAB.size, VOCAB.mask_id
    expected = authors.mean_reported(x_theta, [x], p_u, m)
    times = authors_times((torch.arange(999, dtype=torch.float64) + 0.5) / 999, 1000)
    assert times.s is not None
    one, z = torch.full((999, V), x), torch.arange(V).expand(999, V)
    losses = nelbo(process, logits_of(denoiser).expand(999, V, V), one, z, times.t, times.s)
    losses = losses - dropped(process, one, z, times.s, times.t)
    mean = (process.marginal(torch.full((999,), x), times.t) * losses).sum(1).mean() * 1000
    assert float(mean) == pytest.approx(expected, abs=1e-6)
    found = combined(likelihood(denoiser, process, [[x] * 40] * 40, NelboEstimator(1000, 8, "authors"), batch_size=40))  # type: ignore[arg-type]
    assert abs(found["nats"] - expected) < 4 * found["error"]


def test_mdlms_masks_come_early() -> None:
    """Their MDLM masks at 0.999·t and weighs as if at t: every step of the 999, weighed, to 1e-6; and the estimator's times are these."""
    denoiser, x = table(VOCAB, 2), 2
    m, estimator = VOCAB.mask_id, NelboEstimator(1000, 16, "authors")
    drawn: list[torch.Tensor] = []

    class Watched(MDLM):
        def corrupt(self, x: torch.Tensor, t: torch.Tensor, source: CounterRNG) -> torch.Tensor:
            drawn.append(t)
            return super().corrupt(x, t, source)

    process = Watched(VOCAB, Masked())
    expected = authors.mean_reported_masked(denoiser.x_theta()[m], x)
    times = authors_times((torch.arange(999, dtype=torch.float64) + 0.5) / 999, 1000)
    assert times.s is not None
    one, z = torch.full((999, 2), x), torch.tensor([x, m]).expand(999, 2)  # visible, or masked
    losses = nelbo(process, logits_of(denoiser)[[x, m]].expand(999, 2, -1), one, z, times.t, times.s)
    losses = losses - dropped(process, one, z, times.s, times.t)
    noised = _noised_at(process, times.t, estimator)
    mean = (process.marginal(torch.full((999,), x), noised)[:, [x, m]] * losses).sum(1).mean() * 1000
    assert float(mean) == pytest.approx(expected, abs=1e-6)
    found = combined(likelihood(denoiser, process, [[x] * 50] * 60, estimator, batch_size=60))  # type: ignore[arg-type]
    assert abs(found["nats"] - expected) < 4 * found["error"] < 0.2 * expected
    steps = torch.cat(drawn)
    assert len(steps) == 16 * 60
    assert float((steps[:, None] - noised).abs().amin(1).max()) < 1e-12, "drawn where the sum above has them"


@pytest.mark.parametrize("top_p", [0.3, 0.5, 0.75, 0.9, 0.999])
def test_their_nucleus(top_p: float) -> None:
    """The reference and the fast path, against the definition; the crossing token goes, and the best one never does."""
    rng = np.random.default_rng(0)
    vocab = Vocab(70, 69)
    scores = torch.tensor(rng.normal(size=(24, 70)) * rng.uniform(0.2, 5, size=(24, 1)))
    scores[:, vocab.mask_id] = -torch.inf
    p = torch.softmax(scores, -1).numpy()
    expected = np.stack([authors.nucleus(row, top_p) for row in p])
    filters = Filters(top_p, nucleus="below")
    assert torch.allclose(filtered(scores, filters).exp(), torch.tensor(expected), atol=1e-12)
    denoiser = Table(scores[:, torch.arange(70)].new_zeros(70, 70), vocab)
    weight = torch.zeros_like(denoiser.head.weight)
    weight[:70, :24] = scores.T.nan_to_num(neginf=0.0).float()
    head = type(denoiser.head)(weight=weight, vocab=vocab)
    hidden = torch.nn.functional.one_hot(torch.arange(24), 70).float()
    for token in (int(p[0].argmax()), 4):
        stats = head_stats(hidden, head, torch.full((24,), token), filters)
        assert torch.allclose(stats.log_p_z.exp().double(), torch.tensor(expected[:, token]), atol=1e-5)
    u = torch.tensor(rng.uniform(size=24))
    every = torch.ones(24, dtype=torch.bool)
    plain = redraw(hidden, head, every, u, filters)
    truth = redraw(hidden, head, every, u, filters, impl="reference")
    assert plain.tokens.tolist() == truth.tokens.tolist()


def test_ties_stay_or_go_together() -> None:
    scores = torch.tensor([[0.4, 0.2, 0.2, 0.2], [0.25, 0.25, 0.25, 0.25], [0.5, 0.4, 0.05, 0.05]]).double().log()
    kept = filtered(scores, Filters(0.7, nucleus="below")).isfinite()
    assert kept.tolist() == [[True, False, False, False], [True] * 4, [True, False, False, False]]


@pytest.mark.parametrize("p_u", P_U)
def test_one_step_with_their_nucleus(p_u: float) -> None:
    """p_θ(z_s | z_t) at the loop's own times: the law of the definition, to 1e-12."""
    process, denoiser, seen = SCDD(VOCAB, Peaked(p_u)), table(VOCAB, 3), []

    def watch(z: torch.Tensor, ctx: Context) -> Tokens:
        return Tokens(z, torch.full(z.shape, torch.nan))

    plan = make_plan(
        SamplingOptions(), {"steps": 8, "top_p": 0.8, "convention": "authors", "last_pass": watch, "record": True}
    )
    walk = Walk.of(Model(denoiser, process), plan, torch.ones((1, 2), dtype=torch.bool))
    steps = [walk.step(i) for i in range(len(walk))]
    assert [step.t for step in steps] == pytest.approx([*authors.grid(8)], abs=1e-15)
    assert steps[-1].phase == PASS
    z = torch.arange(VOCAB.size)
    x_theta = filtered(logits_of(denoiser).index_fill(1, torch.tensor([VOCAB.mask_id]), -torch.inf), plan.filters).exp()
    for step in steps[:-1]:
        found = process.posterior(z, x_theta, step.at_s, step.at_t)
        for v in range(VOCAB.size):
            cut = authors.nucleus(denoiser.x_theta()[v], 0.8)
            law = authors.step(cut, v, step.t, (1 - authors.END) / 8, p_u, VOCAB.mask_id)
            assert np.abs(found[v].numpy() - law).max() < 1e-12
            seen.append(float(law[v]))
    assert len({round(value, 6) for value in seen}) > 20, "or nothing has been tried"


@pytest.mark.parametrize("p_u", P_U)
def test_recovery_is_their_procedure(p_u: float) -> None:
    """One step at the last time but one, then the argmax of a second evaluation everywhere: the law, token by token."""
    process, denoiser = SCDD(VOCAB, Peaked(p_u)), table(VOCAB, 5, spread=2.0)
    repair = Repair(16, 1, 0.8, convention="authors")
    assert repair.evaluations == 2
    tokens = [v for v in range(VOCAB.size) if v != VOCAB.mask_id]
    z = torch.tensor(tokens).repeat_interleave(3000).expand(1, -1)
    done = torch.tensor(repaired(Model(denoiser, process), repair, free_rows(z))).view(len(tokens), -1)
    for place, v in enumerate(tokens):
        law = authors.recovered(denoiser.x_theta(), v, 16, 0.8, p_u, VOCAB.mask_id)
        assert_frequencies(done[place], law)
    argmax = denoiser.x_theta().argmax(1)
    assert set(done.unique().tolist()) <= set(argmax.tolist()), "nothing stands that is no argmax"


def test_recovery_counts_two_evaluations_and_touches_untouched_tokens() -> None:
    """On a network whose argmax is never what stands there, everything is rewritten: damage 1, which ours does not have."""
    process = SCDD(VOCAB, Peaked(0.2))
    logits = torch.full((7, 7), -1.0)
    for v in range(7):
        logits[v, v] = 3.0
        logits[v, (v + 1) % 7 if (v + 1) % 7 != VOCAB.mask_id else (v + 2) % 7] = 3.1
    denoiser = Table(logits, VOCAB)
    x = VOCAB.token(torch.arange(12) % VOCAB.K).expand(30, -1)
    theirs = token_scores(
        recover(Model(denoiser, process), free_rows(x), RecoverySpec(2, Repair(128, convention="authors"))), False
    )
    calls, ours = denoiser.calls, token_scores(recover(Model(denoiser, process), free_rows(x), RecoverySpec(2)), False)
    assert theirs["damage"]["value"] > 0.98
    assert ours["damage"]["value"] < 0.1
    assert calls == 2 * (denoiser.calls - calls)


def frames(process: Process, denoiser: Table, seed: int = 0, **changes: object) -> list[torch.Tensor]:
    plan = make_plan(SamplingOptions(steps=6), {**changes, "record": True})
    rows = TokenRows(torch.full((2, 9), VOCAB.mask_id))
    drawn = list(sample_loop(Model(denoiser, process), plan, rows, CounterRNG(seed, range(2))))
    assert drawn[-1].nfe.tolist() == [len(drawn)] * 2
    assert drawn[-1].step == drawn[-1].steps == len(drawn)
    return [frame.tokens for frame in drawn]


def test_a_walk_ends_with_their_argmax_and_it_is_counted() -> None:
    process, denoiser = SCDD(VOCAB, Peaked(0.2)), table(VOCAB, 5)
    argmax = torch.tensor(denoiser.x_theta().argmax(1))
    walked = frames(process, denoiser, convention="authors", top_p=0.9)
    assert len(walked) == 7, "six steps and the pass"
    assert torch.equal(walked[-1], argmax[walked[-2]])
    assert len(frames(process, denoiser)) == 6
    alone = frames(process, denoiser, last_pass="argmax")
    assert torch.equal(alone[-1], argmax[alone[-2]])
    alone = frames(process, denoiser, convention="authors", last_pass="none")
    assert len(alone) == 6
    assert not (alone[-1] == VOCAB.mask_id).any(), "without the pass the last step goes to clean text"


@pytest.mark.parametrize("sampler", ["ancestral", "remdm-cap"])
def test_the_last_pass_of_masked_models_fills_masks_alone(sampler: str) -> None:
    """In MDLM's code and in ReMDM's, x_θ is the token itself wherever one is visible, in the last pass too."""
    process, denoiser = MDLM(VOCAB, Masked()), table(VOCAB, 5)
    argmax = torch.tensor(denoiser.x_theta().argmax(1))
    for seed in range(10):
        *_, before, after = walked = frames(process, denoiser, seed, convention="authors", sampler=sampler)
        assert len(walked) == 7
        masked = before == VOCAB.mask_id
        assert torch.equal(after, torch.where(masked, argmax[VOCAB.mask_id], before))
        assert bool((argmax[before[~masked]] != before[~masked]).any()), "or nothing has been tried"
    alone = frames(process, denoiser, last_pass="argmax", final="none", steps=3)
    assert bool((alone[-2] == VOCAB.mask_id).any())
    assert torch.equal(alone[-1], torch.where(alone[-2] == VOCAB.mask_id, argmax[VOCAB.mask_id], alone[-2]))


def test_rules_of_ones_own() -> None:
    """A nucleus by a threshold of its own (min-p), and a pass that reads the logits."""
    process, denoiser = SCDD(VOCAB, Peaked(0.2)), table(VOCAB, 6)
    shapes = []

    def min_p(scores: torch.Tensor, top_p: float) -> torch.Tensor:
        return scores.amax(-1) + math.log(1 - top_p)

    def second_best(z: torch.Tensor, ctx: Context) -> Tokens:
        shapes.append(ctx.prediction.logits.shape)
        tokens = ctx.prediction.logits.topk(2, -1).indices[..., 1]
        return Tokens(tokens, torch.full(z.shape, torch.nan))

    walked = frames(process, denoiser, nucleus=min_p, top_p=0.6, last_pass=second_best)
    second = torch.tensor(denoiser.x_theta()).topk(2, -1).indices[:, 1]
    assert torch.equal(walked[-1], second[walked[-2]])
    assert shapes == [(2, 9, 7)]
    p = torch.tensor(denoiser.x_theta())
    expected = torch.where(p >= 0.4 * p.amax(1, keepdim=True), p, 0.0)
    kept = filtered(
        logits_of(denoiser).index_fill(1, torch.tensor([VOCAB.mask_id]), -torch.inf), Filters(0.6, nucleus=min_p)
    )
    assert torch.allclose(kept.exp(), expected / expected.sum(1, keepdim=True), atol=1e-12)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"last_pass": "argmax", "tolerance": 0.1}, "before it"),
        ({"convention": "authors", "tolerance": 0.1}, "before it"),
        ({"last_pass": "argmax", "sampler": "gidd-correct"}, "by itself"),
        ({"convention": "mine"}, "ours, authors"),
        ({"nucleus": "mine"}, "crossing, below"),
        ({"last_pass": "mine"}, "none, argmax"),
    ],
)
def test_refusals(changes: dict[str, object], reason: str) -> None:
    with pytest.raises(OptionError, match=reason):
        make_plan(SamplingOptions(), changes)
