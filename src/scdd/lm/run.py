"""Rows under way: batches, windows over texts longer than the context, frames for whoever watches, results at the end."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from scdd.core.denoiser import Denoiser
from scdd.core.rng import CounterRNG
from scdd.data.tokenizer import TextTokenizer
from scdd.lm.results import Moment, Sample, Trajectory
from scdd.lm.rows import Row
from scdd.ops import Filters
from scdd.processes.base import Process
from scdd.samplers.base import Sampler
from scdd.samplers.drive import Frame, drive
from scdd.samplers.grids import Grid

GOLDEN = 0x9E3779B97F4A7C15  # sets the windows of one text apart in the random numbers


@dataclass(frozen=True)
class Engine:
    """What every run of a model shares."""

    denoiser: Denoiser
    process: Process | None
    tokenizer: TextTokenizer
    context: int
    device: torch.device

    @property
    def room(self) -> int:
        """Tokens of text that fit into the context: rows are framed by [BOS] and [EOS] as in training."""
        return self.context - (1 if self.process is None else 2)

    def framed(self, tokens: Sequence[int]) -> list[int]:
        """[BOS] … [EOS]; an autoregressive row has no end to look at."""
        end = [] if self.process is None else [self.tokenizer.eos_id]
        return [self.tokenizer.bos_id, *tokens, *end]

    def text(self, tokens: Sequence[int]) -> str:
        """Tokens as text. Masks stay visible: nothing is dropped in silence but the frame's own two tokens."""
        frame = (self.tokenizer.bos_id, self.tokenizer.eos_id)
        return self.tokenizer.decode([i for i in tokens if i not in frame], skip_special=False)

    def name(self) -> str:
        """The process's name, as recipes spell it."""
        return "ar" if self.process is None else type(self.process).__name__.lower()


@dataclass(frozen=True)
class Settings:
    """How rows are drawn."""

    sampler: Sampler
    grid: Grid
    filters: Filters
    final: str = "ancestral"
    draws: Filters | None = None
    tolerance: float | None = None
    seed: int = 0
    batch_size: int = 16
    record: bool = False
    stop: bool = True
    """Cut a text at its first drawn end-of-text token."""
    together: int | None = None


class Progress(NamedTuple):
    """A frame, and which samples its rows are. Row r shows columns 1 … lengths[r] as text from token offsets[r] on."""

    frame: Frame
    samples: tuple[int, ...]
    offsets: tuple[int, ...]
    lengths: tuple[int, ...]
    places: tuple[int, ...]
    """Which of the run's results each row will be."""


@dataclass
class _State:
    """One sample under way."""

    index: int
    seed: int
    tokens: list[int]
    free: list[bool]
    given: list[bool]
    nfe: int = 0
    counts: list[int] = field(default_factory=lambda: [0, 0, 0])
    ended: bool = False
    start: tuple[int, ...] = ()
    frames: list[tuple[Moment, list[int], Tensor, Tensor, int]] = field(default_factory=list)


class Window(NamedTuple):
    """Tokens [start, stop) of a text, of which those before `fresh` were settled by the window before."""

    start: int
    stop: int
    fresh: int


def windows(length: int, room: int) -> list[Window]:
    """Windows of at most `room` tokens over a text, each half filled with what comes before it."""
    made = [Window(0, min(room, length), 0)]
    while made[-1].stop < length:
        before = made[-1].stop
        start = before - room // 2
        made.append(Window(start, min(start + room, length), before))
    return made


