"""What the model itself would write in place of a doubtful word: the word gives way to a few masks, and the reverse process
fills them, several times and in several lengths. One word gives way to one: two other words in its place are a guess at what was
meant, and a word that was written together with the next one is a split (`candidates`)."""

from __future__ import annotations

from collections.abc import Sequence

from scdd.core.rng import derive_seed
from scdd.lm.edits.candidates import Candidate
from scdd.lm.edits.channel import context_of
from scdd.lm.edits.lexicon import Lexicon
from scdd.lm.edits.reading import Reader
from scdd.lm.edits.words import Word, cased_like, cut
from scdd.lm.rows import Row
from scdd.lm.run import Run
from scdd.ops.common import Filters
from scdd.samplers.options import SamplingOptions
from scdd.samplers.plan import make_plan

MASKS = (1, 2)
DRAWS = 2


def drawn(reader: Reader, words: Sequence[Word], i: int, lexicon: Lexicon, seed: int) -> list[Candidate]:
    """Fillings of word i's place by the reverse process, at most MASKS × DRAWS; the same for a seed."""
    word, found = words[i], dict[tuple[str, ...], Candidate]()
    for count in MASKS:
        left, right = context_of(reader, words, i, i + 1, count)
        row = Row(
            (*left, *[reader.mask] * count, *right), (*[True] * len(left), *[False] * count, *[True] * len(right))
        )
        plan = make_plan(
            SamplingOptions(steps=count),
            {"draw_filters": Filters(top_p=0.9), "seed": derive_seed(seed, f"{word.start} {count}"), "stop": False},
        )
        for sample in Run(reader.engine, [row] * DRAWS, plan).results:
            reader.nfe += sample.nfe
            text = reader.engine.text(sample.tokens[len(left) : len(left) + count]).strip()
            new = tuple(each.text for each in cut(text))
            if len(new) != 1 or new[0] != text or not lexicon.knows(text):
                continue
            new = (cased_like(word, text),)
            if new != (word.text,):
                found.setdefault(new, Candidate(i, i + 1, new, "fill"))
    return list(found.values())
