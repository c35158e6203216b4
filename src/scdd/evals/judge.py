"""An LLM as judge (`tab:matched_compact`, `tab:crossratio_compact`): two models mend the same corrupted texts.

Clean sequences are noised to t = 0.8 by the first system's forward process; both systems walk back from the very same
noise, and the judge grades every text alone by the prompt of Figure `fig:evaluation_prompt`, then says which text of each
pair is better. The paper does not print its question for the winner; ours is in assets/winner.txt, the order random.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from random import Random
from typing import Any

import torch

from scdd.core import UserError
from scdd.core.rng import CounterRNG, derive_seed
from scdd.evals import stats
from scdd.evals.answers import ASPECTS, Asker, parse_scores, parse_winner
from scdd.evals.cells import Measurement, Store, gathered, share
from scdd.evals.generation import SamplingSpec, ended, settings_of
from scdd.evals.likelihood import Watch
from scdd.evals.measure import fingerprint
from scdd.evals.paper import ASSETS
from scdd.evals.subject import EvalModel
from scdd.evals.texts import Rows
from scdd.evals.walk import Engine, walk
from scdd.samplers.base import grid

CHARACTERS_A_TOKEN = 4.0  # English, for the estimate only
OWN = {"sampler", "grid", "final", "top_p", "top_k", "temperature"}
ANSWER_TOKENS = {"scores": 220, "winner": 60}


@dataclass(frozen=True)
class Matched:
    """How the texts to be judged come about."""

    t: float = 0.8
    nfe: int = 128
    top_p: float = 0.9
    seed: int = 0


@dataclass(frozen=True)
class Estimate:
    """What judging will take at the most; answers already kept cost nothing."""

    calls: int
    prompt_tokens: int
    answer_tokens: int
    cost: float | None

    def __str__(self) -> str:
        price = "" if self.cost is None else f", about {self.cost:.2f} in the currency of the prices given"
        return f"{self.calls} calls, about {self.prompt_tokens} tokens of prompts and {self.answer_tokens} of answers{price}"


def denoised(
    store: Store,
    subject: EvalModel,
    noise: EvalModel,
    rows: Rows,
    how: Matched,
    batch_size: int = 16,
    watch: Watch | None = None,
    own: dict[str, Any] | None = None,
) -> Measurement:
    """The texts that `subject` makes of the rows, noised by the process of `noise`. All rows are of one length.

    `own` are the system's own choices of `SamplingSpec`: its sampler, its filters.
    """
    own = own or {}
    if set(own) - OWN:
        raise UserError(
            f"{', '.join(sorted(set(own) - OWN))} of {subject.label} cannot be its own: both systems mend the same texts."
        )
    for one in (subject, noise):
        if one.process is None:
            raise UserError(
                f"{one.label} is autoregressive and cannot mend a text: compare diffusion models."
            )
    if subject.lm.tokenizer.hash != noise.lm.tokenizer.hash:
        raise UserError(
            f"{subject.label} and {noise.label} have other tokenizers: the same noise is not the same text."
        )

    way = SamplingSpec(
        1, how.nfe, derive_seed(how.seed, "walk"), **{"top_p": how.top_p, "grid": "uniform", **own}
    )

    def run() -> dict[str, Any]:
        mine = share(len(rows), store.world)
        engine = subject.lm.engine
        x = torch.tensor(rows.rows[mine.start : mine.stop], device=engine.device).view(len(mine), -1)
        assert noise.process is not None
        z = noise.process.corrupt(x, how.t, CounterRNG(derive_seed(how.seed, "judge"), list(mine), x.device))
        z[:, 0], z[:, -1] = x[:, 0], x[:, -1]
        frozen = torch.zeros_like(z, dtype=torch.bool)
        frozen[:, 0] = frozen[:, -1] = True
        base = settings_of(subject, way, batch_size)
        steps = len(base.grid) - 1  # rounds after the walk come out of the same budget
        settings = replace(base, grid=grid(str(way.grid), steps, how.t))
        done = walk(Engine(engine.denoiser, engine.process), settings, z, frozen, mine, watch, looking=False)
        eos = engine.tokenizer.eos_id
        texts = [engine.text(ended(row[1:-1], eos)) for row in done.tokens.tolist()]
        return {"texts": gathered(texts, store.world)}

    settled = way.settled(subject.lm)
    walked = {name: settled[name] for name in ("options", *sorted(OWN))}
    asked = {"text": fingerprint(rows.rows), "noise": noise.identity["process"], **asdict(how), **walked}
    return store.cell("denoised", subject, asked, run, rows.name)


def prompts(
    first: Sequence[str], second: Sequence[str], seed: int
) -> tuple[list[str], list[str], list[bool]]:
    """(Grading prompts of all first then all second texts, pairing prompts, whether the first text is shown as A)."""
    grade = (ASSETS / "judge.txt").read_text(encoding="utf-8")
    choose = (ASSETS / "winner.txt").read_text(encoding="utf-8")
    rng = Random(seed)
    order = [rng.random() < 0.5 for _ in first]
    pairs = []
    for one, two, leads in zip(first, second, order, strict=True):
        a, b = (one, two) if leads else (two, one)
        head, _, tail = choose.partition("{a}")
        middle, _, end = tail.partition("{b}")
        pairs.append(head + a + middle + b + end)
    return [grade.replace("{text}", text) for text in (*first, *second)], pairs, order


def estimate(
    asker: Asker, grading: Sequence[str], pairing: Sequence[str], prices: tuple[float, float] | None = None
) -> Estimate:
    """Calls and tokens still to pay for; `prices` are for a million prompt and answer tokens."""
    new = [[p for p in some if not asker.known(p)] for some in (grading, pairing)]
    asked = round(sum(len(p) for some in new for p in some) / CHARACTERS_A_TOKEN)
    answered = len(new[0]) * ANSWER_TOKENS["scores"] + len(new[1]) * ANSWER_TOKENS["winner"]
    cost = None if prices is None else (asked * prices[0] + answered * prices[1]) / 1e6
    return Estimate(len(new[0]) + len(new[1]), asked, answered, cost)


def verdict(
    asker: Asker, first: Sequence[str], second: Sequence[str], seed: int = 0, watch: Watch | None = None
) -> dict[str, Any]:
    """Scores by aspect with paired t-tests, and the wins of the first with a binomial test; ties are counted apart."""
    grading, pairing, order = prompts(first, second, seed)
    scores = asker.ask(grading, parse_scores, watch)
    chosen = asker.ask(pairing, parse_winner, watch)
    ours, theirs = scores[: len(first)], scores[len(first) :]
    aspects = {}
    for aspect in ASPECTS:
        a, b = [s[aspect] for s in ours], [s[aspect] for s in theirs]
        one, two = stats.mean(a), stats.mean(b)
        aspects[aspect] = {
            "first": one.value,
            "first_error": one.error,
            "second": two.value,
            "second_error": two.error,
            "p": stats.paired_t(a, b),
        }
    wins = sum(winner == ("A" if leads else "B") for winner, leads in zip(chosen, order, strict=True))
    ties = chosen.count("tie")
    decided = len(chosen) - ties
    return {
        "aspects": aspects,
        "wins": {
            "first": wins,
            "second": decided - wins,
            "ties": ties,
            "rate": wins / decided if decided else None,
            "p": stats.binomial(wins, decided) if decided else None,
        },
        "texts": len(first),
    }


def measure_judge(
    store: Store,
    first: EvalModel,
    second: EvalModel,
    texts: tuple[Measurement, Measurement],
    asker: Asker,
    how: Matched,
    watch: Watch | None = None,
) -> Measurement:
    """The verdict on two `denoised` cells. Rank 0 asks; the others wait."""
    a, b = (cell.result["texts"] for cell in texts)

    def run() -> dict[str, Any]:
        found = [verdict(asker, a, b, how.seed, watch)] if store.world.is_main else []
        shown = [{"first": x, "second": y} for x, y in zip(a[:2], b[:2], strict=True)]
        return {
            **gathered(found, store.world)[0],
            "systems": [first.label, second.label],
            "model": asker.server.model,
            "samples": shown,
        }

    asked = {
        **asdict(how),
        "first": texts[0].hash,
        "second": texts[1].hash,
        "against": second.identity,
        "judge": asker.server.model,
        "base_url": asker.server.base_url,
        "temperature": asker.server.temperature,
    }
    return store.cell("judge", first, asked, run, texts[0].made.get("text", ""))
