"""How good repairs are, by words: distance to the nearest reference, GLEU, and edits that are right, wrong or left out.

A word is what stands between white space. Sentences have one or several references, any of which is as good as the others.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scdd.evals.measure import stats
from scdd.evals.measure.edit_kinds import KINDS, kind_of
from scdd.lm.edits.lexicon import english

Words = Sequence[str]
ORDERS = (1, 2, 3, 4)  # of GLEU's n-grams
BETA = 0.5  # precision counts twice as much as recall


class WordEdit(NamedTuple):
    """Words [start, end) of a sentence give way to `new`."""

    start: int
    end: int
    new: tuple[str, ...]


def distances(a: Words, b: Words) -> list[list[int]]:
    """The table of Levenshtein distances between beginnings of a and b."""
    rows = [list(range(len(b) + 1))]
    for i, x in enumerate(a, 1):
        above, row = rows[-1], [i]
        for j, y in enumerate(b, 1):
            row.append(min(row[-1] + 1, above[j] + 1, above[j - 1] + (x != y)))
        rows.append(row)
    return rows


def distance(a: Words, b: Words) -> int:
    """Words to insert, delete or substitute."""
    return distances(a, b)[-1][-1]


def edits(a: Words, b: Words) -> tuple[WordEdit, ...]:
    """A shortest way from a to b, what touches taken together; the same for the same pair, always."""
    table = distances(a, b)
    i, j = len(a), len(b)
    changed: list[tuple[int, int, int, int]] = []
    while i or j:
        if i and j and a[i - 1] == b[j - 1] and table[i][j] == table[i - 1][j - 1]:
            i, j = i - 1, j - 1
            continue
        if i and j and table[i][j] == table[i - 1][j - 1] + 1:
            step = (1, 1)
        elif i and table[i][j] == table[i - 1][j] + 1:
            step = (1, 0)
        else:
            step = (0, 1)
        if changed and changed[-1][0] == i and changed[-1][2] == j:
            _, end, _, stop = changed.pop()
        else:
            end, stop = i, j
        i, j = i - step[0], j - step[1]
        changed.append((i, end, j, stop))
    return tuple(WordEdit(low, high, tuple(b[start:stop])) for low, high, start, stop in reversed(changed))


class Counts(NamedTuple):
    """Edits of a repair that a reference has, that it has not, and that the repair has not."""

    right: int
    wrong: int
    missed: int

    def score(self) -> float:
        """F0.5; 1 where there is nothing to do and nothing was done."""
        return f_score(*self)


def f_score(right: float, wrong: float, missed: float) -> float:
    """(1 + β²)·right / ((1 + β²)·right + β²·missed + wrong)."""
    square = BETA**2
    below = (1 + square) * right + square * missed + wrong
    return (1 + square) * right / below if below else 1.0


class Compared(NamedTuple):
    """The edits themselves: right, wrong, and missed ones."""

    right: set[WordEdit]
    wrong: set[WordEdit]
    missed: set[WordEdit]

    @property
    def counts(self) -> Counts:
        """How many of each."""
        return Counts(*map(len, self))


def compared(source: Words, repaired: Words, references: Sequence[Words]) -> Compared:
    """Against the reference that is kindest to the repair."""
    mine = set(edits(source, repaired))
    every = []
    for reference in references:
        theirs = set(edits(source, reference))
        every.append(Compared(mine & theirs, mine - theirs, theirs - mine))
    return max(every, key=lambda each: (each.counts.score(), each.counts.right, -each.counts.missed))


def by_kind(sources: Sequence[Words], found: Sequence[Compared]) -> dict[str, dict[str, int]]:
    """Right, wrong and missed edits by the kind of mistake; kinds that nobody has are left out."""
    table = {kind: dict.fromkeys(Compared._fields, 0) for kind in KINDS}
    for words, each in zip(sources, found, strict=True):
        for name, some in each._asdict().items():
            for edit in some:
                table[kind_of(words[edit.start : edit.end], edit.new, english())][name] += 1
    return {kind: counts for kind, counts in table.items() if any(counts.values())}


def harmed(source: Words, repaired: Words, reference: Words) -> tuple[int, int]:
    """(Clean words that a repair changed, clean words): those that no edit of the reference touches."""
    theirs = edits(source, reference)
    hit = {i for each in theirs for i in range(each.start, max(each.end, each.start + 1))}
    clean = len(source) - len({i for each in theirs for i in range(each.start, each.end)})
    count = 0
    for each in edits(source, repaired):
        places = range(each.start, max(each.end, each.start + 1))
        if each not in theirs and not hit & set(places):
            count += len(places)
    return count, clean


def ngrams(words: Words, n: int) -> Counter[tuple[str, ...]]:
    """n-grams with their counts."""
    return Counter(tuple(words[i : i + n]) for i in range(len(words) - n + 1))


def gleu_counts(source: Words, repaired: Words, reference: Words) -> list[float]:
    """What corpus GLEU sums for a sentence: lengths of repair and reference, then matches and n-grams of each order.

    Matches are n-grams shared with the reference, less those shared with the source that the reference does not have
    (Napoles et al. 2015, without tuning as in 2016).
    """
    counts: list[float] = [len(repaired), len(reference)]
    for n in ORDERS:
        mine, theirs, given = (ngrams(words, n) for words in (repaired, reference, source))
        kept = Counter({gram: count for gram, count in given.items() if gram not in theirs})
        matched = sum((mine & theirs).values()) - sum((mine & kept).values())
        counts += [max(matched, 0), max(len(repaired) + 1 - n, 0)]
    return counts


def gleu(sums: Sequence[float] | NDArray[np.float64]) -> float:
    """GLEU of summed counts: the geometric mean of the precisions, with BLEU's brevity penalty."""
    mine, theirs, *rest = (float(value) for value in sums)
    matches, totals = rest[::2], rest[1::2]
    if not mine or min(matches) <= 0 or min(totals) <= 0:
        return 0.0
    brevity = min(0.0, 1 - theirs / mine)
    return math.exp(brevity + sum(math.log(m / t) for m, t in zip(matches, totals, strict=True)) / len(ORDERS))


