"""Fit what `scdd correct --mode edit` decides by, on errors made in clean text.

    python tools/fit_repair.py words TEXT… --out src/scdd/assets/edits/words.txt.xz
    python tools/fit_repair.py examples TEXT… --model bundled --num 400 --out examples.jsonl
    python tools/fit_repair.py fit examples.jsonl… --out src/scdd/assets/edits/channel.json

`words` counts the words of clean text. `examples` spoils sentences of clean text, asks the model about every candidate edit and
writes its features down, and whether it undoes an error; a run that was stopped goes on where it was. `fit` finds the weights by
which the right candidate, or none, is likeliest. The margin is that of a text with few errors, and each kind of edit pays what it takes
beyond that to harm no more than its part of HARM of the clean words of sentences that were not fitted on: by the tail of its wrong
log-odds, since few are seen. Give texts of several sorts: of what the model has read, it is too sure. A model brings its own
parameters where its meta.json has them as extra.edits.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Annotated, Any

import numpy as np
import torch
import typer
from torch import Tensor

import scdd
from scdd.core.rng import derive_seed
from scdd.data.corpus import read
from scdd.data.files import write_atomically, write_json
from scdd.evals.measure.pairs import clean_sentences
from scdd.evals.measure.slips import Slip, spoil
from scdd.lm.edits.candidates import Candidate
from scdd.lm.edits.channel import FEATURES, GROUPS, KINDS, Channel, easy
from scdd.lm.edits.lexicon import Lexicon, english, packed
from scdd.lm.edits.reading import Reader
from scdd.lm.edits.search import Editor, windows
from scdd.lm.edits.words import Word, cut

WORD = re.compile(r"(?<![\w'’-])[^\W\d_]+(?:['’][^\W\d_]+)*(?!\w)")
SEEN, SEEN_AS_NAME = 3, 10  # times that a word must occur
MISTYPED = 1 << 17
SPOILT = 0.08  # of the words of an example
HARM = 0.0002  # of the clean words, at most, all kinds of edits together
FEW = 0.01  # words in a text with few errors that are wrong; an edit is to be likelier right than wrong there
TAIL = -1.0  # log-odds from which on wrong ones are taken for the tail of their distribution
SEEN_BEFORE = 2  # wrong ones with a mean excess of 1, put to those that were seen
MARGIN = math.log(SPOILT / (1 - SPOILT)) - math.log(FEW / (1 - FEW))
HALF = 0.5  # added to small counts
FOLDS = 5
PENALTY = 0.1  # of squared weights, on the scales below, for all examples together
SCALES = {"span": 5.0, "beside": 3.0, "count": 5.0, "distance": 2.0}

app = typer.Typer(add_completion=False, help=(__doc__ or "").split("\n")[0])
Texts = Annotated[list[str], typer.Argument(metavar="TEXT…")]
Out = Annotated[Path, typer.Option(help="File to write.")]


@app.command()
def words(texts: Texts, out: Out) -> None:
    """Count the words of clean text, lower case and names apart."""
    lower, names = Counter[str](), Counter[str]()
    for document in read(texts):
        text = document.replace("’", "'")
        for match in WORD.finditer(text):
            word, before = match[0], text[max(0, match.start() - 2) : match.start()]
            if not word.isascii():
                continue
            if word[0].islower():
                lower[word] += word == word.lower()
            elif len(before) == 2 and before[1] == " " and (before[0].isalnum() or before[0] == ","):
                names[word] += word[1:] == word[1:].lower()  # a capital inside a sentence
    kept = {word: count for word, count in lower.items() if count >= SEEN}
    kept |= {w: n for w, n in names.items() if n >= SEEN_AS_NAME and n > 2 * lower[w.lower()]}
    for word in mistyped(kept):
        del kept[word]
    write_atomically(out, packed(kept))
    typer.echo(f"{len(kept):,} words in {out.stat().st_size:,} bytes")


def mistyped(counts: Mapping[str, int]) -> set[str]:
    """Words that are an easy slip of one MISTYPED times as common ("teh"): clean texts have some, and nobody means them."""
    lexicon = Lexicon({word: math.log2(count) for word, count in counts.items()})
    common = [word for word, count in counts.items() if count >= MISTYPED and len(word) > 2 and word.islower()]
    return {
        other
        for word in common
        for other in lexicon.near(word)
        if counts[word] >= MISTYPED * counts[other] and len(other) > 2 and easy(other, word)
    }


@app.command()
def examples(
    texts: Texts,
    out: Out,
    model: Annotated[str, typer.Option(help="As `scdd correct --model` takes it.")] = "bundled",
    num: Annotated[int, typer.Option(help="Sentences.")] = 400,
    seed: int = 0,
    dtype: Annotated[str | None, typer.Option(help="As `scdd correct --dtype` takes it.")] = None,
) -> None:
    """Spoil sentences and write down what the model says of every candidate."""
    lm = scdd.load(None if model == "bundled" else model, dtype=dtype)
    editor = Editor(lm.engine, english(), Channel({}, dict.fromkeys(KINDS, 0.0), 0.0), 0.1, seed)
    sentences = clean_sentences(texts, num)
    done = len(out.read_text(encoding="utf-8").splitlines()) if out.exists() else 0
    with out.open("a", encoding="utf-8") as file:
        for i in range(done, len(sentences)):
            spoilt, slips = spoil(sentences[i], SPOILT, Random(derive_seed(seed, f"example {i}")), english())
            file.write(json.dumps({"text": spoilt, **_example(editor, spoilt, slips)}, ensure_ascii=False) + "\n")
            file.flush()


def _example(editor: Editor, text: str, slips: Sequence[Slip]) -> dict[str, Any]:
    """The sites of a text: candidates that exclude each other, with their features, and which of them is right."""
    found, reader = cut(text), Reader(editor.engine)
    sites: dict[str, list[dict[str, Any]]] = {}
    for window, core in windows(reader, found, set(range(len(found)))):
        for judged in editor.judged(reader, window, core):
            candidate = judged.candidate
            right = undoes(text, found, candidate, slips)
            one = {"kind": candidate.kind, "new": candidate.new, "features": judged.features, "right": right}
            gap = candidate.first == candidate.last
            sites.setdefault(f"{candidate.first}{' gap' if gap else ''}", []).append(one)
    spoilt = [hit(found, name, slips) for name in sites]
    kept = [site for site, bad in zip(sites.values(), spoilt, strict=True) if not bad or any(c["right"] for c in site)]
    return {"sites": kept, "clean": sum(word.is_word for word in found) - len(slips), "errors": len(slips)}


def undoes(text: str, found: Sequence[Word], candidate: Candidate, slips: Sequence[Slip]) -> bool:
    """Whether a candidate puts back what was meant at one of the errors."""
    start, end, new = candidate.written(found)
    made = " ".join((text[:start] + new + text[end:]).split())
    return any(made == " ".join((text[: s.start] + s.meant + text[s.end :]).split()) for s in slips)


def hit(found: Sequence[Word], site: str, slips: Sequence[Slip]) -> bool:
    """Whether an error lies at a site: nothing can be learnt from it unless the right candidate is there."""
    word = found[min(int(site.split()[0]), len(found) - 1)]
    return any(s.start <= word.end and word.start - len(word.gap) <= s.end for s in slips)


@app.command()
def fit(files: Annotated[list[Path], typer.Argument(metavar="EXAMPLES…")], out: Out) -> None:
    """Weights and margin from examples."""
    rows = [json.loads(line) for file in files for line in file.read_text(encoding="utf-8").splitlines()]
    held = []  # log-odds of candidates in sentences that were not fitted on
    for fold in range(FOLDS):
        channel = fitted([row for i, row in enumerate(rows) if i % FOLDS != fold])
        held += [(row, channel) for i, row in enumerate(rows) if i % FOLDS == fold]
    channel, pays = fitted(rows), prices(held)
    write_json(out, priced(channel, pays).json())
    typer.echo(f"{len(rows)} sentences, {sum(len(row['sites']) for row in rows)} sites; margin {MARGIN:.2f}")
    for line in summary([(row, priced(channel, pays)) for row, channel in held], pays):
        typer.echo(line)


def fitted(rows: Sequence[dict[str, Any]]) -> Channel:
    """The weights under which the right candidates, or none, are likeliest: a softmax over each site, none having log-odds 0."""
    sites = [site for row in rows for site in row["sites"]]
    names = [*KINDS, *((group, name) for group in dict.fromkeys(GROUPS.values()) for name in FEATURES)]
    column = {name: i for i, name in enumerate(names)}
    most = max(len(site) for site in sites)
    x = np.zeros((len(sites), most, len(names)))
    there = np.zeros((len(sites), most), dtype=bool)
    label = np.full(len(sites), most)  # the last one is "none"
    for s, site in enumerate(sites):
        for c, one in enumerate(site):
            there[s, c] = True
            x[s, c, column[one["kind"]]] = 1.0
            for name, value in one["features"].items():
                x[s, c, column[GROUPS[one["kind"]], name]] = value / SCALES.get(name, 1.0)
            if one["right"]:
                label[s] = c
    theta = _maximised(*(torch.from_numpy(each) for each in (x, there, label)))
    bias = {kind: theta[column[kind]] for kind in KINDS}
    weights = {
        group: {name: theta[column[group, name]] / SCALES.get(name, 1.0) for name in FEATURES}
        for group in dict.fromkeys(GROUPS.values())
    }
    return Channel(weights, bias, 0.0)


def _maximised(x: Tensor, there: Tensor, label: Tensor) -> list[float]:
    theta = torch.zeros(x.shape[-1], dtype=torch.float64, requires_grad=True)
    theta.data[: len(KINDS)] = -4.0  # a kind that was never seen stays unlikely
    start = theta.detach().clone()
    optimiser = torch.optim.LBFGS([theta], max_iter=300, history_size=20, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimiser.zero_grad()
        scores = (x @ theta).masked_fill(~there, -torch.inf)
        scores = torch.cat([scores, torch.zeros(len(scores), 1, dtype=torch.float64)], 1)
        value = torch.nn.functional.cross_entropy(scores, label, reduction="sum")
        total = value + PENALTY * ((theta - start) ** 2).sum()
        total.backward()
        return total

    optimiser.step(loss)  # type: ignore[no-untyped-call]
    return [float(value) for value in theta.detach()]


def _best(held: Sequence[tuple[dict[str, Any], Channel]]) -> Iterator[tuple[float, bool | None, str]]:
    """Of every site the likeliest candidate: its log-odds, whether it is right, and its kind.

    A wrong one where something was to be mended harms nothing: None.
    """
    for row, channel in held:
        for site in row["sites"]:
            odds = [channel.log_odds(one["kind"], one["features"]) for one in site]
            best = max(range(len(site)), key=odds.__getitem__)
            spoilt = any(one["right"] for one in site)
            yield odds[best], site[best]["right"] if site[best]["right"] or not spoilt else None, site[best]["kind"]


def prices(held: Sequence[tuple[dict[str, Any], Channel]]) -> dict[str, float]:
    """By kind: what its log-odds must exceed MARGIN by, so that it harms at most its part of HARM of the clean words.

    Its part is that of the errors that it could undo: harm must be worth the same help, whatever the kind.
    """
    best, could = list(_best(held)), possible(held)
    allowed = HARM * sum(row["clean"] for row, _ in held)
    found = {}
    for kind in KINDS:
        wrong = [odds for odds, right, its in best if right is False and its == kind]
        part = (could[kind] + HALF) / (sum(could.values()) + HALF * len(KINDS))
        found[kind] = max(0.0, clear(wrong, allowed * part) - MARGIN)
    return found


def possible(held: Sequence[tuple[dict[str, Any], Channel]]) -> Counter[str]:
    """Errors that some candidate would undo, by its kind."""
    return Counter(one["kind"] for row, _ in held for site in row["sites"] for one in site if one["right"])


def clear(wrong: Sequence[float], allowed: float) -> float:
    """Log-odds that `allowed` of the wrong ones are expected to exceed: those above TAIL are taken for exponential.

    A fraction of an edit may be allowed, which counting could not tell from none. The mean excess is 1 where nothing was seen, as
    of odds that are what they say.
    """
    excess = [odds - TAIL for odds in wrong if odds > TAIL]
    mean = (sum(excess) + SEEN_BEFORE) / (len(excess) + SEEN_BEFORE)
    return TAIL + mean * math.log((len(excess) + HALF) / allowed)


def priced(channel: Channel, pays: Mapping[str, float]) -> Channel:
    """The channel with what each kind pays taken off its bias."""
    return Channel(channel.weights, {kind: channel.bias[kind] - pays[kind] for kind in KINDS}, MARGIN)


def summary(held: Sequence[tuple[dict[str, Any], Channel]], pays: Mapping[str, float]) -> Iterator[str]:
    """What would be right and wrong at the margin, and at others; at the margin by kind, and what the kind pays."""
    best, clean, errors = list(_best(held)), sum(r["clean"] for r, _ in held), sum(r["errors"] for r, _ in held)
    could = possible(held)
    for level in (MARGIN, *(MARGIN + more for more in (-2.0, -1.0, 1.0, 2.0))):
        right, wrong = (sum(o > level and r is wanted for o, r, _ in best) for wanted in (True, False))
        yield f"margin {level:.2f}: {right / errors:.3f} of errors undone, {wrong / clean:.5f} of clean words harmed"
    for kind in KINDS:
        right, wrong = (sum(o > MARGIN and r is wanted and k == kind for o, r, k in best) for wanted in (True, False))
        yield f"{kind:>10}: {right} right and {wrong} wrong of {could[kind]} that could be right; pays {pays[kind]:.2f}"


if __name__ == "__main__":
    app()
