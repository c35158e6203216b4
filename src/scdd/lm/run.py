"""Rows under way: batches, windows over texts longer than the context, frames for whoever watches, results at the end.

A `Text` is drawn window by window (`Due`); `token_rows`, `numbers`, `settle` and `sample_of` are the way from a text to a row of a batch
and back, for a `Run` of one caller and for the server's batches alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from scdd.core.rng import CounterRNG
from scdd.data.tokenizer import TextTokenizer
from scdd.lm.results import Moment, Sample, Trajectory
from scdd.lm.rows import Row
from scdd.processes.autoregressive import Autoregressive
from scdd.samplers.base import Model
from scdd.samplers.loop import Frame, sample_loop
from scdd.samplers.plan import SamplingPlan
from scdd.samplers.step import TokenRows

GOLDEN = 0x9E3779B97F4A7C15  # sets the windows of one text apart in the random numbers


@dataclass(frozen=True)
class Engine:
    """What every run of a model shares."""

    model: Model
    tokenizer: TextTokenizer
    context: int
    device: torch.device

    @property
    def autoregressive(self) -> bool:
        """Whether tokens are drawn left to right."""
        return isinstance(self.model.process, Autoregressive)

    @property
    def room(self) -> int:
        """Tokens of text that fit into the context: rows are framed by [BOS] and [EOS] as in training."""
        return self.context - (1 if self.autoregressive else 2)

    @property
    def process_name(self) -> str:
        """The process's name, as recipes spell it."""
        return "ar" if self.autoregressive else type(self.model.process).__name__.lower()

    def framed(self, tokens: Sequence[int]) -> list[int]:
        """[BOS] … [EOS]; an autoregressive row has no end to look at."""
        end = [] if self.autoregressive else [self.tokenizer.eos_id]
        return [self.tokenizer.bos_id, *tokens, *end]

    def framed_tensors(self, texts: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
        """(Tokens [B, L], where the frame is) of texts of one length."""
        z = torch.tensor([self.framed(tokens) for tokens in texts], device=self.device)
        frame = torch.ones_like(z, dtype=torch.bool)
        frame[:, 1 : 1 + len(texts[0])] = False
        return z, frame

    def text(self, tokens: Sequence[int]) -> str:
        """Tokens as text. Masks stay visible: nothing is dropped in silence but the frame's own two tokens."""
        frame = (self.tokenizer.bos_id, self.tokenizer.eos_id)
        return self.tokenizer.decode([i for i in tokens if i not in frame], skip_special=False)


class BatchFrame(NamedTuple):
    """A frame, and which samples its rows are. Row r shows columns 1 … lengths[r] as text from token offsets[r] on."""

    frame: Frame
    samples: tuple[int, ...]
    offsets: tuple[int, ...]
    lengths: tuple[int, ...]
    places: tuple[int, ...]
    """Which of the run's results each row will be."""


class Window(NamedTuple):
    """Tokens [start, stop) of a text, of which those before `fresh` were settled by the window before."""

    start: int
    stop: int
    fresh: int


def windows(length: int, room: int) -> list[Window]:
    """Windows of at most `room` tokens over a text, each half filled with what comes before it."""
    parts = [Window(0, min(room, length), 0)]
    while parts[-1].stop < length:
        before = parts[-1].stop
        start = before - room // 2
        parts.append(Window(start, min(start + room, length), before))
    return parts


def windows_of(frozen: Sequence[bool], room: int) -> list[Window]:
    """Windows over a text of which some tokens are to be drawn: where these take less than half of the room one window has all of
    them in its middle, so that they see what is on either side."""
    free = [i for i, stays in enumerate(frozen) if not stays]
    if len(frozen) <= room or not free or free[-1] + 1 - free[0] > room // 2:
        return windows(len(frozen), room)
    start = (free[0] + free[-1] + 1 - room) // 2
    start = min(max(start, 0), len(frozen) - room)
    return [Window(start, start + room, start)]


@dataclass
class Text:
    """One sample under way."""

    index: int
    seed: int
    row: Row
    tokens: list[int]
    nfe: int = 0
    counts: tuple[int, ...] = (0, 0, 0)
    ended: bool = False
    frames: list[tuple[Moment, Window, Tensor, Tensor, Tensor]] = field(default_factory=list)
    room: int | None = None
    """Tokens of its windows, if they are to have fewer than fit into the context."""

    def windows(self, room: int) -> list[Window]:
        """All of its windows, where so many tokens fit into the context."""
        return windows_of(self.row.frozen, min(room, self.room or room))

    def at(self, level: int, room: int) -> Due | None:
        """Window number `level`, if there is one with something left to draw."""
        parts = self.windows(room)
        if self.ended or level >= len(parts):
            return None
        window = parts[level]
        return None if all(self.row.frozen[window.fresh : window.stop]) else Due(self, window, level)

    def after(self, level: int, room: int) -> Due | None:
        """The next window after number `level` (−1: the first) with something left to draw."""
        later = range(level + 1, len(self.windows(room)))
        return next((due for each in later if (due := self.at(each, room)) is not None), None)


class Due(NamedTuple):
    """A window of a text that is drawn now."""

    text: Text
    window: Window
    level: int


class Recorded(NamedTuple):
    """The recorded steps of one row: when, and [F, L] each, on the CPU, the columns of [BOS] and [EOS] included."""

    moments: Sequence[Moment]
    tokens: Tensor
    moved: Tensor
    log_p: Tensor


Choose = Callable[[tuple[Sample, ...]], tuple[Sample, ...]]


class Run:
    """Iterate to watch the frames; `results` finishes what is left and hands over the samples."""

    def __init__(
        self, engine: Engine, rows: Sequence[Row], plan: SamplingPlan, first: int = 0, room: int | None = None
    ) -> None:
        """`first` is the number of the first row's sample; `room`: windows of no more tokens than that."""
        self.engine, self.plan = engine, plan
        self.choose: Choose = lambda samples: samples
        self.texts = [Text(first + i, plan.seed, row, list(row.tokens), room=room) for i, row in enumerate(rows)]
        self._frames = self._walk()

    @classmethod
    def joined(cls, runs: Sequence[Run], engine: Engine | None = None, **changes: Any) -> Run:
        """Runs that nobody has begun, as one that shares their network evaluations; results come in their order.

        The plan, seeds aside, is the first one's with `changes`: join runs that agree in it and in the model. `engine`
        walks in place of the first one's. The runs themselves stay as they are, so that a walk that failed can be repeated;
        what they `choose` is theirs to choose.
        """
        run = cls(engine or runs[0].engine, (), replace(runs[0].plan, **changes))
        run.texts = [deepcopy(text) for each in runs for text in each.texts]
        return run

    @property
    def starts(self) -> tuple[tuple[int, ...], ...]:
        """The tokens of each text before the first step."""
        return tuple(text.row.tokens for text in self.texts)

    def __iter__(self) -> Iterator[BatchFrame]:
        return self._frames

    @property
    def results(self) -> tuple[Sample, ...]:
        """All samples, in order, or those that `choose` picks."""
        for _ in self._frames:
            pass
        return self.choose(tuple(sample_of(self.engine, self.plan, text) for text in self.texts))

    def with_bar(self) -> tuple[Sample, ...]:
        """`results`, with a bar of the texts that have been drawn."""
        from rich.progress import Progress

        with Progress(transient=True) as progress:
            task, drawn = progress.add_task("texts", total=len(self.texts)), set[int]()
            for batch in self:
                drawn.update(batch.places)
                progress.update(task, completed=len(drawn))
        return self.results

    def _walk(self) -> Iterator[BatchFrame]:
        room = self.engine.room
        for level in range(max((len(text.windows(room)) for text in self.texts), default=0)):
            due = [each for text in self.texts if (each := text.at(level, room)) is not None]
            for first in range(0, len(due), self.plan.batch_size):
                yield from self._batch(due[first : first + self.plan.batch_size])

    def _batch(self, due: Sequence[Due]) -> Iterator[BatchFrame]:
        places = {id(text): place for place, text in enumerate(self.texts)}
        where = (
            tuple(each.text.index for each in due),
            tuple(each.window.start for each in due),
            tuple(each.window.stop - each.window.start for each in due),
            tuple(places[id(each.text)] for each in due),
        )
        rows, rng = token_rows(self.engine, due), numbers(due)
        frames: list[Frame] = []
        for frame in sample_loop(self.engine.model, self.plan, rows, rng):
            frames.append(frame)
            yield BatchFrame(frame, *where)
        # the device is read once, at the end
        last, kept = frames[-1], _stacked(frames) if self.plan.record else None
        tokens, counts, nfe = last.tokens.tolist(), last.counts.tolist(), last.nfe.tolist()
        for r, each in enumerate(due):
            shown = None if kept is None else Recorded(kept[0], *(x[:, r] for x in kept[1:]))
            settle(self.plan, each, Ending(tokens[r], counts[r], nfe[r], shown), self.engine.tokenizer.eos_id)


def _stacked(frames: Sequence[Frame]) -> tuple[list[Moment], Tensor, Tensor, Tensor]:
    parts = (torch.stack(each).cpu() for each in zip(*((f.tokens, f.moved, f.log_p) for f in frames), strict=True))
    tokens, moved, log_p = parts
    return [Moment(f.step, f.t, f.s) for f in frames], tokens, moved, log_p


def token_rows(engine: Engine, due: Sequence[Due]) -> TokenRows:
    """A batch of framed windows, padded with masks that nobody sees; on the host."""
    before, after = 1, len(engine.framed(())) - 1
    lengths = [before + w.stop - w.start + after for _, w, _ in due]
    z = np.full((len(due), max(lengths)), engine.tokenizer.mask_id, dtype=np.int64)
    frozen = np.ones(z.shape, dtype=np.bool_)
    for row, stays, length, (text, w, _) in zip(z, frozen, lengths, due, strict=True):
        row[:length] = engine.framed(text.tokens[w.start : w.stop])
        stays[before + w.fresh - w.start : length - after] = text.row.frozen[w.fresh : w.stop]
    return TokenRows(torch.from_numpy(z), torch.from_numpy(frozen), lengths)


def numbers(due: Sequence[Due]) -> CounterRNG:
    """The random numbers of these windows: each sample's own, and each window's; on the host."""
    seeds = [(text.seed + GOLDEN * level) % (1 << 64) if level else text.seed for text, _, level in due]
    return CounterRNG(seeds, [each.text.index for each in due])


class Ending(NamedTuple):
    """A row at its walk's end, as plain numbers."""

    tokens: Sequence[int]
    counts: Sequence[int]
    nfe: int
    recorded: Recorded | None = None


def settle(plan: SamplingPlan, due: Due, ending: Ending, eos_id: int) -> None:
    """Take a window's result into its text."""
    text, w, _ = due
    inside = slice(1, 1 + w.stop - w.start)
    if ending.recorded is not None:
        moments, *shown = ending.recorded
        text.frames += [(moment, w, *(x[f, inside] for x in shown)) for f, moment in enumerate(moments)]  # type: ignore[misc]
    text.tokens[w.start : w.stop] = ending.tokens[inside]
    text.nfe += ending.nfe
    text.counts = tuple(a + b for a, b in zip(text.counts, ending.counts, strict=True))
    text.ended = plan.stop and _end(text, w.stop, eos_id) is not None


def _end(text: Text, stop: int, eos_id: int) -> int | None:
    """Where the first drawn end-of-text stands."""
    frozen = text.row.frozen
    return next((i for i in range(stop) if text.tokens[i] == eos_id and not frozen[i]), None)


def sample_of(engine: Engine, plan: SamplingPlan, text: Text) -> Sample:
    """What a text that has been drawn is handed over as."""
    end = _end(text, len(text.tokens), engine.tokenizer.eos_id) if plan.stop else None
    tokens = tuple(text.tokens if end is None else text.tokens[:end])
    unmasked, corrections, remasked = text.counts
    return Sample(
        text=engine.text(tokens),
        tokens=tokens,
        seed=text.seed,
        index=text.index,
        steps=plan.steps,
        nfe=text.nfe,
        corrections=corrections,
        unmasked=unmasked,
        remasked=remasked,
        sampler=plan.sampler.name,
        final=plan.final,
        process=engine.process_name,
        ended=end is not None,
        trajectory=_trajectory(engine, text) if plan.record else None,
    )


def _trajectory(engine: Engine, text: Text) -> Trajectory:
    """The whole text at every frame, also where only a window of it moved."""
    start = torch.tensor(text.row.tokens)
    count, length = len(text.frames), len(start)
    tokens = start.repeat(count, 1)
    moved = torch.zeros((count, length), dtype=torch.int8)
    log_p = torch.full((count, length), torch.nan)
    for f, (_, window, shown, kinds, logs) in enumerate(text.frames):
        inside = slice(window.start, window.stop)
        tokens[f:, inside], moved[f, inside], log_p[f, inside] = shown, kinds, logs
    moments = tuple(moment for moment, *_ in text.frames)
    return Trajectory(start, tokens, moved, log_p, moments, engine.tokenizer)