def corpus_gleu(tables: Sequence[Sequence[Sequence[float]]], seed: int = 0, rounds: int = 200) -> dict[str, float]:
    """Mean over rounds in which every sentence draws one of its references, and the error of that mean over sentences.

    `tables` has, for each sentence, `gleu_counts` against each of its references. The bootstrap draws sentences and takes the
    mean over the same rounds again: which reference is drawn is averaged away there as it is in the value. The error is
    unknown (NaN) for a single sentence.
    """
    rng = np.random.default_rng(seed)
    arrays = [np.asarray(table, dtype=np.float64) for table in tables]
    n, counts = len(arrays), [len(array) for array in arrays]
    flat, first = np.concatenate(arrays), np.cumsum([0, *counts[:-1]])
    resampler = np.random.default_rng([seed, 1])
    # how often each sentence is in each resample
    times = resampler.multinomial(n, np.full(n, 1 / n), size=rounds).astype(np.float64)
    values, again = [], np.zeros(rounds)
    for _ in range(draws := rounds if max(counts) > 1 else 1):
        picks = flat[first + rng.integers(counts)]
        values.append(gleu(picks.sum(0)))
        again += _gleus(times @ picks) / draws
    return {"value": float(np.mean(values)), "error": float(np.std(again, ddof=1)) if n > 1 else math.nan}


def _gleus(sums: NDArray[np.float64]) -> NDArray[np.float64]:
    """`gleu` of every row."""
    mine, theirs, matches, totals = sums[:, 0], sums[:, 1], sums[:, 2::2], sums[:, 3::2]
    some = (mine > 0) & (matches > 0).all(1) & (totals > 0).all(1)
    found = np.zeros(len(sums))
    precisions = np.log(matches[some] / totals[some]).mean(1)
    found[some] = np.exp(np.minimum(0.0, 1 - theirs[some] / mine[some]) + precisions)
    return found


def scores(
    sources: Sequence[str], repaired: Sequence[str], references: Sequence[Sequence[str]], seed: int = 0
) -> dict[str, Any]:
    """Everything that is measured of repairs; errors are those of a bootstrap over sentences."""
    before, after, better, worse = [], [], 0, 0
    found: list[Compared] = []
    touched: list[bool] = []
    harm: list[tuple[int, int]] = []
    tables, given = [], []
    for source, mended, others in zip(sources, repaired, references, strict=True):
        src, out, refs = source.split(), mended.split(), [each.split() for each in others]
        d0, d1 = (min(distance(words, ref) for ref in refs) for words in (src, out))
        before.append(d0)
        after.append(d1)
        better, worse = better + (d1 < d0), worse + (d1 > d0)
        found.append(compared(src, out, refs))
        if d0 == 0:
            touched.append(src != out)
        harm.append(harmed(src, out, min(refs, key=lambda ref: distance(src, ref))))
        tables.append([gleu_counts(src, out, ref) for ref in refs])
        given.append([gleu_counts(src, src, ref) for ref in refs])
    a, b = np.asarray(before, dtype=np.float64), np.asarray(after, dtype=np.float64)
    c = np.asarray([each.counts for each in found], dtype=np.float64)
    n = len(a)

    def interval(statistic: Any) -> dict[str, float]:
        everything = np.arange(n)
        low, high = stats.bootstrap(statistic, n, seed)
        return {"value": float(statistic(everything)), "low": low, "high": high}

    return {
        "sentences": n,
        "before": int(a.sum()),
        "after": int(b.sum()),
        "change": interval(lambda i: (b[i].sum() - a[i].sum()) / max(a[i].sum(), 1.0)),
        "better": better,
        "worse": worse,
        "precision": interval(lambda i: _share(c[i, 0].sum(), c[i, 1].sum())),
        "recall": interval(lambda i: _share(c[i, 0].sum(), c[i, 2].sum())),
        "f05": interval(lambda i: f_score(*c[i].sum(0))),
        "kinds": by_kind([source.split() for source in sources], found),
        "gleu_before": corpus_gleu(given, seed),
        "gleu": corpus_gleu(tables, seed),
        "clean": len(touched),
        "clean_touched": stats.mean([float(each) for each in touched])._asdict() if touched else None,
        "harmed": stats.ratio([h for h, _ in harm], [w for _, w in harm])._asdict(),
    }


def _share(right: float, others: float) -> float:
    return float(right / (right + others)) if right + others else 1.0
