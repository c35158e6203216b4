"""Controlled corruption and recovery (`tab:exact-recovery`): what is touched, what is restored, and what is damaged."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from scdd.core import UserError, Vocab
from scdd.core.rng import CounterRNG, derive_seed, integers, uniforms
from scdd.data.tokenizer import TextTokenizer
from scdd.evals.measure import stats
from scdd.evals.measure.diversity import entropy
from scdd.evals.measure.model import EvalModel
from scdd.evals.measure.progress import Watch, unwatched
from scdd.evals.measure.reference_lm import ReferenceLM, scored, short_ppl
from scdd.evals.measure.specs import RecoverySpec
from scdd.evals.measure.store import MeasureContext, Measurement, fingerprint, shared
from scdd.evals.measure.texts import Rows
from scdd.evals.measure.typos import KINDS, Piece, mistype, typed
from scdd.evals.measure.walk import StartRows, framed_rows, repaired
from scdd.samplers.base import Model

RATES = ("touch", "recovery", "damage")
SHOWN = 4  # repairs kept in a measurement for the report


class Repaired(NamedTuple):
    """N rows before and after; `hit` where a token was corrupted."""

    clean: Tensor  # [N, L]
    corrupted: Tensor  # [N, L]
    repaired: Tensor  # [N, L]
    hit: Tensor  # [N, L]


def corrupt(x: Tensor, count: int, vocab: Vocab, source: CounterRNG, frozen: Tensor) -> tuple[Tensor, Tensor]:
    """(Rows with `count` positions replaced by a uniformly drawn other token, where); frozen positions stay."""
    if int((~frozen).sum(1).min()) < count:
        raise UserError(f"{count} tokens are to be corrupted, and a row has fewer: use longer rows or a smaller K.")
    order = torch.where(frozen, 2.0, uniforms(x.shape, source)).argsort(1).argsort(1)
    hit = order < count
    ordinal = integers(vocab.K - 1, x.shape, source)  # of the K − 1 tokens that are not x
    own = x - (x > vocab.mask_id).to(x.dtype)
    return torch.where(hit, vocab.token(ordinal + (ordinal >= own).to(x.dtype)), x), hit


def recover(
    model: Model, rows: StartRows, spec: RecoverySpec, batch_size: int = 16, watch: Watch = unwatched
) -> Repaired:
    """Corrupt tokens of each clean row and let the model mend them."""
    clean, frozen, indices = rows
    source = CounterRNG(derive_seed(spec.seed, f"recovery {spec.count}"), list(indices), clean.device)
    corrupted, hit = corrupt(clean, spec.count, model.denoiser.vocab, source, frozen)
    start = StartRows(corrupted, frozen, indices)
    mended = repaired(model, spec.repair, start, spec.seed, batch_size, watch)
    return Repaired(clean.cpu(), corrupted.cpu(), torch.tensor(mended), hit.cpu())


def token_scores(rows: Repaired, framed: bool = True) -> dict[str, Any]:
    """Touch and recovery rates over corrupted tokens, damage over clean ones, each with its error over rows."""
    inside = slice(1, -1) if framed else slice(None)
    clean, before, after, hit = (part[:, inside] for part in rows)
    marks = ((after != before) & hit, (after == clean) & hit, (after != clean) & ~hit)
    among = (hit, hit, ~hit)
    return {
        name: stats.ratio(marked.sum(1).tolist(), whole.sum(1).tolist())._asdict()
        for name, marked, whole in zip(RATES, marks, among, strict=True)
    }


def _entropies(rows: Repaired) -> dict[str, Any]:
    """Of the corrupted and the repaired texts: repetition lowers a perplexity, too."""
    columns = {"entropy_corrupted": rows.corrupted, "entropy_repaired": rows.repaired}
    return {
        name: stats.mean([entropy(row) for row in tokens[:, 1:-1].tolist()])._asdict()
        for name, tokens in columns.items()
    }


def word_scores(
    pieces: Sequence[Sequence[Piece]],
    corrupted: Sequence[Sequence[int]],
    mended: Sequence[Sequence[int]],
    tokenizer: TextTokenizer,
) -> dict[str, Any]:
    """Touch, recovery and damage by words: the tokens under a word before and after tell what became of it.

    A diffusion model keeps the number of tokens, so an error that changed it can be touched and made readable, but seldom
    be undone letter by letter; a repeated word counts as recovered if nothing but white space is left of it.
    """
    per_text: list[dict[str, list[bool]]] = []
    kinds: dict[str, list[bool]] = {kind: [] for kind in KINDS}
    for words, old, new in zip(pieces, corrupted, mended, strict=True):
        marks: dict[str, list[bool]] = {name: [] for name in RATES}
        for piece, before, after in zip(words, *_words(words, old, new, tokenizer), strict=True):
            if piece.error:
                restored = after.strip() == piece.meant.strip()
                marks["touch"].append(after != before)
                marks["recovery"].append(restored)
                kinds[piece.error].append(restored)
            else:
                marks["damage"].append(after != before)
        per_text.append(marks)
    hits, counts = ({name: [f(marks[name]) for marks in per_text] for name in RATES} for f in (sum, len))
    return {
        **{name: stats.ratio(hits[name], counts[name])._asdict() for name in RATES},
        "errors": sum(counts["recovery"]) / max(len(per_text), 1),
        "recovery_by_kind": {kind: sum(marks) / len(marks) for kind, marks in kinds.items() if marks},
    }


def _words(
    words: Sequence[Piece], old: Sequence[int], new: Sequence[int], tokenizer: TextTokenizer
) -> tuple[list[str], list[str]]:
    """What stands under each word before and after: the text of the tokens that reach into it."""
    before, after = ([tokenizer.token(i) for i in row] for row in (old, new))
    ends, spans, place, first = tokenizer.ends(old), [], 0, 0
    for piece in words:
        stop = place + len(piece.typed)
        while first < len(ends) and ends[first] <= place:
            first += 1
        last = first
        while last < len(ends) and ends[last] < stop:
            last += 1
        spans.append(slice(first, last + 1))
        place = stop
    return ["".join(before[span]) for span in spans], ["".join(after[span]) for span in spans]


def measure_recovery(
    context: MeasureContext, model: EvalModel, rows: Rows, spec: RecoverySpec, reference: ReferenceLM | None = None
) -> Measurement:
    """Corrupt tokens of each row and mend them (`tab:exact-recovery`). All rows must be of one length."""

    def repairs(own: Sequence[list[int]], mine: range) -> list[tuple[Tensor, ...]]:
        start, size = framed_rows(own, mine, model.lm.device), context.samples_at_once
        return list(zip(*recover(model.engine.model, start, spec, size, context.watch), strict=True))

    def run() -> dict[str, Any]:
        every = shared(rows.rows, repairs, context.world)
        whole = Repaired(*(torch.stack(column) for column in zip(*every, strict=True)))
        texts = [[model.engine.text(row) for row in column.tolist()] for column in whole[:3]]
        return {**token_scores(whole), **_entropies(whole), **_shown(context, reference, texts, spec)}

    settings = _settings(model, rows.rows, spec, reference)
    return context.store.measurement("recovery", model, settings, run, rows.name)


def measure_typos(
    context: MeasureContext, model: EvalModel, rows: Rows, spec: RecoverySpec, reference: ReferenceLM | None = None
) -> Measurement:
    """The same with real typing errors in the text that each row begins with, scored by words."""
    # cut so that the errors' extra tokens still fit the context
    clean = [model.engine.text(row[1 : 1 + max(1, 3 * model.engine.room // 4)]) for row in rows.rows]

    def mended(index: int) -> tuple[list[Piece], list[int], list[int]]:
        """(Pieces, tokens with their errors, tokens mended) of one text, alone in its row."""
        pieces = mistype(clean[index], spec.count, derive_seed(spec.seed, f"typos {index}"))
        tokens = model.lm.tokenizer.encode(typed(pieces))
        if len(tokens) > model.engine.room:
            raise UserError(
                f"A text of {len(tokens)} tokens does not fit the context of {model.engine.room}: give shorter ones."
            )
        row = framed_rows([model.engine.framed(tokens)], range(index, index + 1), model.lm.device)
        [done] = repaired(model.engine.model, spec.repair, row, spec.seed, watch=context.watch)
        return pieces, tokens, done[1:-1]

    def run() -> dict[str, Any]:
        every = shared(clean, lambda own, mine: [mended(index) for index in mine], context.world)
        pieces, before, after = zip(*every, strict=True)
        texts = [clean, *([model.engine.text(row) for row in column] for column in (before, after))]
        words = word_scores(pieces, before, after, model.lm.tokenizer)
        return {**words, **_shown(context, reference, texts, spec)}

    settings = _settings(model, clean, spec, reference)
    return context.store.measurement("typos", model, settings, run, rows.name)


def _shown(
    context: MeasureContext, reference: ReferenceLM | None, texts: list[list[str]], spec: RecoverySpec
) -> dict[str, Any]:
    """Of clean, corrupted and repaired texts: a few repairs, and the perplexities where there is a reference LM."""
    pairs = list(zip(*texts[1:], strict=True))[:SHOWN]
    samples = [{"corrupted": before, "repaired": after} for before, after in pairs]
    about = {"rows": len(texts[0]), "nfe": spec.repair.evaluations, "samples": samples}
    if reference is None:
        return about
    names = ("ppl_clean", "ppl_corrupted", "ppl_repaired")
    ppl = [short_ppl(scored(context, reference, column), spec.seed) for column in texts]
    return {**about, "judge": reference.name, **dict(zip(names, ppl, strict=True))}


def _settings(model: EvalModel, texts: Any, spec: RecoverySpec, reference: ReferenceLM | None) -> dict[str, Any]:
    """What was asked, as plain data; refused of a model whose reverse process changes no visible token."""
    if not model.has_uniform_noise:
        raise UserError(
            f"{model.label} has no uniform noise in its process, so its reverse never changes a visible token: "
            "measure recovery of a model trained with p_u > 0."
        )
    repair = spec.repair.settled(model.lm.network.time_conditioning)
    scorer = {} if reference is None else reference.identity
    return {"text": fingerprint(texts), "count": spec.count, "seed": spec.seed, **repair, **scorer}