class Run:
    """Iterate to watch the frames; `results` finishes what is left and hands over the samples."""

    def __init__(self, engine: Engine, rows: Sequence[Row], settings: Settings, first: int = 0) -> None:
        """`first` is the number of the first row's sample."""
        self.engine, self.settings = engine, settings
        self._states = [
            _State(
                first + i,
                settings.seed,
                list(row.tokens),
                [not f for f in row.frozen],
                list(row.frozen),
                start=row.tokens,
            )
            for i, row in enumerate(rows)
        ]
        self._frames = self._walk()

    @classmethod
    def joined(cls, runs: Sequence[Run], engine: Engine | None = None) -> Run:
        """Runs that nobody has begun, as one that shares their network evaluations; results come in their order.

        The settings, seeds aside, are the first one's: join runs that agree in them and in the model. `engine` walks in
        place of the first one's. The runs themselves stay as they are, so that a walk that failed can be repeated.
        """
        made = cls(engine or runs[0].engine, (), runs[0].settings)
        made._states = [deepcopy(state) for run in runs for state in run._states]
        return made

    @property
    def starts(self) -> tuple[tuple[int, ...], ...]:
        """The tokens of each text before the first step."""
        return tuple(state.start for state in self._states)

    def __iter__(self) -> Iterator[Progress]:
        return self._frames

    @property
    def results(self) -> tuple[Sample, ...]:
        """All samples, in order."""
        for _ in self._frames:
            pass
        return tuple(self._sample(state) for state in self._states)

    def _walk(self) -> Iterator[Progress]:
        plans = [windows(len(state.tokens), self.engine.room) for state in self._states]
        for level in range(max(map(len, plans), default=0)):
            due = [
                (state, plan[level])
                for state, plan in zip(self._states, plans, strict=True)
                if level < len(plan)
                and not state.ended
                and any(state.free[plan[level].fresh : plan[level].stop])
            ]
            for first in range(0, len(due), self.settings.batch_size):
                yield from self._batch(due[first : first + self.settings.batch_size], level)

    def _batch(self, due: Sequence[tuple[_State, Window]], level: int) -> Iterator[Progress]:
        z, frozen, lengths = self._tensors(due)
        samples = tuple(state.index for state, _ in due)
        seeds = [state.seed + GOLDEN * level for state, _ in due]
        source = CounterRNG(seeds, samples, self.engine.device)
        where = {id(state): place for place, state in enumerate(self._states)}
        places = tuple(where[id(state)] for state, _ in due)
        frames: list[Frame] = []
        for frame in drive(
            self.engine.denoiser,
            self.engine.process,
            self.settings.sampler,
            self.settings.grid,
            z,
            source=source,
            frozen=frozen,
            lengths=lengths,
            filters=self.settings.filters,
            draws=self.settings.draws,
            final=self.settings.final,
            tolerance=self.settings.tolerance,
            record=self.settings.record,
            together=self.settings.together,
        ):
            frames.append(frame)
            shown = tuple(window.stop - window.start for _, window in due)
            yield Progress(frame, samples, tuple(window.start for _, window in due), shown, places)
        self._settle(due, frames)

    def _tensors(self, due: Sequence[tuple[_State, Window]]) -> tuple[Tensor, Tensor, list[int]]:
        """(Tokens, frozen, lengths) of a batch of framed windows, padded with masks that nobody sees."""
        rows = [self.engine.framed(state.tokens[w.start : w.stop]) for state, w in due]
        lengths = [len(row) for row in rows]
        shape = (len(rows), max(lengths))
        z = torch.full(shape, self.engine.tokenizer.mask_id, dtype=torch.int64)
        frozen = torch.ones(shape, dtype=torch.bool)
        for r, (row, (state, w)) in enumerate(zip(rows, due, strict=True)):
            z[r, : len(row)] = torch.tensor(row)
            fresh = [state.free[i] and i >= w.fresh for i in range(w.start, w.stop)]
            frozen[r, 1 : 1 + len(fresh)] = ~torch.tensor(fresh)
        return z.to(self.engine.device), frozen.to(self.engine.device), lengths

    def _settle(self, due: Sequence[tuple[_State, Window]], frames: Sequence[Frame]) -> None:
        """Read the device once, at the end, and take the window's result into each text."""
        last = frames[-1]
        tokens, counts, nfe = last.tokens.tolist(), last.counts.tolist(), last.nfe.tolist()
        kept = (torch.stack([f.tokens for f in frames]).cpu(), torch.stack([f.moved for f in frames]).cpu())
        log_p = torch.stack([f.log_p for f in frames]).cpu()
        for r, (state, w) in enumerate(due):
            inside = slice(1, 1 + w.stop - w.start)
            if self.settings.record:
                for f, frame in enumerate(frames):
                    moment = Moment(frame.step, frame.t, frame.s)
                    shown = kept[0][f, r, inside].tolist()
                    state.frames.append((moment, shown, kept[1][f, r, inside], log_p[f, r, inside], w.start))
            state.tokens[w.start : w.stop] = tokens[r][inside]
            state.nfe += nfe[r]
            state.counts = [a + b for a, b in zip(state.counts, counts[r], strict=True)]
            if self.settings.stop and self._end(state, w.stop) is not None:
                state.ended = True

    def _end(self, state: _State, stop: int) -> int | None:
        """Where the first drawn end-of-text stands."""
        eos = self.engine.tokenizer.eos_id
        found = (i for i in range(stop) if state.tokens[i] == eos and not state.given[i])
        return next(found, None)

    def _sample(self, state: _State) -> Sample:
        end = self._end(state, len(state.tokens)) if self.settings.stop else None
        tokens = tuple(state.tokens if end is None else state.tokens[:end])
        return Sample(
            text=self.engine.text(tokens),
            tokens=tokens,
            seed=state.seed,
            index=state.index,
            steps=len(self.settings.grid) - 1,
            nfe=state.nfe,
            unmasked=state.counts[0],
            corrections=state.counts[1],
            remasked=state.counts[2],
            sampler=self.settings.sampler.name,
            final=self.settings.final,
            process=self.engine.name(),
            ended=end is not None,
            trajectory=self._trajectory(state) if self.settings.record else None,
        )

    def _trajectory(self, state: _State) -> Trajectory:
        """The whole text at every frame, also where only a window of it moved."""
        now = torch.tensor(state.start)
        tokens, moved, log_p = [], [], []
        for _, shown, kinds, logs, start in state.frames:
            now = now.clone()
            now[start : start + len(shown)] = torch.tensor(shown)
            moved.append(torch.zeros(len(now), dtype=torch.int8))
            log_p.append(torch.full((len(now),), torch.nan))
            moved[-1][start : start + len(shown)], log_p[-1][start : start + len(shown)] = kinds, logs
            tokens.append(now)
        empty = now.new_zeros((0, len(now)))
        return Trajectory(
            start=torch.tensor(state.start),
            tokens=torch.stack(tokens) if tokens else empty,
            moved=torch.stack(moved) if moved else empty.to(torch.int8),
            log_p=torch.stack(log_p) if log_p else empty.float(),
            moments=tuple(moment for moment, *_ in state.frames),
        )
