"""Rows under way: batches, windows over texts longer than the context, frames for whoever watches, results at the end."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from scdd.core.rng import CounterRNG
from scdd.data.tokenizer import TextTokenizer
from scdd.lm.results import Moment, Sample, Trajectory
from scdd.lm.rows import Row
from scdd.processes.autoregressive import Autoregressive
from scdd.samplers.base import Model
from scdd.samplers.loop import Frame, TokenRows, sample_loop
from scdd.samplers.plan import SamplingPlan

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


@dataclass
class _Text:
    """One sample under way."""

    index: int
    seed: int
    row: Row
    tokens: list[int]
    nfe: int = 0
    counts: tuple[int, ...] = (0, 0, 0)
    ended: bool = False
    frames: list[tuple[Moment, Window, Tensor, Tensor, Tensor]] = field(default_factory=list)


Due = Sequence[tuple[_Text, Window]]
Choose = Callable[[tuple[Sample, ...]], tuple[Sample, ...]]


class Run:
    """Iterate to watch the frames; `results` finishes what is left and hands over the samples."""

    def __init__(self, engine: Engine, rows: Sequence[Row], plan: SamplingPlan, first: int = 0) -> None:
        """`first` is the number of the first row's sample."""
        self.engine, self.plan = engine, plan
        self.choose: Choose = lambda samples: samples
        self._texts = [_Text(first + i, plan.seed, row, list(row.tokens)) for i, row in enumerate(rows)]
        self._frames = self._walk()

    @classmethod
    def joined(cls, runs: Sequence[Run], engine: Engine | None = None, **changes: Any) -> Run:
        """Runs that nobody has begun, as one that shares their network evaluations; results come in their order.

        The plan, seeds aside, is the first one's with `changes`: join runs that agree in it and in the model. `engine`
        walks in place of the first one's. The runs themselves stay as they are, so that a walk that failed can be repeated;
        what they `choose` is theirs to choose.
        """
        run = cls(engine or runs[0].engine, (), replace(runs[0].plan, **changes))
        run._texts = [deepcopy(text) for each in runs for text in each._texts]
        return run

    @property
    def starts(self) -> tuple[tuple[int, ...], ...]:
        """The tokens of each text before the first step."""
        return tuple(text.row.tokens for text in self._texts)

    def __iter__(self) -> Iterator[BatchFrame]:
        return self._frames

    @property
    def results(self) -> tuple[Sample, ...]:
        """All samples, in order, or those that `choose` picks."""
        for _ in self._frames:
            pass
        return self.choose(tuple(self._sample(text) for text in self._texts))

    def with_bar(self) -> tuple[Sample, ...]:
        """`results`, with a bar of the texts that have been drawn."""
        from rich.progress import Progress

        with Progress(transient=True) as progress:
            task, drawn = progress.add_task("texts", total=len(self._texts)), set[int]()
            for batch in self:
                drawn.update(batch.places)
                progress.update(task, completed=len(drawn))
        return self.results

    def _walk(self) -> Iterator[BatchFrame]:
        parts = [windows(len(text.tokens), self.engine.room) for text in self._texts]
        for level in range(max(map(len, parts), default=0)):
            due = [
                (text, part[level])
                for text, part in zip(self._texts, parts, strict=True)
                if level < len(part) and not text.ended and self._has_work(text, part[level])
            ]
            for first in range(0, len(due), self.plan.batch_size):
                yield from self._batch(due[first : first + self.plan.batch_size], level)

    @staticmethod
    def _has_work(text: _Text, window: Window) -> bool:
        return not all(text.row.frozen[window.fresh : window.stop])

    def _batch(self, due: Due, level: int) -> Iterator[BatchFrame]:
        samples = tuple(text.index for text, _ in due)
        seeds = [text.seed + GOLDEN * level for text, _ in due]
        places = {id(text): place for place, text in enumerate(self._texts)}
        where = (
            tuple(window.start for _, window in due),
            tuple(window.stop - window.start for _, window in due),
            tuple(places[id(text)] for text, _ in due),
        )
        rng = CounterRNG(seeds, samples, self.engine.device)
        frames: list[Frame] = []
        for frame in sample_loop(self.engine.model, self.plan, self._rows(due), rng):
            frames.append(frame)
            yield BatchFrame(frame, samples, *where)
        self._settle(due, frames)

    def _rows(self, due: Due) -> TokenRows:
        """A batch of framed windows, padded with masks that nobody sees."""
        rows = [self.engine.framed(text.tokens[w.start : w.stop]) for text, w in due]
        lengths = [len(row) for row in rows]
        shape = (len(rows), max(lengths))
        z = torch.full(shape, self.engine.tokenizer.mask_id, dtype=torch.int64)
        frozen = torch.ones(shape, dtype=torch.bool)
        for r, (row, (text, w)) in enumerate(zip(rows, due, strict=True)):
            z[r, : len(row)] = torch.tensor(row)
            settled = [text.row.frozen[i] or i < w.fresh for i in range(w.start, w.stop)]
            frozen[r, 1 : 1 + len(settled)] = torch.tensor(settled)
        return TokenRows(z.to(self.engine.device), frozen.to(self.engine.device), lengths)

    def _settle(self, due: Due, frames: Sequence[Frame]) -> None:
        """Read the device once, at the end, and take the window's result into each text."""
        last = frames[-1]
        tokens, counts, nfe = last.tokens.tolist(), last.counts.tolist(), last.nfe.tolist()
        shown = frames if self.plan.record else []
        kept = [
            torch.stack(list(each)).cpu() for each in zip(*((f.tokens, f.moved, f.log_p) for f in shown), strict=True)
        ]
        for r, (text, w) in enumerate(due):
            inside = slice(1, 1 + w.stop - w.start)
            for f, frame in enumerate(shown):
                moment = Moment(frame.step, frame.t, frame.s)
                text.frames.append((moment, w, *(each[f, r, inside] for each in kept)))  # type: ignore[arg-type]
            text.tokens[w.start : w.stop] = tokens[r][inside]
            text.nfe += nfe[r]
            text.counts = tuple(a + b for a, b in zip(text.counts, counts[r], strict=True))
            text.ended = self.plan.stop and self._end(text, w.stop) is not None

    def _end(self, text: _Text, stop: int) -> int | None:
        """Where the first drawn end-of-text stands."""
        eos, frozen = self.engine.tokenizer.eos_id, text.row.frozen
        return next((i for i in range(stop) if text.tokens[i] == eos and not frozen[i]), None)

    def _sample(self, text: _Text) -> Sample:
        end = self._end(text, len(text.tokens)) if self.plan.stop else None
        tokens = tuple(text.tokens if end is None else text.tokens[:end])
        unmasked, corrections, remasked = text.counts
        return Sample(
            text=self.engine.text(tokens),
            tokens=tokens,
            seed=text.seed,
            index=text.index,
            steps=self.plan.steps,
            nfe=text.nfe,
            corrections=corrections,
            unmasked=unmasked,
            remasked=remasked,
            sampler=self.plan.sampler.name,
            final=self.plan.final,
            process=self.engine.process_name,
            ended=end is not None,
            trajectory=self._trajectory(text) if self.plan.record else None,
        )

    def _trajectory(self, text: _Text) -> Trajectory:
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
        return Trajectory(start, tokens, moved, log_p, moments, self.engine.tokenizer)
