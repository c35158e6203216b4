"""Sanity checks of samples: a low perplexity is easily had by repetition, so these always stand beside it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

from scdd.evals.measure import stats

FIRST = 50
"""Words of a text that are counted: entropy grows with a text's length, so all have as many."""


def entropy(tokens: Sequence[int]) -> float:
    """Unigram entropy of one text in nats, `tab:entropy-comparison`; 0 for an empty one."""
    counts, total = Counter(tokens), len(tokens)
    return -sum(n / total * math.log(n / total) for n in counts.values()) if total else 0.0


def distinct(tokens: Sequence[int], n: int) -> float:
    """Different n-grams over all n-grams of one text; 1 where there is none to repeat."""
    grams = [tuple(tokens[i : i + n]) for i in range(len(tokens) - n + 1)]
    return len(set(grams)) / len(grams) if grams else 1.0


def repetition(tokens: Sequence[int], window: int = 128) -> float:
    """Share of tokens that already stand among the `window` tokens before them (Welleck's rep/ℓ)."""
    seen: Counter[int] = Counter()
    hits = 0
    for i, token in enumerate(tokens):
        hits += seen[token] > 0
        seen[token] += 1
        if i >= window:
            seen[tokens[i - window]] -= 1
    return hits / len(tokens) if tokens else 0.0


def in_words(texts: Sequence[str], first: int = FIRST) -> dict[str, Any]:
    """Diversity in a unit that models of any vocabulary share: the first words of each text that has as many, in lower case."""
    words = [text.lower().split()[:first] for text in texts]
    whole = [each for each in words if len(each) == first]
    if not whole:
        return {"words": first, "texts": 0}
    numbers = {word: i for i, word in enumerate(dict.fromkeys(word for each in whole for word in each))}
    tokens = [[numbers[word] for word in each] for each in whole]
    return {
        "words": first,
        "texts": len(whole),
        "entropy": stats.mean([entropy(each) for each in tokens])._asdict(),
        "distinct_2": stats.mean([distinct(each, 2) for each in tokens])._asdict(),
    }


def diversity(texts: Sequence[Sequence[int]], seed: int = 0) -> dict[str, Any]:
    """Means over texts with errors, and a bootstrap interval of the entropy; distinct-n over the whole corpus too."""
    values = [entropy(tokens) for tokens in texts]
    low, high = stats.bootstrap(lambda i: float(sum(values[j] for j in i) / len(i)), len(values), seed)
    return {
        "entropy": stats.mean(values)._asdict(),
        "entropy_low": low,
        "entropy_high": high,
        "repetition": stats.mean([repetition(tokens) for tokens in texts])._asdict(),
        "length": stats.mean([float(len(tokens)) for tokens in texts])._asdict(),
        **{f"distinct_{n}": stats.mean([distinct(tokens, n) for tokens in texts])._asdict() for n in (1, 2, 3)},
    }
