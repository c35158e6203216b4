"""Zero-shot choice by likelihood (`tab:benchmark_accuracy`): [x; y] scored by its ELBO, N Monte-Carlo passes.

All answers to one question are looked at at the same times and through the same noise, so what they share (the question)
cancels in their difference, and only the answers decide.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any, NamedTuple

from scdd.core.errors import UserError
from scdd.core.rng import derive_seed
from scdd.evals.measure import benchmarks
from scdd.evals.measure.likelihood import NelboEstimator, likelihood
from scdd.evals.measure.model import EvalModel
from scdd.evals.measure.progress import Watch, unwatched
from scdd.evals.measure.store import ALONE, MeasureContext, Measurement, shared
from scdd.training.parallel import World


class Answer(NamedTuple):
    """log P(x, y) from below: the mean of the passes, and its Monte-Carlo error."""

    score: float
    error: float


class Question(NamedTuple):
    """Texts of which one is right, under a key that is theirs alone: the key decides their noise."""

    key: str
    texts: tuple[str, ...]


def noise_index(seed: int, key: str) -> int:
    """The number that decides a text's noise: 40 bits leave room for the passes beside them."""
    return derive_seed(seed, key) >> 24


def answers(
    model: EvalModel,
    questions: Sequence[Question],
    passes: int = 10,
    seed: int = 0,
    batch_size: int = 32,
    world: World = ALONE,
    watch: Watch = unwatched,
) -> list[list[Answer]]:
    """The score of every text of every question; each rank scores its share of the questions."""
    estimator = NelboEstimator(None, passes, "exact", seed)

    def scores(own: Sequence[Question], _: range) -> list[list[Answer]]:
        rows = [(noise_index(seed, q.key), row) for q in own for row in framed(model, q.texts)]
        # by length for little padding; the noise does not mind the order
        order = sorted(range(len(rows)), key=lambda i: len(rows[i][1]))
        tokens, indices = [rows[i][1] for i in order], [rows[i][0] for i in order]
        nats = likelihood(model.lm.network, model.lm.process, tokens, estimator, indices, batch_size, watch)
        scored = {i: Answer(-row.mean, row.variance**0.5) for i, row in zip(order, nats, strict=True)}
        flat = iter(scored[i] for i in range(len(rows)))
        return [[next(flat) for _ in q.texts] for q in own]

    return shared(questions, scores, world)


def framed(model: EvalModel, texts: Sequence[str]) -> list[list[int]]:
    """Rows of one question. What is too long loses its beginning, every text as many tokens: they stay aligned."""
    encoded = model.lm.tokenizer.encode_batch(list(texts))
    lost = max(0, max(map(len, encoded)) - model.engine.room)
    if lost >= min(map(len, encoded)):
        raise UserError(f"An answer is longer than the context of {model.engine.room} tokens: leave the task out.")
    return [model.engine.framed(tokens[lost:]) for tokens in encoded]


def measure_zero_shot(
    context: MeasureContext,
    model: EvalModel,
    tasks: Sequence[str] | None = None,
    data: str | None = None,
    passes: int = 10,
    limit: int | None = None,
    seed: int = 0,
) -> Measurement:
    """Accuracies by lm-eval; without `tasks` the paper's seven from the folder `data`."""
    # a missing folder is refused before anything is loaded
    metadata = {} if tasks else {"data": str(benchmarks.folder(data))}
    wanted = list(tasks) if tasks else [benchmarks.PREFIX + name for name in benchmarks.NAMES]

    def run() -> dict[str, Any]:
        try:
            harness: Any = import_module("lm_eval")
            adapter: Any = import_module("scdd.evals.measure.lm_eval_model")
        except ModuleNotFoundError as error:
            raise UserError(f"Zero-shot accuracy needs {error.name}: pip install 'scdd[eval]'.") from error
        scorer = adapter.ScddLM(model, passes=passes, seed=seed, batch_size=context.batch_size)
        scorer.world, scorer.watch = context.world, context.watch
        known = import_module("lm_eval.tasks").TaskManager(include_path=str(benchmarks.TASKS), metadata=metadata)
        plain = {"bootstrap_iters": 0, "log_samples": False, "task_manager": known}
        try:
            outcome = harness.simple_evaluate(scorer, tasks=wanted, limit=limit, **plain)
        except (KeyError, ValueError) as error:
            raise UserError(f"lm-eval refuses the tasks {', '.join(wanted)}: {error}") from error
        results = {}
        for name, one in outcome["results"].items():
            n, acc = int(outcome["n-samples"][name]["effective"]), float(one["acc,none"])
            spread = (acc * (1 - acc) / max(n - 1, 1)) ** 0.5
            results[name.removeprefix(benchmarks.PREFIX)] = {"acc": acc, "error": spread, "questions": n}
        return {"tasks": results, "passes": passes, "monte_carlo_error": scorer.monte_carlo_error()}

    settings = {"tasks": wanted, "passes": passes, "limit": limit, "seed": seed}
    return context.store.measurement("zero-shot", model, settings, run)
