"""MAUVE: how far generated texts lie from human ones, on a judge's hidden states (`mauve-text`, an extra)."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

import numpy as np

from scdd.core.errors import UserError
from scdd.evals import stats
from scdd.evals.cells import Measurement, Store
from scdd.evals.gen_ppl import HubJudge, Judge
from scdd.evals.generation import SamplingSpec
from scdd.evals.likelihood import Watch
from scdd.evals.measure import fingerprint, measure_samples
from scdd.evals.subject import EvalModel
from scdd.evals.texts import open_stream, rows, split_name


def require_mauve() -> Any:
    """The package; refused where it is missing."""
    try:
        return import_module("mauve")
    except ImportError as error:
        raise UserError("MAUVE needs mauve-text: pip install 'scdd[mauve]'.") from error


def mauve(
    texts: Sequence[str], human: Sequence[str], judge: HubJudge, seeds: Sequence[int] = (0, 1, 2)
) -> dict[str, Any]:
    """MAUVE against human texts on the judge's own hidden states, once a seed of its clustering."""
    package = require_mauve()
    p, q = judge.features(human), judge.features(texts)
    scores = []
    for seed in seeds:
        found = package.compute_mauve(p_features=p, q_features=q, seed=seed, verbose=False)
        # Where both histograms are the same, the package's curve is a point and its area, a rounding error's, may be 0.5.
        scores.append(1.0 if np.allclose(found.p_hist, found.q_hist) else float(found.mauve))
    return {**stats.mean(scores)._asdict(), "seeds": list(seeds), "scores": scores, "features": judge.name}


def measure_mauve(
    store: Store,
    subject: EvalModel,
    way: SamplingSpec,
    judge: Judge,
    human: str,
    batch_size: int = 16,
    watch: Watch | None = None,
) -> Measurement:
    """MAUVE of the samples of `way` against as many human texts, cut to the same number of tokens."""
    judge = mauve_judge(judge)
    samples = measure_samples(store, subject, way, batch_size, watch).result
    tokenizer = subject.lm.tokenizer
    name, path = split_name(human)
    held = rows(open_stream([path], tokenizer), tokenizer, samples["length"] + 2, way.num, whole=True)
    if len(held) < way.num:
        raise UserError(
            f"{name} holds {len(held)} texts of {samples['length']} tokens, and MAUVE compares {way.num} with as many: "
            "give more text, or ask for fewer samples."
        )
    texts = [subject.lm.engine.text(row) for row in held.rows]

    def run() -> dict[str, Any]:
        return mauve(samples["texts"], texts, judge)

    asked = {**way.settled(subject.lm), **judge.identity, "human": fingerprint(texts)}
    return store.cell("mauve", subject, asked, run, name)


def mauve_judge(judge: Judge) -> HubJudge:
    """The judge, if MAUVE can be had with it; refused before anything long is measured."""
    require_mauve()
    if not isinstance(judge, HubJudge):
        raise UserError(
            "MAUVE looks at a transformers model's hidden states: name such a judge with --judge."
        )
    return judge
