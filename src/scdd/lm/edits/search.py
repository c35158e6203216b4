"""From a text to its repaired self: windows, candidates, log-odds, and the clear ones put in.

A text is gone through in windows of words, each seen with its surroundings, so that the cost grows with the text. What was
edited is looked at again with the edits in place: an error beside another one is judged better once the first is mended.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from scdd.lm.edits.candidates import Candidate, in_compound
from scdd.lm.edits.channel import CONTEXT, Channel, features, shift
from scdd.lm.edits.draft import Draft
from scdd.lm.edits.fills import drawn
from scdd.lm.edits.lexicon import Lexicon
from scdd.lm.edits.reading import Reader
from scdd.lm.edits.survey import STRIDE, doubts, survey
from scdd.lm.edits.words import Word, cut
from scdd.lm.results import Edit
from scdd.lm.rows import Ranges
from scdd.lm.run import Engine

NOWHERE = Ranges(())
CORE = 40  # words that are looked at together
ROUNDS = 3
DRAW_DOUBT = (
    6.0  # -log x_θ of a known word without other candidates, from which on the reverse process is asked for some
)
AGAIN = 4  # words on either side of an edit that are looked at again


class Edited(NamedTuple):
    """A repaired text, its edits, and what it took."""

    text: str
    edits: tuple[Edit, ...]
    rounds: int
    nfe: int


class Judged(NamedTuple):
    """A candidate, where it goes, and its odds."""

    candidate: Candidate
    features: dict[str, float]
    log_odds: float


@dataclass(frozen=True)
class Editor:
    """How texts are edited: a model, the words of its language, its channel, and how much of a text is taken for wrong."""

    engine: Engine
    lexicon: Lexicon
    channel: Channel
    strength: float
    seed: int = 0

    def edit(
        self, text: str, frozen: Sequence[tuple[int, int]] = (), told: Callable[[int, int], None] | None = None
    ) -> Edited:
        """`text` with its clear edits; characters in `frozen` stay. `told` hears which word of how many comes next."""
        draft, reader = Draft(text), Reader(self.engine)
        again: list[tuple[int, int]] | None = None  # characters to look at; None: all
        rounds = 0
        while rounds < ROUNDS and again != []:
            rounds += 1
            # No edit of an edit: two steps could lead anywhere.
            kept = draft.now(frozen)
            words, stays = cut(draft.text, [*kept, *draft.changed]), Ranges(kept)
            if told is not None and again is None:
                told(0, len(words))
            found = []
            for window, core in windows(reader, words, _near(words, again)):
                found += self.judged(reader, window, core, stays)
                if told is not None and again is None:  # what is looked at again is little
                    told(window.start + core.stop, len(words))
            again = []
            # from the end, so that the places before it stay
            for judged in sorted(self._clear(found), key=lambda one: -one.candidate.first):
                start, end, new = judged.candidate.written(words)
                draft.put(start, end, new, judged.log_odds, judged.candidate.kind)
                again = [(low + len(new) - (end - start), high + len(new) - (end - start)) for low, high in again]
                again.append((start, start + len(new)))
        return Edited(draft.text, draft.edits, rounds, reader.nfe)

    def judged(self, reader: Reader, window: Window, core: range, frozen: Ranges = NOWHERE) -> list[Judged]:
        """Candidates for the words of `core` with their log-odds; numbered as in the whole text."""
        words = window.words
        doubt = doubts(reader, words)
        candidates = [each for each in survey(reader, words, core, self.lexicon, doubt) if each.spares(words, frozen)]
        for i in core:
            there = [each for each in candidates if each.first == i < each.last]
            doubted = doubt[i] > DRAW_DOUBT and words[i].free and words[i].is_word and self.lexicon.knows(words[i].text)
            if doubted and not in_compound(words, i) and all(c.kind == "fill" for c in there):
                candidates += [
                    each
                    for each in drawn(reader, words, i, self.lexicon, self.seed)
                    if each.new not in [c.new for c in there]
                ]
        made, more = features(reader, words, candidates, self.lexicon, doubt), shift(self.strength)
        return [
            Judged(
                replace(candidate, first=candidate.first + window.start, last=candidate.last + window.start),
                values,
                self.channel.log_odds(candidate.kind, values) + more,
            )
            for candidate, values in zip(candidates, made, strict=True)
        ]

    def _clear(self, found: Sequence[Judged]) -> list[Judged]:
        """Of the candidates that are clear the best ones, no two at one place or side by side."""
        taken: set[int] = set()
        chosen = []
        for one in sorted(found, key=lambda one: (-one.log_odds, one.candidate.first, one.candidate.new)):
            if one.log_odds <= self.channel.margin:
                break
            places = set(range(one.candidate.first - 1, one.candidate.last + 1))
            if not places & taken:
                taken |= places
                chosen.append(one)
        return chosen


class Window(NamedTuple):
    """Words of a text, from word `start` on."""

    words: Sequence[Word]
    start: int


def _near(words: Sequence[Word], places: Sequence[tuple[int, int]] | None) -> set[int]:
    """Words within AGAIN words of these characters; all of them for None."""
    if places is None:
        return set(range(len(words)))
    touched = Ranges((low, high + 1) for low, high in places)
    hit = [i for i, word in enumerate(words) if touched.meet(word.start, word.end + 1)]
    return {j for i in hit for j in range(max(0, i - AGAIN), min(len(words), i + AGAIN + 1))}


def windows(reader: Reader, words: Sequence[Word], wanted: set[int]) -> Iterator[tuple[Window, range]]:
    """Windows that fit the model's context, each with the range of its words (numbered in the window) to look at."""
    reader.learn([word.read for word in words])
    sizes = [len(reader.tokens(word.read)) for word in words]
    room = reader.engine.room - CORE // STRIDE - 2  # masks that are put into gaps
    start = 0
    while start < len(words):
        stop, size = start + 1, sizes[start]
        while stop < len(words) and stop - start < CORE and size + sizes[stop] <= max(room // 2, 1):
            size += sizes[stop]
            stop += 1
        low, high = start, stop
        for _ in range(CONTEXT):
            if low > 0 and size + sizes[low - 1] <= room:
                low -= 1
                size += sizes[low]
            if high < len(words) and size + sizes[high] <= room:
                size += sizes[high]
                high += 1
        core = [i for i in range(start, stop) if i in wanted]
        if core and size <= reader.engine.room:
            yield Window(words[low:high], low), range(core[0] - low, core[-1] + 1 - low)
        start = stop
