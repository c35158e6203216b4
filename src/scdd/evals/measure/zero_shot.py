"""Zero-shot choice by likelihood (`tab:benchmark_accuracy`): [x; y] scored by its ELBO, N Monte-Carlo looks.

All answers to one question are looked at at the same times and through the same noise, so what they share (the question)
cancels in their difference, and only the answers decide.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from scdd.core.errors import UserError, missing_extra, reason
from scdd.core.rng import derive_seed
from scdd.evals.measure import benchmarks, stats
from scdd.evals.measure.likelihood import REPLICATES, NelboEstimator, likelihood
from scdd.evals.measure.model import EvalModel
from scdd.evals.measure.progress import Watch, unwatched
from scdd.evals.measure.store import ALONE, MeasureContext, Measurement, fingerprint, shared
from scdd.training.parallel import World


class Answer(NamedTuple):
    """log P(x, y) from below: the mean of its looks, and its Monte-Carlo error."""

    score: float
    error: float


class Question(NamedTuple):
    """Texts of which one is right, under a key that is theirs alone: the key decides their noise."""

    key: str
    texts: tuple[str, ...]


def noise_index(seed: int, key: str) -> int:
    """The number that decides a text's noise: 40 bits leave room for the looks beside them."""
    return derive_seed(seed, key) >> 24


def answers(
    model: EvalModel,
    questions: Sequence[Question],
    looks: int = 10,
    seed: int = 0,
    batch_size: int | None = None,
    world: World = ALONE,
    watch: Watch = unwatched,
) -> list[list[Answer]]:
    """The score of every text of every question; each rank scores its share of the questions.

    An autoregressive model's scores are exact, and take one pass.
    """
    estimator = NelboEstimator(None, looks, "ours", seed)

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
    looks: int = 10,
    limit: int | None = None,
    seed: int = 0,
) -> Measurement:
    """Accuracies of the paper's seven from the folder `data` without lm-eval, all or those that `tasks` names; without `data`,
    of any `tasks` that lm-eval knows."""
    check_looks(looks)
    if limit is not None and limit < 1:
        raise UserError(f"The limit is {limit} questions a task: give at least 1, or leave it out for all.")
    # a missing folder is refused before anything is measured
    place = None if tasks and data is None else str(benchmarks.folder(data))
    names = list(benchmarks.NAMES) if not tasks else list(tasks) if place is None else _of_the_seven(tasks)
    wanted = names if place is None else [benchmarks.PREFIX + name for name in names]
    ask = _Asking(context, model, looks, seed)
    read = _read(wanted, place, limit)

    def run() -> dict[str, Any]:
        outcome = _of_files(ask, read) if place is not None else _of_lm_eval(ask, wanted, limit)
        results = {}
        for name, (acc, n) in outcome.accuracies.items():
            error = stats.share_error(acc, n)
            results[name.removeprefix(benchmarks.PREFIX)] = {"acc": acc, "error": error, "questions": n}
        return {"tasks": results, "passes": looks, "monte_carlo_error": rms(outcome.errors)}

    settings: dict[str, Any] = {"tasks": wanted, "passes": looks, "limit": limit, "seed": seed}
    if read:  # files of the same names may ask other questions
        settings["text"] = fingerprint(list(read.items()))
    return context.store.measurement("zero-shot", model, settings, run, _called(place) if read else "")


class _Asking(NamedTuple):
    """Who is asked, and how."""

    context: MeasureContext
    model: EvalModel
    looks: int
    seed: int


class _Outcome(NamedTuple):
    """(Accuracy, questions) of each task, and the Monte-Carlo error of every answer's score."""

    accuracies: dict[str, tuple[float, int]]
    errors: list[float]


def rms(errors: Sequence[float]) -> float:
    """Root mean square; 0 of nothing."""
    return (sum(e * e for e in errors) / len(errors)) ** 0.5 if errors else 0.0


def check_looks(looks: int) -> None:
    """Refuse a number of looks that no error bar can be had from, before anything is loaded."""
    if looks < REPLICATES or looks % REPLICATES:
        raise UserError(f"looks is {looks}: give an even number of at least {REPLICATES}, for the error bars.", "looks")


def _of_the_seven(tasks: Sequence[str]) -> list[str]:
    """The names of those of the paper's tasks that are asked for."""
    names = [name.strip().removeprefix(benchmarks.PREFIX) for name in tasks]
    if unknown := [name for name in names if name not in benchmarks.NAMES]:
        raise UserError(
            f"tasks {', '.join(unknown)} are none of the files' (choose from {', '.join(benchmarks.NAMES)}): leave the folder "
            "out for tasks of lm-eval.",
            "tasks",
        )
    return list(dict.fromkeys(names))


def _read(tasks: Sequence[str], place: str | None, limit: int | None) -> dict[str, list[benchmarks.Choice]]:
    """The questions of those tasks whose files are ours, which lm-eval reads from the usual folder."""
    ours = [benchmarks.PREFIX + name for name in benchmarks.NAMES]
    return {
        name: benchmarks.choices(name.removeprefix(benchmarks.PREFIX), place)[:limit] for name in tasks if name in ours
    }


def _called(place: str | None) -> str:
    """What people call the questions: their folder's name."""
    return (benchmarks.folder() if place is None else Path(place)).resolve().name


def _of_files(ask: _Asking, tasks: Mapping[str, Sequence[benchmarks.Choice]]) -> _Outcome:
    """The seven tasks, or some. Keys and order are those of the harness's requests, and so the scores are its scores."""
    context, model, looks, seed = ask
    questions = [
        Question(f"{name}/{i}", choice.texts) for name, choices in tasks.items() for i, choice in enumerate(choices)
    ]
    scored = answers(model, questions, looks, seed, context.batch_size, context.world, context.watch)
    rows = iter(scored)
    accuracies = {}
    for name, choices in tasks.items():
        right = sum(_best(next(rows)) == choice.gold for choice in choices)
        accuracies[name] = right / len(choices), len(choices)
    return _Outcome(accuracies, [answer.error for row in scored for answer in row])


def _best(row: Sequence[Answer]) -> int:
    """The first of the highest scores."""
    return max(range(len(row)), key=lambda i: row[i].score)


def _of_lm_eval(ask: _Asking, tasks: Sequence[str], limit: int | None) -> _Outcome:
    """Any tasks that lm-eval knows."""
    context, model, looks, seed = ask
    try:
        harness: Any = import_module("lm_eval")
        adapter: Any = import_module("scdd.evals.measure.lm_eval_model")
    except ModuleNotFoundError as error:
        raise UserError(missing_extra(f"Tasks of lm-eval need {error.name}", "eval")) from error
    scorer = adapter.ScddLM(model, looks=looks, seed=seed, batch_size=context.batch_size)
    scorer.world, scorer.watch = context.world, context.watch
    known = import_module("lm_eval.tasks").TaskManager(include_path=str(benchmarks.TASKS), metadata={})
    plain = {"bootstrap_iters": 0, "log_samples": False, "task_manager": known}
    try:
        outcome = harness.simple_evaluate(scorer, tasks=list(tasks), limit=limit, **plain)
    except (KeyError, ValueError, OSError) as error:  # OSError: it fetches its tasks' questions from the Hub
        raise UserError(
            f"lm-eval refuses the tasks {', '.join(tasks)} ({reason(error)}): check their names and the network, or give a "
            "folder of the paper's seven.",
            "tasks",
        ) from error
    counts = outcome["n-samples"]
    accuracies = {
        name: (float(one["acc,none"]), int(counts[name]["effective"])) for name, one in outcome["results"].items()
    }
    return _Outcome(accuracies, scorer.errors)
