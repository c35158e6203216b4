"""An LLM as judge (`tab:matched_compact`, `tab:crossratio_compact`): two models mend the same corrupted texts.

Clean sequences are noised to t = 0.8 by the first system's forward process; both systems walk back from the very same
noise, and the judge grades every text alone by the prompt of Figure `fig:evaluation_prompt`, then says which text of each
pair is better. The paper does not print its question for the winner; ours is in assets/winner.txt, the order random.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import Any

import torch

from scdd.core import UserError
from scdd.core.rng import CounterRNG, derive_seed
from scdd.evals.measure import stats
from scdd.evals.measure.generation import ended
from scdd.evals.measure.judge_client import ASPECTS, JudgeClient, parse_scores, parse_winner
from scdd.evals.measure.model import EvalModel
from scdd.evals.measure.progress import Watch, unwatched
from scdd.evals.measure.specs import SamplingSpec, check_convention
from scdd.evals.measure.store import MeasureContext, Measurement, all_gather, fingerprint, shared
from scdd.evals.measure.texts import Rows
from scdd.evals.measure.walk import StartRows, framed_rows, sampling_plan, settled, walk
from scdd.samplers.options import Convention

ASSETS = Path(__file__).parent / "assets"
CHARACTERS_A_TOKEN = 4.0  # English, for the estimate only
OWN = {"sampler", "grid", "final", "top_p", "top_k", "temperature"}  # in every measurement's settings
LATER = {"nucleus", "last_pass", "convention"}  # where they are chosen
ANSWER_TOKENS = {"scores": 220, "winner": 60}


@dataclass(frozen=True)
class Matched:
    """How the texts to be judged come about."""

    t: float = 0.8
    nfe: int = 128
    top_p: float = 0.9
    seed: int = 0
    convention: Convention = "ours"

    def __post_init__(self) -> None:
        check_convention(self.convention)

    def settled(self) -> dict[str, Any]:
        """Plain data, for a measurement's settings; "ours" is left out, as older measurements leave it out."""
        return {name: value for name, value in asdict(self).items() if name != "convention" or value != "ours"}


@dataclass(frozen=True)
class CostEstimate:
    """What judging will take at the most; answers already kept cost nothing."""

    calls: int
    prompt_tokens: int
    answer_tokens: int
    cost: float | None

    def __str__(self) -> str:
        price = "" if self.cost is None else f", about {self.cost:.2f} in the currency of the prices given"
        return f"{self.calls} calls, about {self.prompt_tokens} tokens of prompts and {self.answer_tokens} of answers{price}"


def measure_denoised(
    context: MeasureContext,
    model: EvalModel,
    noise: EvalModel,
    rows: Rows,
    matched: Matched,
    own: dict[str, Any] | None = None,
) -> Measurement:
    """The texts that `model` makes of the rows, noised by the process of `noise`. All rows are of one length.

    `own` are the system's own choices of `SamplingSpec`: its sampler, its filters.
    """
    chosen = own or {}
    if others := set(chosen) - OWN - LATER:
        raise UserError(
            f"{', '.join(sorted(others))} of {model.label} cannot be its own: both systems mend the same texts."
        )
    model.diffusion("cannot mend a text: compare diffusion models")
    forward = noise.diffusion("cannot mend a text: compare diffusion models")
    if model.lm.tokenizer.hash != noise.lm.tokenizer.hash:
        raise UserError(f"{model.label} and {noise.label} have other tokenizers: the same noise is not the same text.")
    choices = {"top_p": matched.top_p, "grid": "uniform", "convention": matched.convention, **chosen}
    spec = SamplingSpec(1, matched.nfe, derive_seed(matched.seed, "walk"), choices)  # type: ignore[arg-type]

    def texts(own: Sequence[list[int]], mine: range) -> list[str]:
        clean, frozen, _ = framed_rows(own, mine, model.lm.device)
        source = CounterRNG(derive_seed(matched.seed, "judge"), list(mine), clean.device)
        start = StartRows(torch.where(frozen, clean, forward.corrupt(clean, matched.t, source)), frozen, mine)
        plan = sampling_plan(model, spec, context.samples_at_once, start=matched.t)
        done = walk(model.engine.model, plan, start, context.watch, follow=False)
        return [model.engine.text(ended(row.tokens[1:-1], model.lm.tokenizer.eos_id)) for row in done]

    def run() -> dict[str, Any]:
        return {"texts": shared(rows.rows, texts, context.world)}

    effective = settled(spec, model.lm)
    sampling = {name: effective[name] for name in ("options", *sorted(OWN), *sorted(LATER)) if name in effective}
    about = {"text": fingerprint(rows.rows), "noise": noise.identity["process"]}
    settings = {**about, **matched.settled(), **sampling}
    return context.store.measurement("denoised", model, settings, run, rows.name)


