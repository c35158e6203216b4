"""`scdd.evaluate`: what `scdd eval` measures, from Python and several at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args

from scdd.core.errors import UserError
from scdd.evals.measure.generation import measure_correction, measure_generation, usual_num
from scdd.evals.measure.likelihood import NelboEstimator, measure_likelihood
from scdd.evals.measure.model import EvalModel, open_model
from scdd.evals.measure.pairs import Pairs, read_pairs
from scdd.evals.measure.progress import bar, somebody_watches
from scdd.evals.measure.recovery import measure_recovery, measure_typos
from scdd.evals.measure.reference_lm import ReferenceLM, open_reference_lm
from scdd.evals.measure.repair import RepairSpec, measure_repair
from scdd.evals.measure.specs import RecoverySpec, Repair, SamplingSpec
from scdd.evals.measure.store import MeasureContext, Measurement, Store
from scdd.evals.measure.texts import Rows, text_rows
from scdd.evals.measure.zero_shot import measure_zero_shot
from scdd.lm.model import LM
from scdd.training.parallel import World

Measure = Literal["likelihood", "generation", "correction", "recovery", "typos", "repair", "zero-shot"]
ERRORS, ROWS = 20, 128  # of recovery, as in the paper's table


def evaluate(
    model: str | Path | LM | EvalModel | None = None,
    measures: Measure | Sequence[Measure] = ("likelihood",),
    *,
    text: str | Path | Sequence[str | Path] | None = None,
    reference_lm: str | Path | ReferenceLM | None = None,
    sampling: SamplingSpec | None = None,
    out: str | Path = "eval",
    batch_size: int | None = None,
    progress: bool | None = None,
) -> list[Measurement]:
    """Measure a model; a measurement for each of `measures`, in their order.

    `model` is a checkpoint as `scdd.load` takes it, or a loaded one; None is the bundled model. `text` (files, folders,
    hf:NAME) is what likelihood and recovery are about, by default the validation data of the model's recipe.
    For repair it is one folder of src.txt and ref0.txt, ref1.txt, …
    `reference_lm` scores texts: a hub name, a folder, a .gguf file or an autoregressive checkpoint of our own; generation
    needs it, correction and recovery tell more with it. `sampling` says how texts are drawn, and holds the seed of
    everything; its convention ({"convention": "authors"} among its changes) is that of likelihood and recovery, too.
    Finished measurements are kept in the folder `out` and not made again; `scdd report` makes a page of them.
    `batch_size` (texts at a time) changes speed and memory only; `progress` shows bars, by default where somebody sees them.
    """
    measures = (measures,) if isinstance(measures, str) else measures
    unknown = next((measure for measure in measures if measure not in get_args(Measure)), None)
    if unknown is not None:
        raise UserError(f"There is no measure {unknown!r}: choose from {', '.join(get_args(Measure))}.")
    if "generation" in measures and reference_lm is None:
        raise UserError("Generative perplexity needs a reference LM: name one (the paper's is gpt2-large).")
    paths = [text] if isinstance(text, str | Path) else text
    if "repair" in measures and len(paths or ()) != 1:
        raise UserError("text for repair is one folder of src.txt and ref0.txt, ref1.txt, …: name one.", "text")
    opened = model if isinstance(model, EvalModel) else open_model(model)
    device = opened.lm.device
    spec = sampling or SamplingSpec(usual_num(device.type))
    convention = spec.changes.get("convention") or "ours"
    scorer: Any = reference_lm
    if isinstance(reference_lm, str | Path):
        scorer = open_reference_lm(str(reference_lm), device)

    @cache
    def rows(limit: int | None = None) -> Rows:
        return text_rows(opened, paths, limit=limit, whole=limit is not None)

    def pairs() -> Pairs:
        [folder] = paths or ()
        return read_pairs(str(folder))

    recovery = RecoverySpec(ERRORS, Repair(convention=convention), spec.seed)
    estimator = NelboEstimator(convention=convention, seed=spec.seed)
    functions: dict[str, Callable[[MeasureContext], Measurement]] = {
        "likelihood": lambda c: measure_likelihood(c, opened, rows(), estimator),
        "generation": lambda c: measure_generation(c, opened, spec, scorer),
        "correction": lambda c: measure_correction(c, opened, spec, scorer),
        "recovery": lambda c: measure_recovery(c, opened, rows(ROWS), recovery, scorer),
        "typos": lambda c: measure_typos(c, opened, rows(ROWS), recovery, scorer),
        "repair": lambda c: measure_repair(c, opened, pairs(), RepairSpec(seed=spec.seed)),
        "zero-shot": lambda c: measure_zero_shot(c, opened, seed=spec.seed),
    }
    store, live = Store(out, World(device=device)), somebody_watches() if progress is None else progress
    measured = []
    for measure in measures:
        with bar(f"{measure} of {opened.label}", None, live) as watch:
            measured.append(functions[measure](MeasureContext(store, batch_size, watch)))
    return measured
