"""The measurements as cells: each function asks the store first, and measures on every rank what is not there."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import torch

from scdd.core.errors import UserError
from scdd.core.rng import derive_seed
from scdd.evals import stats
from scdd.evals.cells import Measurement, Store, gathered, share
from scdd.evals.correction import rates
from scdd.evals.diversity import diversity
from scdd.evals.gen_ppl import Judge, Scored, gen_ppl
from scdd.evals.generation import SamplingSpec, draw, ended
from scdd.evals.likelihood import NelboEstimator, Watch, combined, likelihood
from scdd.evals.recovery import Repair, mend, recover, scores, typed_scores
from scdd.evals.subject import EvalModel
from scdd.evals.texts import Rows
from scdd.evals.typos import mistype, typed
from scdd.evals.walk import Engine
from scdd.samplers.base import noisy

SHOWN = 4  # texts kept in a cell for the report


def fingerprint(value: Any) -> str:
    """A short hash of plain data: which texts a number is about."""
    return hashlib.sha256(json.dumps(value, ensure_ascii=False).encode()).hexdigest()[:16]


def measure_likelihood(
    store: Store,
    subject: EvalModel,
    rows: Rows,
    how: NelboEstimator,
    batch_size: int = 16,
    watch: Watch | None = None,
) -> Measurement:
    """`likelihood` of framed rows."""

    def run() -> dict[str, Any]:
        mine = share(len(rows), store.world)
        lm = subject.lm
        found = likelihood(
            lm.network,
            lm.process,
            rows.rows[mine.start : mine.stop],
            how,
            first=mine.start,
            batch_size=batch_size,
            device=lm.device,
            watch=watch,
        )
        return combined(gathered(found, store.world), rows.bytes).json()

    # An autoregressive model's number is exact: it has no looks to set.
    settings = {} if subject.process is None else asdict(how)
    return store.cell("likelihood", subject, {"text": fingerprint(rows.rows), **settings}, run, rows.name)


def measure_samples(
    store: Store, subject: EvalModel, way: SamplingSpec, batch_size: int = 16, watch: Watch | None = None
) -> Measurement:
    """Draw the samples of `way`: texts, diversity, corrections and evaluations."""

    def run() -> dict[str, Any]:
        drawn = draw(subject, way, store.world, batch_size, watch)
        length = len(drawn.before[0])
        return {
            "texts": drawn.texts,
            "before": [
                subject.lm.engine.text(ended(row, subject.lm.tokenizer.eos_id)) for row in drawn.before
            ],
            "nfe": stats.mean([float(n) for n in drawn.nfe])._asdict(),
            "sampler": drawn.settings.sampler.name,
            "final": drawn.settings.final,
            "steps": len(drawn.settings.grid) - 1,
            "filters": asdict(drawn.settings.filters),
            "diversity": diversity(drawn.tokens, way.seed),
            "correction": rates(drawn.moves, length, subject.process, drawn.settings.grid),
            "length": length,
        }

    return store.cell("samples", subject, way.settled(subject.lm), run)


def judged(store: Store, judge: Judge, texts: Sequence[str], watch: Watch | None = None) -> list[Scored]:
    """Scores of the texts, each rank judging its share."""
    mine = share(len(texts), store.world)
    return gathered(judge.score(texts[mine.start : mine.stop], watch), store.world)


def measure_generation(
    store: Store,
    subject: EvalModel,
    way: SamplingSpec,
    judge: Judge,
    batch_size: int = 16,
    watch: Watch | None = None,
) -> Measurement:
    """Generative perplexity with diversity beside it (`tab:genppl-comparison`, `tab:entropy-comparison`)."""
    samples = measure_samples(store, subject, way, batch_size, watch).result

    def run() -> dict[str, Any]:
        found = gen_ppl(judged(store, judge, samples["texts"], watch), way.seed)
        kept = {
            name: samples[name]
            for name in ("nfe", "sampler", "final", "steps", "filters", "diversity", "length")
        }
        return {**found, **kept, "judge": judge.name, "samples": samples["texts"][:SHOWN]}

    return store.cell("generation", subject, {**way.settled(subject.lm), **judge.identity}, run)


def measure_correction(
    store: Store,
    subject: EvalModel,
    way: SamplingSpec,
    judge: Judge | None = None,
    batch_size: int = 16,
    watch: Watch | None = None,
) -> Measurement:
    """Correction rates beside the intrinsic ones (`tab:correction_rate`); with a judge, what the corrections are worth."""
    if subject.process is None:
        raise UserError(f"{subject.label} is autoregressive and corrects nothing: measure a diffusion model.")
    samples = measure_samples(store, subject, way, batch_size, watch).result
    plain = None
    if judge is not None and noisy(subject.process):
        plain = measure_samples(store, subject, replace(way, correct=False), batch_size, watch).result

    def run() -> dict[str, Any]:
        found: dict[str, Any] = {
            **samples["correction"],
            "sampler": samples["sampler"],
            "nfe": samples["nfe"],
        }
        if judge is None:
            return found
        after = judged(store, judge, samples["texts"], watch)
        before = judged(store, judge, samples["before"], watch)
        found["judge"] = judge.name
        found["ppl_after"] = _short(gen_ppl(after, way.seed))
        found["ppl_before"] = _short(gen_ppl(before, way.seed))
        found["benefit"] = _benefit(before, after)
        if plain is not None:
            without = judged(store, judge, plain["texts"], watch)
            found["ppl_uncorrected"] = _short(gen_ppl(without, way.seed))
            found["p_uncorrected"] = stats.difference(_pair(after), _pair(without))
        return found

    asked = {**way.settled(subject.lm), **({} if judge is None else judge.identity)}
    return store.cell("correction", subject, asked, run)


def _short(found: dict[str, Any]) -> dict[str, Any]:
    return {name: found[name] for name in ("ppl", "error", "low", "high", "texts")}


def _pair(found: Sequence[Scored]) -> tuple[list[float], list[float]]:
    return [s.nats for s in found], [float(s.tokens) for s in found]


def _benefit(before: Sequence[Scored], after: Sequence[Scored]) -> dict[str, Any]:
    """Nats a token that the corrections gain, text by text; positive is better."""
    pairs = [
        (b.nats / b.tokens, a.nats / a.tokens)
        for b, a in zip(before, after, strict=True)
        if b.tokens and a.tokens
    ]
    gains = [b - a for b, a in pairs]
    return {**stats.mean(gains)._asdict(), "p": stats.paired_t([b for b, _ in pairs], [a for _, a in pairs])}


def measure_recovery(
    store: Store,
    subject: EvalModel,
    rows: Rows,
    count: int,
    repair: Repair,
    judge: Judge | None = None,
    seed: int = 0,
    batch_size: int = 16,
    watch: Watch | None = None,
) -> Measurement:
    """Corrupt `count` tokens of each row and mend them (`tab:exact-recovery`). All rows must be of one length."""
    _diffusion(subject)
    text = subject.lm.engine.text

    def run() -> dict[str, Any]:
        mine = share(len(rows), store.world)
        engine = Engine(subject.lm.network, subject.process)
        x = torch.tensor(rows.rows[mine.start : mine.stop], device=subject.lm.device).view(len(mine), -1)
        part = recover(
            engine, x, count, repair, seed=seed, first=mine.start, batch_size=batch_size, watch=watch
        )
        every = gathered(list(zip(*part, strict=True)), store.world)
        whole = type(part)(*(torch.stack(column) for column in zip(*every, strict=True)))
        found: dict[str, Any] = {**scores(whole), "rows": len(rows), "nfe": repair.nfe}
        if judge is not None:
            found["judge"] = judge.name
            for name, tokens in (
                ("clean", whole.clean),
                ("corrupted", whole.corrupted),
                ("repaired", whole.repaired),
            ):
                texts = [text(row) for row in tokens.tolist()]
                found[f"ppl_{name}"] = _short(gen_ppl(judged(store, judge, texts, watch), seed))
        shown = (
            (text(b), text(a)) for b, a in zip(whole.corrupted.tolist(), whole.repaired.tolist(), strict=True)
        )
        found["samples"] = [
            {"corrupted": b, "repaired": a} for (b, a), _ in zip(shown, range(SHOWN), strict=False)
        ]
        return found

    settings = {"text": fingerprint(rows.rows), "count": count, "seed": seed, **repair.json()}
    asked = {**settings, **({} if judge is None else judge.identity)}
    return store.cell("recovery", subject, asked, run, rows.name)


def measure_typos(
    store: Store,
    subject: EvalModel,
    texts: Sequence[str],
    count: int,
    repair: Repair,
    judge: Judge | None = None,
    seed: int = 0,
    watch: Watch | None = None,
    name: str = "",
) -> Measurement:
    """The same with real typing errors, scored by words. Texts must fit into the context."""
    _diffusion(subject)
    lm = subject.lm

    def run() -> dict[str, Any]:
        mine = share(len(texts), store.world)
        rows = [_repaired(subject, texts[i], count, repair, seed, i, watch) for i in mine]
        every = gathered(rows, store.world)
        pieces, before, after = (list(column) for column in zip(*every, strict=True))
        found = typed_scores(pieces, before, after, lm.tokenizer)
        if judge is not None:
            found["judge"] = judge.name
            found["ppl_clean"] = _short(gen_ppl(judged(store, judge, list(texts), watch), seed))
            for name, column in (("corrupted", 1), ("repaired", 2)):
                shown = [lm.engine.text(row[column]) for row in every]
                found[f"ppl_{name}"] = _short(gen_ppl(judged(store, judge, shown, watch), seed))
        found["samples"] = [
            {"corrupted": lm.engine.text(o), "repaired": lm.engine.text(n)} for _, o, n in every[:SHOWN]
        ]
        return {**found, "rows": len(texts), "nfe": repair.nfe}

    settings = {"text": fingerprint(list(texts)), "count": count, "seed": seed, **repair.json()}
    asked = {**settings, **({} if judge is None else judge.identity)}
    return store.cell("typos", subject, asked, run, name)


def typing_texts(subject: EvalModel, rows: Rows) -> list[str]:
    """The rows as texts to mistype, cut so that the errors' extra tokens still fit the context."""
    room = max(1, 3 * subject.lm.engine.room // 4)
    return [subject.lm.engine.text(row[1 : 1 + room]) for row in rows.rows]


def _diffusion(subject: EvalModel) -> None:
    if subject.process is None or not noisy(subject.process):
        raise UserError(
            f"{subject.label} has no uniform noise in its process, so its reverse never changes a visible token: "
            "measure recovery of a model trained with p_u > 0."
        )


def _repaired(
    subject: EvalModel, text: str, count: int, repair: Repair, seed: int, index: int, watch: Watch | None
) -> tuple[Any, list[int], list[int]]:
    """(Pieces, tokens with their errors, tokens mended) of one text, alone in its row."""
    engine = subject.lm.engine
    pieces = mistype(text, count, derive_seed(seed, f"typos {index}"))
    tokens = engine.tokenizer.encode(typed(pieces))
    if len(tokens) > engine.room:
        raise UserError(
            f"A text of {len(tokens)} tokens does not fit the context of {engine.room}: give shorter ones."
        )
    z = torch.tensor([engine.framed(tokens)], device=engine.device)
    frozen = torch.zeros_like(z, dtype=torch.bool)
    frozen[:, 0] = frozen[:, -1] = True
    done = mend(Engine(engine.denoiser, engine.process), repair, z, frozen, [index], seed, watch=watch)
    return pieces, tokens, done[0, 1:-1].tolist()
