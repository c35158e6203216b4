"""The noisy channel: how much likelier an edit makes the text, against how seldom writers err in just that way.

The log-odds of a candidate against leaving the text as it is are linear in a few features: what the model gains in the span and
beside it, how many tokens more there are, how common the words are, how far the spelling is. The weights are fitted for each group
of kinds on errors that were made in clean text (`tools/fit_repair.py`), where TEXT_ERRORS of the words were spoilt.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from scdd.core.errors import UserError
from scdd.lm.edits.candidates import FAMILIAR, Candidate
from scdd.lm.edits.grammar import formed
from scdd.lm.edits.lexicon import UNKNOWN, Lexicon
from scdd.lm.edits.near import within_one
from scdd.lm.edits.reading import Query, Reader
from scdd.lm.edits.words import Word

GROUPS = {
    "spelling": "spelling", "case": "spelling", "split": "spelling", "join": "spelling",
    "near": "word", "slip": "word", "form": "word", "confusion": "word",
    "insert": "insert", "delete": "delete", "repeat": "repeat", "swap": "swap", "fill": "fill",
}  # fmt: skip
KINDS = tuple(GROUPS)
FEATURES = (
    *["span", "beside", "doubt", "tokens", "count", "distance", "easy", "shorter", "head", "unknown", "first"],
    *["formed", "letters", "again", "around", "rare"],
)
CONTEXT = 20  # words that the model sees on either side of an edit
USUAL = 0.1  # the strength at which odds are as they were fitted
KEYS = ("qwertyuiop", "asdfghjkl", "zxcvbnm")
VOWELS = frozenset("aeiouy")
ALIKE = frozenset(map(frozenset, ("bp", "ck", "cs", "dt", "fv", "gj", "gk", "mn", "sz")))  # consonants that sound alike


@dataclass(frozen=True)
class Channel:
    """Weights of the features by group, a bias by kind, and the log-odds from which on an edit is clear."""

    weights: Mapping[str, Mapping[str, float]]
    bias: Mapping[str, float]
    margin: float

    def log_odds(self, kind: str, features: Mapping[str, float]) -> float:
        """Of an edit against none, at the usual strength."""
        weights = self.weights.get(GROUPS[kind], {})
        return self.bias.get(kind, -math.inf) + sum(weights.get(name, 0.0) * value for name, value in features.items())

    @classmethod
    def of(cls, plain: Any, place: str) -> Channel:
        """From plain data of a file, checked."""
        try:
            weights = {str(group): _numbers(each, FEATURES) for group, each in plain["weights"].items()}
            bias, margin = _numbers(plain["bias"], KINDS), float(plain["margin"])
            if not set(weights) <= set(GROUPS.values()) or not math.isfinite(margin):
                raise ValueError("unknown groups, or a margin that is no number")
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise UserError(f"{place} has wrong edit parameters ({str(error)[:100]}): fit them again.") from error
        return cls(weights, bias, margin)

    def json(self) -> dict[str, Any]:
        """Plain data, as files hold it."""
        return {"weights": self.weights, "bias": self.bias, "margin": self.margin}


def _numbers(plain: Any, names: Sequence[str]) -> dict[str, float]:
    numbers = {str(name): float(value) for name, value in plain.items()}
    if not set(numbers) <= set(names) or not all(map(math.isfinite, numbers.values())):
        raise ValueError("unknown names, or numbers that are none")
    return numbers


@cache
def usual_channel() -> Channel:
    """The parameters that come with the package."""
    path = files("scdd").joinpath("assets/edits/channel.json")
    return Channel.of(json.loads(path.read_text(encoding="utf-8")), "assets/edits/channel.json")


def shift(strength: float) -> float:
    """What a strength adds to log-odds: it is the share of a text that is taken for wrong."""
    least = 1e-12
    return math.log(max(strength, least) / max(1 - strength, least)) - math.log(USUAL / (1 - USUAL))


def features(
    reader: Reader, words: Sequence[Word], candidates: Sequence[Candidate], lexicon: Lexicon, doubt: Sequence[float]
) -> list[dict[str, float]]:
    """The features of each candidate; the model is asked about all of them at once."""
    queries: list[Query] = []
    parts: list[tuple[slice, slice, slice, slice, int]] = []
    for candidate in candidates:
        old = [token for word in words[candidate.first : candidate.last] for token in reader.tokens(word.read)]
        new = [token for piece in candidate.pieces(words) for token in reader.tokens(piece)]
        slices = []
        for span in (old, new):
            for part in _questions(reader, words, candidate, span):
                slices.append(slice(len(queries), len(queries) + len(part)))
                queries += part
        parts.append((slices[0], slices[1], slices[2], slices[3], len(new) - len(old)))
    log_p = [answer.log_p[0] for answer in reader.ask(queries)]
    made = []
    for candidate, (old_span, old_beside, new_span, new_beside, tokens) in zip(candidates, parts, strict=True):
        values = {
            "span": sum(log_p[new_span]) - sum(log_p[old_span]),
            "beside": sum(log_p[new_beside]) - sum(log_p[old_beside]),
            "doubt": math.log1p(max(doubt[candidate.first : max(candidate.last, candidate.first + 1)])),
            "tokens": float(tokens),
            "around": _around(words, candidate, doubt),
        }
        made.append({**values, **_spelling(words, candidate, lexicon)})
    return made


def _around(words: Sequence[Word], candidate: Candidate, doubt: Sequence[float]) -> float:
    """How much the model doubts the other words: what it says of a text that is strange to it is worth less."""
    span = range(candidate.first, max(candidate.last, candidate.first + 1))
    others = [value for i, value in enumerate(doubt) if i not in span and words[i].is_word]
    return math.log1p(sum(others) / len(others)) if others else 0.0


def context_of(reader: Reader, words: Sequence[Word], first: int, last: int, size: int) -> tuple[list[int], list[int]]:
    """Tokens on either side of words [first, last), as many as fit beside `size` others."""
    left = [t for word in words[max(0, first - CONTEXT) : first] for t in reader.tokens(word.read)]
    right = [t for word in words[last : last + CONTEXT] for t in reader.tokens(word.read)]
    half = max(0, reader.engine.room - size) // 2
    return left[max(0, len(left) - half) :], right[:half]


def _questions(
    reader: Reader, words: Sequence[Word], candidate: Candidate, span: Sequence[int]
) -> tuple[list[Query], list[Query]]:
    """(About the span: each token given those before it, the rest of the span masked; about its two neighbours)."""
    left, right = context_of(reader, words, candidate.first, candidate.last, len(span))
    mask = reader.mask
    inside = [
        Query((*left, *span[:j], *[mask] * (len(span) - j), *right), len(left) + j, (token,))
        for j, token in enumerate(span)
    ]
    beside = []
    # with something visible between them, both neighbours are masked at once
    sides = [(bool(left), bool(right))] if span else [(bool(left), False), (False, bool(right))]
    for on_left, on_right in sides:
        row = (*left[:-1], *([mask] if on_left else left[-1:]), *span, *([mask] if on_right else right[:1]), *right[1:])
        if on_left:
            beside.append(Query(row, len(left) - 1, (left[-1],)))
        if on_right:
            beside.append(Query(row, len(left) + len(span), (right[0],)))
    return inside, beside


def _spelling(words: Sequence[Word], candidate: Candidate, lexicon: Lexicon) -> dict[str, float]:
    """What the spelling alone says."""
    old = [word for word in words[candidate.first : candidate.last] if word.is_word]
    before, after = "".join(word.lower for word in old), "".join(candidate.new).lower()
    counts = [min((lexicon.count(w) for w in each), default=0.0) for each in ([w.lower for w in old], candidate.new)]
    changes = bool(old) and bool(candidate.new) and candidate.kind != "swap"
    known = all(lexicon.knows(word.text) for word in old)
    elsewhere = {word.lower for i, word in enumerate(words) if not candidate.first <= i < candidate.last}
    return {
        "count": counts[1] - counts[0] if changes else 0.0,
        "distance": float(distance(before, after)) if changes else 0.0,
        "easy": float(changes and easy(before, after)),
        "shorter": float(changes and len(before) < len(after) and within_one(before, after)),
        "head": float(changes and before[:1] != after[:1]),
        "unknown": float(not known),
        "first": float(bool(old) and old[0].first),
        "formed": float(not known and all(lexicon.knows(w.text) or formed(w.lower, lexicon) for w in old)),
        "letters": math.log(max(len(before), 1)) if changes else 0.0,
        "rare": float(changes and candidate.kind != "case" and rare(candidate.new, lexicon)),
        "again": float(changes and all(len(word.text) > 2 and word.lower in elsewhere for word in old)),
    }


def rare(words: Sequence[str], lexicon: Lexicon) -> bool:
    """Whether one of these is seldom written, but as a name: writers seldom mean it, and what is meant is as seldom in the list."""
    return min(lexicon.counts.get(word.lower(), UNKNOWN) for word in words) < FAMILIAR


def distance(a: str, b: str) -> int:
    """Insertions, deletions, substitutions and swaps of neighbours that make b of a (optimal string alignment)."""
    rows = [list(range(len(b) + 1))]
    for i, x in enumerate(a, 1):
        row = [i]
        for j, y in enumerate(b, 1):
            best = min(row[-1] + 1, rows[i - 1][j] + 1, rows[i - 1][j - 1] + (x != y))
            if i > 1 and j > 1 and x == b[j - 2] and a[i - 2] == y:
                best = min(best, rows[i - 2][j - 2] + 1)
            row.append(best)
        rows.append(row)
    return rows[-1][-1]


def easy(a: str, b: str) -> bool:
    """Whether one slip that fingers or ears make often leads from b to a: a swap, a doubled or single letter, a
    neighbouring key, another vowel, a consonant that sounds alike."""
    if a == b or not within_one(a, b):
        return False
    i = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    if len(a) != len(b):
        longer, shorter = (a, b) if len(a) > len(b) else (b, a)
        return longer[i] in shorter[max(0, i - 1) : i + 1]
    if a[i + 1 :] != b[i + 1 :]:
        return True  # the swap
    return (a[i] in VOWELS and b[i] in VOWELS) or {a[i], b[i]} in ALIKE or _neighbours(a[i], b[i])


def _neighbours(a: str, b: str) -> bool:
    places = {key: (r, c) for r, row in enumerate(KEYS) for c, key in enumerate(row)}
    if a not in places or b not in places:
        return False
    return max(abs(x - y) for x, y in zip(places[a], places[b], strict=True)) <= 1
