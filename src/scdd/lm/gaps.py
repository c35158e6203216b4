"""Gaps of unknown length: [MASK:4-12] is filled at several lengths, and the fillings are ranked by the model's own bound."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch

from scdd.core.rng import CounterRNG, derive_seed
from scdd.lm.repair import diffusion_process
from scdd.lm.results import Sample, Tried
from scdd.lm.rows import Gaps, Row
from scdd.lm.run import Engine, Run, windows_of
from scdd.objectives.times import TimeSampler, nelbo_densities
from scdd.ops.elbo import elbo
from scdd.samplers.plan import SamplingPlan

LOOKS = 16
"""Noise levels at which a filling is looked at."""
LENGTH_CREDIT = 0.9
"""The prior of lengths: nats a token that a filling is credited with for being e times as long. Inside a gap every token has less
to go by the longer the gap is, and without a credit the shortest filling wins too often. With 0.9 the chosen lengths are
right on average (36 gaps of 3 to 10 tokens in training articles, the bundled model of then; with today's 40 such gaps, offered
1 to 14, were filled 1.1 ± 0.8 tokens too long on average)."""

NEAR = 254
"""Tokens of a text among which lengths are compared: more would cost in proportion, for every length and step."""


def start(engine: Engine, gaps: Gaps, num: int, plan: SamplingPlan) -> Run:
    """`num` fillings for every choice of lengths; where there is more than one choice, the best `num` of all are taken."""
    tries = gaps.tries
    room = NEAR if len(tries) > 1 else None
    run = Run(engine, [gaps.row(lengths) for lengths in tries for _ in range(num)], plan, room=room)
    if len(tries) > 1:
        run.choose = lambda samples: best(engine, gaps, samples, num)
    return run


def together(runs: Sequence[Run]) -> Run:
    """One run of several texts, each with its own numbering and choice: a text's fillings are those it would have alone."""
    if len(runs) == 1:
        return runs[0]
    whole, counts = Run.joined(runs), [len(run.starts) for run in runs]

    def choose(samples: tuple[Sample, ...]) -> tuple[Sample, ...]:
        rest = iter(samples)
        parts = [run.choose(tuple(next(rest) for _ in range(n))) for run, n in zip(runs, counts, strict=True)]
        return tuple(sample for part in parts for sample in part)

    whole.choose = choose
    return whole


def best(engine: Engine, gaps: Gaps, samples: Sequence[Sample], num: int) -> tuple[Sample, ...]:
    """The `num` fillings with the lowest bound a token, less the credit of their length; repeated texts come last."""
    each = len(samples) // len(gaps.tries)
    lengths = [lengths for lengths in gaps.tries for _ in range(each)]
    tried = []
    for sample, sizes in zip(samples, lengths, strict=True):
        row = Row(sample.tokens, gaps.row(sizes).frozen)
        nats = bound(engine, row, sample.seed) / sum(sizes)
        tried.append(Tried(sizes, sample.index, nats, nats - LENGTH_CREDIT * math.log(sum(sizes))))
    ranked = sorted(range(len(tried)), key=lambda i: (tried[i].score, i))
    first = {samples[i].tokens: i for i in reversed(ranked)}  # of equal ones the first
    ranked.sort(key=lambda i: first[samples[i].tokens] != i)  # the others come last
    shown = tuple(tried[i] for i in ranked)
    return tuple(replace(samples[i], tried=shown) for i in ranked[:num])


@torch.no_grad()
def bound(engine: Engine, row: Row, seed: int = 0) -> float:
    """An estimate of the NELBO of a text's free tokens given the frozen ones, in nats: `eq:contLoss` over the free ones alone.

    Times are spread evenly and noise is drawn by position, so that two fillings of one gap see the same noise: what
    differs between them is the text. In long texts each window counts the tokens that it is the first to show.
    """
    process = diffusion_process(engine)
    if engine.tokenizer.mask_id in row.tokens:  # a walk without a final step may leave some
        return math.inf
    times = TimeSampler(nelbo_densities(process).alone)
    at = times.at((torch.arange(LOOKS, device=engine.device, dtype=torch.float64) + 0.5) / LOOKS)
    total = 0.0
    for part in windows_of(row.frozen, min(engine.room, NEAR)):
        free = [not row.frozen[i] and i >= part.fresh for i in range(part.start, part.stop)]
        if not any(free):
            continue
        tokens = engine.framed(row.tokens[part.start : part.stop])
        x = torch.tensor(tokens, device=engine.device).expand(LOOKS, -1)
        counted = torch.tensor([False, *free, *[False] * (len(tokens) - 1 - len(free))], device=engine.device)
        noise = CounterRNG(derive_seed(seed, "gaps"), range(LOOKS), engine.device)
        z_t = torch.where(counted, process.corrupt(x, at.t, noise), x)
        hidden = engine.model.denoiser.hidden(z_t, at.t, None).flatten(0, 1)
        coefficients = process.elbo_coefficients(x, z_t, at.t, None).flatten(x.shape)
        _, losses = elbo(hidden, engine.model.denoiser.head, x.flatten(), z_t.flatten(), coefficients)
        per_look = losses.view(x.shape).double().where(counted, 0.0).sum(1)
        total += float((per_look * at.weight).mean())
    return total
