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
from scdd.evals import benchmarks
from scdd.evals.cells import ALONE, Measurement, Store, gathered, share
from scdd.evals.likelihood import NelboEstimator, Watch, likelihood
from scdd.evals.subject import EvalModel
from scdd.training.parallel import World


class Answer(NamedTuple):
    """log P(x, y) from below: the mean of the passes, and its Monte-Carlo error."""

    score: float
    error: float


class Question(NamedTuple):
    """Texts of which one is right, under a key that is theirs alone: the key decides their noise."""

    key: str
    texts: tuple[str, ...]


def answers(
    subject: EvalModel,
    questions: Sequence[Question],
    passes: int = 10,
    seed: int = 0,
    batch_size: int = 32,
    world: World = ALONE,
    watch: Watch | None = None,
) -> list[list[Answer]]:
    """The score of every text of every question; each rank scores its share of the questions."""
    how = NelboEstimator(None, passes, "exact", seed)
    mine = share(len(questions), world)
    rows, indices = [], []
    for question in questions[mine.start : mine.stop]:
        # 40 bits leave room for the passes beside them
        index = derive_seed(seed, question.key) >> 24
        for row in framed(subject, question.texts):
            rows.append(row)
            indices.append(index)
    order = sorted(
        range(len(rows)), key=lambda i: len(rows[i])
    )  # little padding; the noise does not mind the order
    lm = subject.lm
    found = likelihood(
        lm.network,
        lm.process,
        [rows[i] for i in order],
        how,
        indices=[indices[i] for i in order],
        batch_size=batch_size,
        device=lm.device,
        watch=watch,
    )
    scored: dict[int, Answer] = {}
    for place, one in zip(order, found, strict=True):
        count = len(one.nats)
        middle = sum(one.nats) / count
        variance = sum((value - middle) ** 2 for value in one.nats) / max(count - 1, 1) / count
        scored[place] = Answer(-middle, variance**0.5)
    flat = iter(scored[i] for i in range(len(rows)))
    return gathered([[next(flat) for _ in q.texts] for q in questions[mine.start : mine.stop]], world)


def framed(subject: EvalModel, texts: Sequence[str]) -> list[list[int]]:
    """Rows of one question. What is too long loses its beginning, every text as many tokens: they stay aligned."""
    engine = subject.lm.engine
    encoded = engine.tokenizer.encode_batch(list(texts))
    lost = max(0, max(map(len, encoded)) - engine.room)
    if lost >= min(map(len, encoded)):
        raise UserError(f"An answer is longer than the context of {engine.room} tokens: leave the task out.")
    return [engine.framed(tokens[lost:]) for tokens in encoded]


def measure_zero_shot(
    store: Store,
    subject: EvalModel,
    tasks: Sequence[str] | None,
    data: str | None,
    passes: int = 10,
    limit: int | None = None,
    seed: int = 0,
    batch_size: int = 32,
    watch: Watch | None = None,
) -> Measurement:
    """Accuracies by lm-eval; without `tasks` the paper's seven from the folder `data`."""
    with benchmarks.at(data):
        if not tasks:
            benchmarks.folder()  # refuse before anything is loaded
    wanted = list(tasks) if tasks else [benchmarks.PREFIX + name for name in benchmarks.NAMES]

    def run() -> dict[str, Any]:
        try:
            harness: Any = import_module("lm_eval")
            adapter: Any = import_module("scdd.evals.lm_eval_model")
        except ModuleNotFoundError as error:
            raise UserError(f"scdd eval zero-shot needs {error.name}: pip install 'scdd[eval]'.") from error
        model = adapter.ScddLM.of(subject, passes, seed, batch_size, store.world, watch)
        manager = import_module("lm_eval.tasks").TaskManager(include_path=str(benchmarks.TASKS))
        try:
            with benchmarks.at(data):
                found = harness.simple_evaluate(
                    model,
                    tasks=wanted,
                    limit=limit,
                    task_manager=manager,
                    bootstrap_iters=0,
                    log_samples=False,
                )
        except (KeyError, ValueError) as error:
            raise UserError(f"lm-eval refuses the tasks {', '.join(wanted)}: {error}") from error
        results = {}
        for name, one in found["results"].items():
            n = int(found["n-samples"][name]["effective"])
            acc = float(one["acc,none"])
            spread = (acc * (1 - acc) / max(n - 1, 1)) ** 0.5
            results[name.removeprefix(benchmarks.PREFIX)] = {"acc": acc, "error": spread, "questions": n}
        return {"tasks": results, "passes": passes, "monte_carlo_error": model.monte_carlo_error()}

    asked = {"tasks": wanted, "passes": passes, "limit": limit, "seed": seed}
    return store.cell("zero-shot", subject, asked, run)
