"""MAUVE: how far generated texts lie from human ones, on a reference LM's hidden states (`mauve-text`, an extra)."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

import numpy as np

from scdd.core.errors import UserError, missing_extra
from scdd.evals.measure import stats
from scdd.evals.measure.generation import measure_samples
from scdd.evals.measure.model import EvalModel
from scdd.evals.measure.reference_lm import HubReferenceLM, ReferenceLM
from scdd.evals.measure.specs import SamplingSpec
from scdd.evals.measure.store import MeasureContext, Measurement, fingerprint
from scdd.evals.measure.texts import text_rows
from scdd.evals.measure.walk import settled


def require_mauve() -> Any:
    """The package; refused where it is missing."""
    try:
        return import_module("mauve")
    except ImportError as error:
        raise UserError(missing_extra("MAUVE needs mauve-text", "mauve")) from error


def mauve(
    texts: Sequence[str], human: Sequence[str], reference: HubReferenceLM, seeds: Sequence[int] = (0, 1, 2)
) -> dict[str, Any]:
    """MAUVE against human texts on the reference LM's own hidden states, once a seed of its clustering."""
    package = require_mauve()
    p, q = reference.features(human), reference.features(texts)
    scores = []
    for seed in seeds:
        curve = package.compute_mauve(p_features=p, q_features=q, seed=seed, verbose=False)
        # Where both histograms are the same, the package's curve is a point and its area, a rounding error's, may be 0.5.
        scores.append(1.0 if np.allclose(curve.p_hist, curve.q_hist) else float(curve.mauve))
    return {**stats.mean(scores)._asdict(), "seeds": list(seeds), "scores": scores, "features": reference.name}


def measure_mauve(
    context: MeasureContext, model: EvalModel, spec: SamplingSpec, reference: ReferenceLM, human: str
) -> Measurement:
    """MAUVE of the samples of `spec` against as many human texts, cut to the same number of tokens."""
    reader = mauve_reference(reference)
    drawn = measure_samples(context, model, spec).result
    held = text_rows(model, [human], limit=spec.num, length=drawn["length"] + 2, whole=True)
    if len(held) < spec.num:
        raise UserError(
            f"{held.name} holds {len(held)} texts of {drawn['length']} tokens, and MAUVE compares {spec.num} with as "
            "many: give more text, or ask for fewer samples."
        )
    texts = [model.engine.text(row) for row in held.rows]
    settings = {**settled(spec, model.lm), **reader.identity, "human": fingerprint(texts)}
    return context.store.measurement("mauve", model, settings, lambda: mauve(drawn["texts"], texts, reader), held.name)


def mauve_reference(reference: ReferenceLM | None) -> HubReferenceLM:
    """The reference LM, if MAUVE can be had with it; refused before anything long is measured."""
    require_mauve()
    if not isinstance(reference, HubReferenceLM):
        raise UserError("MAUVE looks at a transformers model's hidden states: name such a reference LM.")
    return reference