def prompts(first: Sequence[str], second: Sequence[str], seed: int) -> tuple[list[str], list[str], list[bool]]:
    """(Grading prompts of all first then all second texts, pairing prompts, whether the first text is shown as A)."""
    grade = (ASSETS / "judge.txt").read_text(encoding="utf-8")
    choose = (ASSETS / "winner.txt").read_text(encoding="utf-8")
    rng = Random(seed)
    order = [rng.random() < 0.5 for _ in first]
    head, _, tail = choose.partition("{a}")
    middle, _, end = tail.partition("{b}")
    shown = [(x, y) if leads else (y, x) for x, y, leads in zip(first, second, order, strict=True)]
    pairs = [head + a + middle + b + end for a, b in shown]
    return [grade.replace("{text}", text) for text in (*first, *second)], pairs, order


def estimate_cost(
    client: JudgeClient, grading: Sequence[str], pairing: Sequence[str], prices: tuple[float, float] | None = None
) -> CostEstimate:
    """Calls and tokens still to pay for; `prices` are for a million prompt and answer tokens."""
    grades, pairs = ([p for p in prompts if not client.known(p)] for prompts in (grading, pairing))
    asked = round(sum(len(prompt) for prompt in (*grades, *pairs)) / CHARACTERS_A_TOKEN)
    answered = len(grades) * ANSWER_TOKENS["scores"] + len(pairs) * ANSWER_TOKENS["winner"]
    cost = None if prices is None else (asked * prices[0] + answered * prices[1]) / 1e6
    return CostEstimate(len(grades) + len(pairs), asked, answered, cost)


def verdict(
    client: JudgeClient, first: Sequence[str], second: Sequence[str], seed: int = 0, watch: Watch = unwatched
) -> dict[str, Any]:
    """Scores by aspect with paired t-tests, and the wins of the first with a binomial test; ties are counted apart."""
    grading, pairing, order = prompts(first, second, seed)
    scores = client.ask(grading, parse_scores, watch)
    chosen = client.ask(pairing, parse_winner, watch)
    aspects = {}
    for aspect in ASPECTS:
        values = [score[aspect] for score in scores]
        a, b = values[: len(first)], values[len(first) :]
        one, two = stats.mean(a), stats.mean(b)
        errors = {"first_error": one.error, "second_error": two.error}
        aspects[aspect] = {"first": one.value, "second": two.value, **errors, "p": stats.paired_t(a, b)}
    wins = sum(winner == ("A" if leads else "B") for winner, leads in zip(chosen, order, strict=True))
    ties = chosen.count("tie")
    decided = len(chosen) - ties
    rate, p = (wins / decided, stats.binomial(wins, decided)) if decided else (None, None)
    counts = {"first": wins, "second": decided - wins, "ties": ties, "rate": rate, "p": p}
    return {"aspects": aspects, "wins": counts, "texts": len(first)}


def measure_judge(
    context: MeasureContext,
    models: tuple[EvalModel, EvalModel],
    texts: tuple[Measurement, Measurement],
    client: JudgeClient,
    matched: Matched,
) -> Measurement:
    """The verdict on the texts of two `measure_denoised`. Rank 0 asks; the others wait."""
    (first, second), (a, b) = models, (measurement.result["texts"] for measurement in texts)
    server = client.server

    def run() -> dict[str, Any]:
        asks = context.world.is_main
        answer = [verdict(client, a, b, matched.seed, context.watch)] if asks else []
        shown = [{"first": x, "second": y} for x, y in zip(a[:2], b[:2], strict=True)]
        systems = {"systems": [first.label, second.label], "model": server.model, "samples": shown}
        return {**all_gather(answer, context.world)[0], **systems}

    settings = {
        **matched.settled(),
        "first": texts[0].hash,
        "second": texts[1].hash,
        "against": second.identity,
        "judge": server.model,
        "base_url": server.base_url or server.address,  # OPENAI_BASE_URL is another server, too
        "temperature": server.temperature,
    }
    return context.store.measurement("judge", first, settings, run, texts[0].made.get("text", ""))
