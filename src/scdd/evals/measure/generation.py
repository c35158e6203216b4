"""What a reference LM makes of samples: generative perplexity, and what corrections are worth.

A correction rate says little by itself: a perfect denoiser corrects too, since the process draws noise and takes it back. So
the measured rate always stands beside the intrinsic one, and the excess is what the model adds. Whether corrections help is
asked of the reference LM: the text as each position first had it, against the finished one, against a walk that may not
correct (`tab:correction_rate`, Figures `fig:ablation1-1`, `fig:ablation1-2`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from scdd.evals.measure import stats
from scdd.evals.measure.model import EvalModel
from scdd.evals.measure.reference_lm import ReferenceLM, TextNats, columns, gen_ppl, scored, short_ppl
from scdd.evals.measure.samples import measure_samples
from scdd.evals.measure.specs import SamplingSpec
from scdd.evals.measure.store import MeasureContext, Measurement
from scdd.evals.measure.walk import settled

SHOWN = 4  # texts kept in a measurement for the report


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
        }
        if plain is not None:
            without = scored(context, reference, plain["texts"])
            worth["ppl_uncorrected"] = short_ppl(without, spec.seed)
            worth["p_uncorrected"] = stats.difference(columns(after), columns(without))
        return {**rates, **worth}

    settings = {**settled(spec, model.lm), **({} if reference is None else reference.identity)}
    return context.store.measurement("correction", model, settings, run)


def benefit(before: Sequence[TextNats], after: Sequence[TextNats]) -> dict[str, Any]:
    """Nats a token that the corrections gain, text by text; positive is better."""
    pairs = [
        (b.nats / b.tokens, a.nats / a.tokens)
        for b, a in zip(before, after, strict=True)
        if b.tokens and a.tokens
    ]
    old, new = [b for b, _ in pairs], [a for _, a in pairs]
    return {**stats.mean([b - a for b, a in pairs])._asdict(), "p": stats.paired_t(old, new)}
