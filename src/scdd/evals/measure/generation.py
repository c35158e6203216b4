"""Samples, drawn once for all who ask: their diversity, generative perplexity, and what their corrections are worth.

A correction rate says little by itself: a perfect denoiser corrects too, since the process draws noise and takes it back. So
the measured rate always stands beside the intrinsic one, and the excess is what the model adds. Whether corrections help is
asked of the reference LM: the text as each position first had it, against the finished one, against a walk that may not
correct (`tab:correction_rate`, Figures `fig:ablation1-1`, `fig:ablation1-2`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from scdd.evals.measure import stats
from scdd.evals.measure.diversity import diversity, in_words
from scdd.evals.measure.model import EvalModel
from scdd.evals.measure.reference_lm import ReferenceLM, TextNats, columns, gen_ppl, scored, short_ppl
from scdd.evals.measure.specs import SamplingSpec
from scdd.evals.measure.store import MeasureContext, Measurement, shared
from scdd.evals.measure.walk import StartRows, WalkedRow, filters_used, sampling_plan, settled, text_length, walk
from scdd.processes.autoregressive import Autoregressive
from scdd.processes.base import Process
from scdd.samplers.base import Grid
from scdd.samplers.intrinsic import intrinsic

SHOWN = 4  # texts kept in a measurement for the report


def usual_num(device: str) -> int:
    """How many samples are drawn on such a device when nobody says how many."""
    return 1024 if device == "cuda" else 64


def draw(context: MeasureContext, model: EvalModel, spec: SamplingSpec, follow: bool = True) -> list[WalkedRow]:
    """All samples of `spec` in their frames, complete on every rank."""
    plan, mask = sampling_plan(model, spec, context.samples_at_once), model.lm.tokenizer.mask_id
    row = model.engine.framed([mask] * text_length(model.lm, spec))

    def walked(own: Sequence[int], mine: range) -> list[WalkedRow]:
        z = torch.tensor([row], device=model.lm.device).expand(len(mine), -1).clone()
        start = StartRows(z, z != mask, mine)
        return walk(model.engine.model, plan, start, context.watch, follow)

    return shared(range(spec.num), walked, context.world)


def ended(tokens: Sequence[int], eos_id: int) -> list[int]:
    """The tokens up to the first end of text."""
    row = list(tokens)
    return row[: row.index(eos_id)] if eos_id in row else row


def rates(moves: Tensor, length: int, process: Process | Autoregressive, grid: Grid) -> dict[str, Any]:
    """Correction rate C/L and C/(L·N) with errors over samples, beside the intrinsic rate and the excess over it.

    `moves` [N, S, 3] as `walk` counts them. Remaskings are reported too: GIDD's corrections go through the mask as well.
    """
    corrected = moves[..., 1].double()
    rate = stats.mean((corrected.sum(1) / length).tolist())
    remasked = stats.mean((moves[..., 2].double().sum(1) / length).tolist())
    steps = moves.shape[1]
    measured = {
        "rate": rate.value,
        "rate_error": rate.error,
        "rate_per_step": rate.value / steps,
        "rate_per_step_error": rate.error / steps,
        "remasked": remasked.value,
        "remasked_error": remasked.error,
        "steps": steps,
        "samples": rate.units,
        "cumulative": cumulative(corrected.mean(0) / length),
    }
    if isinstance(process, Autoregressive):
        return measured
    own = intrinsic(process, grid)
    return {
        **measured,
        "intrinsic": own.corrections,
        "excess": rate.value - own.corrections,
        "intrinsic_per_step": own.corrections / (len(grid) - 1),
        "intrinsic_remasked": own.remasked,
        "intrinsic_cumulative": cumulative(torch.tensor(own.per_step, dtype=torch.float64)),
    }


def cumulative(per_step: Tensor) -> list[float]:
    """The fraction of all corrections that is done by each step, Figure `fig:ablation1-2`."""
    total = float(per_step.sum())
    return (per_step.cumsum(0) / total).tolist() if total > 0 else [0.0] * len(per_step)


def measure_samples(context: MeasureContext, model: EvalModel, spec: SamplingSpec) -> Measurement:
    """Draw the samples of `spec`: texts, diversity, corrections and evaluations."""
    plan, length = sampling_plan(model, spec, context.samples_at_once), text_length(model.lm, spec)

    def run() -> dict[str, Any]:
        rows, eos = draw(context, model, spec), model.lm.tokenizer.eos_id
        tokens = [ended(row.tokens[1 : 1 + length], eos) for row in rows]
        before = [ended(row.first[1 : 1 + length], eos) for row in rows]
        moves = pad_sequence([row.moves for row in rows], batch_first=True)  # some may stop early
        if plan.last_pass is not None:
            moves = moves[:, :-1]  # what it rewrites is no correction by the reverse process
        return {
            "texts": [model.engine.text(row) for row in tokens],
            "before": [model.engine.text(row) for row in before],
            "nfe": stats.mean([row.nfe for row in rows])._asdict(),
            **{"sampler": plan.sampler.name, "final": plan.final, "steps": plan.steps, "filters": filters_used(plan)},
            "diversity": diversity(tokens, spec.seed),
            "correction": rates(moves, length, model.lm.process, plan.times),
            "length": length,
        }

    return context.store.measurement("samples", model, settled(spec, model.lm), run)


def measure_generation(
    context: MeasureContext, model: EvalModel, spec: SamplingSpec, reference: ReferenceLM
) -> Measurement:
    """Generative perplexity with diversity beside it (`tab:genppl-comparison`, `tab:entropy-comparison`)."""
    samples = measure_samples(context, model, spec).result

    def run() -> dict[str, Any]:
        names = ("nfe", "sampler", "final", "steps", "filters", "diversity", "length")
        return {
            **gen_ppl(scored(context, reference, samples["texts"]), spec.seed),
            **{name: samples[name] for name in names},
            "in_words": in_words(samples["texts"]),
            "judge": reference.name,
            "samples": samples["texts"][:SHOWN],
        }

    settings = {**settled(spec, model.lm), **reference.identity}
    return context.store.measurement("generation", model, settings, run)


def measure_correction(
    context: MeasureContext, model: EvalModel, spec: SamplingSpec, reference: ReferenceLM | None = None
) -> Measurement:
    """Correction rates beside the intrinsic ones (`tab:correction_rate`); with a reference LM, what they are worth."""
    model.diffusion("corrects nothing: measure a diffusion model")
    samples = measure_samples(context, model, spec).result
    plain = None
    if reference is not None and model.has_uniform_noise:
        plain = measure_samples(context, model, replace(spec, correct=False)).result

    def run() -> dict[str, Any]:
        rates = {**samples["correction"], "sampler": samples["sampler"], "nfe": samples["nfe"]}
        if reference is None:
            return rates
        after = scored(context, reference, samples["texts"])
        before = scored(context, reference, samples["before"])
        worth: dict[str, Any] = {
            "judge": reference.name,
            "ppl_after": short_ppl(after, spec.seed),
            "ppl_before": short_ppl(before, spec.seed),
            "benefit": benefit(before, after),
            "entropy_after": samples["diversity"]["entropy"],
        }
        if plain is not None:
            without = scored(context, reference, plain["texts"])
            worth["ppl_uncorrected"] = short_ppl(without, spec.seed)
            worth["entropy_uncorrected"] = plain["diversity"]["entropy"]
            worth["p_uncorrected"] = stats.difference(columns(after), columns(without))
        return {**rates, **worth}

    settings = {**settled(spec, model.lm), **({} if reference is None else reference.identity)}
    return context.store.measurement("correction", model, settings, run)


def benefit(before: Sequence[TextNats], after: Sequence[TextNats]) -> dict[str, Any]:
    """Nats a token that the corrections gain, text by text; positive is better."""
    pairs = [
        (b.nats / b.tokens, a.nats / a.tokens) for b, a in zip(before, after, strict=True) if b.tokens and a.tokens
    ]
    old, new = [b for b, _ in pairs], [a for _, a in pairs]
    return {**stats.mean([b - a for b, a in pairs])._asdict(), "p": stats.paired_t(old, new)}
