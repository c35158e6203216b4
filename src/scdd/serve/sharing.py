"""How many rows of a GPU go through the network together, so that nobody's answer depends on the others'.

Whether a matrix product rounds a row otherwise in company depends on the machine's library and the shapes, so it is tried before rows of
some length are first evaluated (on a CPU, `samplers.packing` does). Every evaluation has k rows of one of a few widths,
filled up, since other shapes mean other kernels; there a row must be the same in every place, which it is not where a library divides a
product of few tiles among all processors. Where rows are few, fewer than k are evaluated, if a row is the same among so many as
among k.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from scdd.lm.model import LM
from scdd.models.graphed import Graphed
from scdd.samplers.packing import random_rows, seen
from scdd.samplers.prediction import Group, row_groups, rows_for

log = logging.getLogger("scdd.serve")
FEW = (1, 4, 16)  # rows of evaluations on a GPU, tried besides the usual number
TRIALS = 8  # evaluations of so few
# The least width has so many columns for text, and room for its frame: [BOS] and [EOS], and two more, since 64 rows of 132 are 66 × 128
# tokens. Products go in tiles of 128, and twice 66 of them are as many as an H200 has processors.
NARROW, FRAME = 128, 4


class Shape(NamedTuple):
    """How rows of some length are evaluated. Those of equal shapes may share."""

    length: int | None
    """Of all rows; None where they are padded to one width."""
    width: int | None = None
    rows: int | None = None
    """Of every evaluation, filled up; None: as many as agree (`samplers.packing`), or all."""
    fewer: tuple[int, ...] = ()
    """Rows of evaluations that give the same bits as `rows` do, ascending."""

    def size(self, rows: int) -> int | None:
        """Rows of the evaluations for so many."""
        return rows_for(rows, self.fewer, self.rows)


class Sharing:
    """Remembers what was tried."""

    def __init__(self, lm: LM, fixed: int | None) -> None:
        """`fixed`: evaluate this many rows always, filled up (a GPU), or more where these do not agree; None: on a CPU."""
        self._lm, self._fixed = lm, fixed
        self._tried: dict[tuple[int, int], bool] = {}
        self._few: dict[tuple[int, int], tuple[int, ...]] = {}
        self._shapes: dict[int, Shape] = {}
        self._able = fixed is not None and not lm.engine.autoregressive

    def shape(self, length: int) -> Shape:
        """That of rows of this length, [BOS] and [EOS] included; it depends on nothing else."""
        if length not in self._shapes:
            self._shapes[length] = self._shape(length)
        return self._shapes[length]

    def _shape(self, length: int) -> Shape:
        if self._fixed is None or not self._able:
            return Shape(length, rows=self._fixed)
        width = self._width(length)
        sizes = (self._fixed, 2 * self._fixed, 4 * self._fixed)  # or the next that agrees; one row always does
        size = next((k for k in sizes if k == 1 or self._agrees(k, width)), 1)
        if size == 1:
            return Shape(length, rows=1)
        return Shape(None, width, size, self._fewer(size, width))

    def _width(self, length: int) -> int:
        """Few of them, so that texts of many lengths share: 132 columns, 260, 516, … up to the context."""
        columns = NARROW
        while columns + FRAME < length:
            columns *= 2
        return min(columns + FRAME, self._lm.context)

    def evaluations(self, shape: Shape, rows: int) -> tuple[int, int]:
        """(Calls of the network for a step of so many rows, rows of these calls)."""
        packing = self._lm.engine.model.packing
        if packing is not None and self._fixed is None:
            assert shape.length is not None
            return len(packing.sizes(rows, shape.length)), rows
        size = shape.size(rows)
        if size is None or not self._able:
            return 1, rows
        calls = -(-rows // size)
        return calls, calls * size

    def _agrees(self, size: int, length: int) -> bool:
        if (size, length) not in self._tried:
            agree = self._places_agree(size, length)
            if not agree:
                log.warning("Rows of %d tokens do not go %d at a time: their place would count.", length, size)
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

    def _random(self, size: int, length: int) -> tuple[Tensor, Tensor]:
        z, u = random_rows(self._lm.tokenizer.vocab, size, length)
        return z.to(self._lm.device), u.to(self._lm.device)

    def _seen(self, z: Tensor, u: Tensor, groups: Sequence[Group]) -> list[Tensor]:
        model = self._lm.engine.model
        return seen(model.denoiser, model.quality, groups, z, u)
