"""How many rows may go through the network together: as many as change no bit of anybody's answer.

Whether a matrix product rounds a row otherwise in company depends on the machine's library, the shapes and the threads. So
it is tried, on random rows, before rows of some length are first evaluated k at a time, and k is used for that length only if
everything that a sampler can see of them agrees bit by bit. On a CPU, k rows together must be what they are one by one. On a
GPU every evaluation has k rows of one of a few widths, filled up, since other shapes mean other kernels; there a row must be the
same in every place, which it is not where a library divides a product of few tiles among all processors. Where rows are few, fewer
than k are evaluated, if a row is the same among so many as among k.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from scdd.core.rng import CounterRNG, integers, uniforms
from scdd.lm.model import LM
from scdd.models.graphed import Graphed
from scdd.ops.common import EVEN, Filters, compute_weights, raw_logits
from scdd.samplers.prediction import Group, Prediction, row_groups, rows_for

log = logging.getLogger("scdd.serve")
SIZES = (8, 4, 2)  # of groups
FEW = (1, 4, 16)  # rows of evaluations on a GPU, tried besides the usual number
TRIALS = 8  # evaluations of so few
LONGEST, MOST = 512, 2048
"""Tokens of rows that share an evaluation on a CPU, and of all of them: longer ones fill the cores alone."""
NARROW, FRAME = 128, 8  # the least width has so many columns for text, and room for its frame
FILTERS = Filters(top_p=0.9)


class Shape(NamedTuple):
    """How rows of some length are evaluated. Those of equal shapes may share."""

    length: int | None
    """Of all rows; None where they are padded to one width."""
    width: int | None = None
    rows: int | None = None
    """Of every evaluation, filled up; None: as many as `Sharing.groups` finds."""
    fewer: tuple[int, ...] = ()
    """Rows of evaluations that give the same bits as `rows` do, ascending."""

    def size(self, rows: int) -> int | None:
        """Rows of the evaluations for so many."""
        return rows_for(rows, self.fewer, self.rows)


class Sharing:
    """Remembers what was tried."""

    def __init__(self, lm: LM, fixed: int | None) -> None:
        """`fixed`: evaluate this many rows always, filled up (a GPU), or more where these do not agree."""
        self._lm, self._fixed = lm, fixed
        self._tried: dict[tuple[int, int], bool] = {}
        self._few: dict[tuple[int, int], tuple[int, ...]] = {}
        self._shapes: dict[int, Shape] = {}
        self._able = (fixed is not None or lm.device.type == "cpu") and not lm.engine.autoregressive

    def shape(self, length: int) -> Shape:
        """That of rows of this length, [BOS] and [EOS] included; it depends on nothing else."""
        if length not in self._shapes:
            self._shapes[length] = self._shape(length)
        return self._shapes[length]

    def _shape(self, length: int) -> Shape:
        if not self._able or self._fixed is None:
            return Shape(length, rows=self._fixed)
        width = self._width(length)
        sizes = (self._fixed, 2 * self._fixed, 4 * self._fixed)  # or the next that agrees; one row always does
        size = next((k for k in sizes if k == 1 or self._agrees(k, width)), 1)
        if size == 1:
            return Shape(length, rows=1)
        return Shape(None, width, size, self._fewer(size, width))

    def _width(self, length: int) -> int:
        """Few of them, so that texts of many lengths share: 136 columns, 264, 520, … up to the context."""
        columns = NARROW
        while columns + FRAME < length:
            columns *= 2
        return min(columns + FRAME, self._lm.context)

    @property
    def grouping(self) -> bool:
        """Whether `groups` says which rows are evaluated together."""
        return self._able and self._fixed is None

    def groups(self, lengths: Sequence[int]) -> tuple[Group, ...]:
        """Rows of one length in the largest groups that agree, on a CPU; none is filled up."""
        groups, at, length = [], 0, lengths[0]
        sizes = [k for k in SIZES if k * length <= MOST and length <= LONGEST]
        while at < len(lengths):
            fitting = (k for k in sizes if k <= len(lengths) - at and self._agrees(k, length))
            size = next(fitting, 1)
            groups.append(Group(slice(at, at + size), length))
            at += size
        return tuple(groups)

    def evaluations(self, shape: Shape, rows: int) -> tuple[int, int]:
        """(Calls of the network for a step of so many rows, rows of these calls)."""
        if self.grouping:
            assert shape.length is not None
            return len(self.groups([shape.length] * rows)), rows
        size = shape.size(rows)
        if size is None or not self._able:
            return 1, rows
        calls = -(-rows // size)
        return calls, calls * size

    def _agrees(self, size: int, length: int) -> bool:
        if (size, length) not in self._tried:
            if self._fixed is not None:
                agree, harm = self._places_agree(size, length), "their place would count"
            else:
                agree, harm = self._head_agrees and self._rows_agree(size, length), "they would round otherwise here"
            if not agree:
                log.warning("Rows of %d tokens do not go %d at a time: %s.", length, size, harm)
            self._tried[size, length] = agree
        return self._tried[size, length]

    def _places_agree(self, size: int, width: int) -> bool:
        """Each row one place further on: what is the same in neighbouring places is the same in all. Lengths are mixed."""
        z, u = self._random(size, width)
        lengths = [width - i % (width // 2) for i in range(size)]
        real = torch.arange(width, device=z.device) < torch.tensor(lengths, device=z.device)[:, None]
        here, next_ = (
            self._seen(z.roll(k, 0), u.roll(k, 0), row_groups(z, lengths[-k:] + lengths[:-k], size, masked=True))
            for k in (0, 1)
        )
        return all(torch.equal(a[real], b.roll(-1, 0)[real]) for a, b in zip(here, next_, strict=True))

    def _fewer(self, size: int, width: int) -> tuple[int, ...]:
        """Numbers of rows below `size` among which a row is what it is among `size`; places agree already. None are tried of a
        compiled network, which each would have to be compiled for."""
        if (size, width) not in self._few:
            compiled = isinstance(self._lm.engine.model.denoiser, Graphed)
            z, u = self._random(size, width)
            lengths = [1 + 37 * i % width for i in range(size)]  # long and short ones among the first few
            usual = [] if compiled else self._seen(z, u, row_groups(z, lengths, size, masked=True))

            def agree(few: int) -> bool:
                rows = min(size, TRIALS * few)
                ends = torch.tensor(lengths[:rows], device=z.device)[:, None]
                real = torch.arange(width, device=z.device) < ends
                found = self._seen(z[:rows], u[:rows], row_groups(z[:rows], lengths[:rows], few, masked=True))
                return all(torch.equal(a[real], b[:rows][real]) for a, b in zip(found, usual, strict=True))

            self._few[size, width] = () if compiled else tuple(k for k in FEW if k < size and agree(k))
        return self._few[size, width]

    def _rows_agree(self, size: int, length: int) -> bool:
        """Together and one by one."""
        z, u = self._random(size, length)
        together, apart = (self._seen(z, u, row_groups(z, None, k)) for k in (size, None))
        return all(torch.equal(a, b) for a, b in zip(together, apart, strict=True))

    def _random(self, size: int, length: int) -> tuple[Tensor, Tensor]:
        """Random rows, half of them masks, and numbers to draw with."""
        vocab, source = self._lm.tokenizer.vocab, CounterRNG(length, range(size))
        tokens = vocab.token(integers(vocab.K, (size, length), source))
        z = torch.where(uniforms((size, length), source) < 0.5, vocab.mask_id, tokens)
        return z.to(self._lm.device), uniforms((size, length), source).to(self._lm.device)

    @torch.no_grad()
    def _seen(self, z: Tensor, u: Tensor, groups: Sequence[Group]) -> list[Tensor]:
        """What a sampler can see of the rows."""
        denoiser, everywhere = self._lm.engine.model.denoiser, torch.ones_like(u, dtype=torch.bool)
        prediction, quality = Prediction(denoiser, groups, z, 0.5, FILTERS), self._lm.engine.model.quality
        judged = [] if quality is None else [prediction.apply(quality)]
        return [prediction.log_p_z, *prediction.draw(everywhere, u), *prediction.top(), *judged]

    @cached_property
    @torch.no_grad()
    def _head_agrees(self) -> bool:
        """The head's product for 16, 32, … rows: samplers ask for as many as move, so their number changes all the time."""
        head = self._lm.network.head
        numbers = uniforms((512, head.weight.shape[1]), CounterRNG(0, range(512))) - 0.5
        hidden = numbers.to(torch.float32 if head.scale is not None else head.weight.dtype).to(head.weight.device)
        weight, bias = compute_weights(hidden, head)
        whole = raw_logits(hidden, weight, bias)
        counts = (EVEN * n for n in (1, 2, 3, 4, 5, 6, 7, 8, 12, 16))
        return all(torch.equal(raw_logits(hidden[:n], weight, bias), whole[:n]) for n in counts)
