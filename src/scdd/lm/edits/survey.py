"""A first look at every word and every gap of a text, in a handful of evaluations: which candidates deserve a second one.

Every STRIDE-th word is masked at once, and between them as many gaps get a mask; STRIDE rows look at everything. A candidate is
kept if its first token is not much less likely behind the mask than that of the word that stands there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from scdd.lm.edits import grammar
from scdd.lm.edits.candidates import Candidate, deletions, for_word, in_compound, may_insert, swaps
from scdd.lm.edits.lexicon import Lexicon
from scdd.lm.edits.reading import Answer, Query, Reader
from scdd.lm.edits.words import Word, cased_like

STRIDE = 6
KEPT_RATIO = 0.0  # a known word's alternative is at least this likely beside it, as a log ratio
KEPT_WORDS = 2  # alternatives of a known word
SPELT_RATIO = -10.0  # the same of spellings of unknown words, whose first token says little
LIKELY_GAP = -1.0  # log probability of what may be missing
DOUBTED = -2.0  # log probability of a small word that may be too much
FILL_RATIO = 7.0  # another word altogether must be so much likelier,
FILL_DOUBT = 3.0  # and the model must doubt the written one so much, as -log x_θ
FILLS = 4  # tokens that the model may name for a masked word


@dataclass
class Look:
    """The questions about one text, each with what it is about."""

    queries: list[Query] = field(default_factory=list)
    about: list[tuple[int, bool]] = field(default_factory=list)  # (word, whether it is the gap before it)


def doubts(reader: Reader, words: Sequence[Word]) -> list[float]:
    """−log x_θ of every word as it stands, everything visible: the denoiser's own doubt, one evaluation for all."""
    row: list[int] = []
    queries: list[Query] = []
    owners: list[int] = []
    for i, word in enumerate(words):
        for token in reader.tokens(word.read):
            queries.append(Query((), len(row), (token,)))
            owners.append(i)
            row.append(token)
    whole = tuple(row)
    totals = [0.0] * len(words)
    for i, answer in zip(owners, reader.ask([query._replace(row=whole) for query in queries]), strict=True):
        totals[i] -= answer.log_p[0]
    return totals


def survey(
    reader: Reader, words: Sequence[Word], core: range, lexicon: Lexicon, doubt: Sequence[float]
) -> list[Candidate]:
    """Candidates for the words of `core` that survive a first look; `words` around it are what the model sees."""
    options = {i: for_word(words, i, lexicon) for i in core}
    reader.learn([piece for each in options.values() for one in each for piece in one.pieces(words)])
    look = _look(reader, words, core, options)
    answers = reader.ask(look.queries)
    found: list[Candidate] = []
    gaps: dict[int, Answer] = {}
    seen: dict[int, dict[int, float]] = {}
    tops: dict[int, tuple[tuple[int, float], ...]] = {}
    for (i, gap), query, answer in zip(look.about, look.queries, answers, strict=True):
        if gap:
            gaps[i] = answer
        else:
            seen[i] = dict(zip(query.wanted, answer.log_p, strict=True))
            tops[i] = answer.top
    for i in core:
        if i in seen:
            found += _of_word(reader, words, i, options[i], seen)
            if doubt[i] > FILL_DOUBT and lexicon.knows(words[i].text):  # a word that nobody knows may be a foreign one
                found += _fills(reader, words, i, seen[i], tops[i], lexicon, options[i])
        if i in gaps:
            found += _missing(i, gaps[i])
    return found


def _first(reader: Reader, candidate: Candidate, words: Sequence[Word]) -> int:
    return reader.tokens(candidate.pieces(words)[0])[0]


def _look(reader: Reader, words: Sequence[Word], core: range, options: dict[int, list[Candidate]]) -> Look:
    """STRIDE rows: in row r every word i with i mod STRIDE = r is masked, and a mask is put before those in between."""
    look = Look()
    inserted = tuple(reader.tokens(("" if each == "," else " ") + each)[0] for each in grammar.INSERTED)
    for r in range(STRIDE):
        row: list[int] = []
        asked: list[tuple[int, int, tuple[int, ...], bool]] = []
        for i, word in enumerate(words):
            if i in core and (i + STRIDE // 2) % STRIDE == r and may_insert(words, i):
                asked.append((i, len(row), inserted, True))
                row.append(reader.mask)
            if i in core and i % STRIDE == r and word.free:
                wanted = [reader.tokens(word.read)[0], *(_first(reader, each, words) for each in options[i])]
                # should it have changed places with a neighbour
                beside = [words[k] for k in (i - 1, i + 1) if 0 <= k < len(words) and words[k].is_word]
                wanted += [reader.tokens((word.gap or " ") + other.text)[0] for other in beside]
                asked.append((i, len(row), tuple(dict.fromkeys(wanted)), False))
                row.append(reader.mask)
            else:
                row += reader.tokens(word.read)
        for i, place, ids, gap in asked:
            look.queries.append(Query(tuple(row), place, ids, 0 if gap else FILLS))
            look.about.append((i, gap))
    return look


def _of_word(
    reader: Reader, words: Sequence[Word], i: int, options: Sequence[Candidate], seen: dict[int, dict[int, float]]
) -> list[Candidate]:
    """Of a word's candidates those that the first look does not rule out."""
    word, table = words[i], seen[i]
    own = table[reader.tokens(word.read)[0]]
    ratios = [(table[_first(reader, each, words)] - own, each) for each in options]
    spelt = ("spelling", "case", "split", "join")
    kept = [each for ratio, each in ratios if each.kind in spelt and ratio > SPELT_RATIO]
    others = sorted(
        ((ratio, each) for ratio, each in ratios if each.kind not in spelt and ratio > KEPT_RATIO),
        key=lambda pair: (-pair[0], pair[1].new),
    )
    kept += [each for _, each in others[:KEPT_WORDS]]
    kept += [each for each in deletions(words, i) if each.kind == "repeat" or own < DOUBTED]
    for swap in swaps(words, i):
        there = seen.get(i + 1)
        if there is None:
            continue
        after = words[i + 1]
        here_new = table.get(reader.tokens((word.gap or " ") + after.text)[0], -99.0)
        there_new = there.get(reader.tokens((after.gap or " ") + word.text)[0], -99.0)
        if here_new + there_new > own + there[reader.tokens(after.read)[0]]:
            kept.append(swap)
    return kept


def _fills(
    reader: Reader,
    words: Sequence[Word],
    i: int,
    table: dict[int, float],
    top: Sequence[tuple[int, float]],
    lexicon: Lexicon,
    options: Sequence[Candidate],
) -> list[Candidate]:
    """Whole words that the model would rather see there, if it doubts the written one very much."""
    word = words[i]
    own, there = table[reader.tokens(word.read)[0]], {each.new for each in options}
    found: list[Candidate] = []
    if not word.is_word or len(word.text) < 2 or in_compound(words, i):
        return found
    for token, log_p in top:
        text = reader.engine.tokenizer.token(token).strip()
        new = (cased_like(word, text),)
        if (
            log_p - own > FILL_RATIO
            and text.isalpha()
            and lexicon.knows(text)
            and new not in there
            and text != word.text
        ):
            found.append(Candidate(i, i + 1, new, "fill"))
    return found[:1]


def _missing(i: int, answer: Answer) -> list[Candidate]:
    """What is likely to be missing before word i."""
    log_p, word = max(zip(answer.log_p, grammar.INSERTED, strict=True))
    return [Candidate(i, i, (word,), "insert")] if log_p > LIKELY_GAP else []
