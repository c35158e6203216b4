"""Rows that go through the network together on a CPU: as many as change no bit of anybody's numbers.

Whether a matrix product rounds a row otherwise in company depends on the machine's library, the shapes and the threads. So it
is tried, on random rows, before rows of some length are first evaluated k at a time; and k is used for that length only if
everything that a sampler can see of the rows agrees, bit by bit, with what it sees of them one by one. Short rows gain most: alone
they leave the cores waiting for each other between small products.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cached_property

import torch
from torch import Tensor

from scdd.core.denoiser import Denoiser
from scdd.core.rng import CounterRNG, integers, uniforms
from scdd.core.types import Vocab
from scdd.ops.common import EVEN, Filters, compute_weights, raw_logits
from scdd.samplers.prediction import Group, Prediction, row_groups

log = logging.getLogger("scdd.samplers")
SIZES = (8, 4, 2)
LONGEST, MOST = 512, 2048
"""Tokens of rows that go together, and of all of them: longer ones fill the cores alone."""
PATIENCE = 4
"""Times that a group's rows are evaluated one by one before it is tried: a trial takes as long as three times."""
FILTERS = Filters(top_p=0.9)


class Packing:
    """Remembers, for a network on a CPU, what was tried."""

    def __init__(
        self, denoiser: Denoiser, quality: Callable[[Tensor], Tensor] | None = None, patience: int = PATIENCE
    ) -> None:
        """`quality`: PRISM's head, where samplers see it, too."""
        self._denoiser, self._quality, self._patience = denoiser, quality, patience
        self._tried: dict[tuple[int, int, int], bool] = {}
        self._evaluated: Counter[int] = Counter()  # rows of each length so far

    def __call__(self, groups: Sequence[Group]) -> list[Group]:
        """Groups of one row, those of one length joined as far as they agree."""
        alike: dict[int, list[Group]] = {}
        for group in groups:
            alike.setdefault(group.length, []).append(group)
        packed: list[Group] = []
        for length, parts in alike.items():
            self._evaluated[length] += len(parts)
            at = 0
            for size in self.sizes(len(parts), length):
                packed.append(joined(parts[at : at + size]))
                at += size
        return packed

    def sizes(self, rows: int, length: int) -> list[int]:
        """In what groups so many rows are evaluated."""
        found: list[int] = []
        while rows > 0:
            found.append(self._largest(rows, length))
            rows -= found[-1]
        return found

    def _largest(self, rows: int, length: int) -> int:
        """Of the sizes that agree, among so many rows; 1 as long as none is worth a trial."""
        for size in SIZES if length <= LONGEST else ():
            if size > rows or size * length > MOST:
                continue
            key = (size, length, torch.get_num_threads())
            if key not in self._tried and self._evaluated[length] < self._patience * size:
                return 1
            if key not in self._tried:
                self._tried[key] = self._agree(size, length)
            if self._tried[key]:
                return size
        return 1

    def _agree(self, size: int, length: int) -> bool:
        agree = self._head_agrees and self._rows_agree(size, length)
        if not agree:
            log.info("Rows of %d tokens do not go %d at a time: they would round otherwise here.", length, size)
        return agree

    def _rows_agree(self, size: int, length: int) -> bool:
        """Together and one by one."""
        z, u = random_rows(self._denoiser.vocab, size, length)
        whole = (Group(slice(0, size), length),)
        together, apart = (seen(self._denoiser, self._quality, groups, z, u) for groups in (whole, row_groups(z)))
        return all(torch.equal(a, b) for a, b in zip(together, apart, strict=True))

    @cached_property
    @torch.no_grad()
    def _head_agrees(self) -> bool:
        """The head's product for 16, 32, … rows: samplers ask for as many as move, so their number changes all the time."""
        head = self._denoiser.head
        numbers = uniforms((512, head.weight.shape[1]), CounterRNG(0, range(512))) - 0.5
        hidden = numbers.to(torch.float32 if head.scale is not None else head.weight.dtype)
        weight, bias = compute_weights(hidden, head)
        whole = raw_logits(hidden, weight, bias)
        counts = (EVEN * n for n in (1, 2, 3, 4, 5, 6, 7, 8, 12, 16))
        return all(torch.equal(raw_logits(hidden[:n], weight, bias), whole[:n]) for n in counts)


def joined(parts: Sequence[Group]) -> Group:
    """Groups of one row and of one length as one."""
    if len(parts) == 1:
        return parts[0]
    rows = [place for part in parts for place in part.places]
    together = rows == list(range(rows[0], rows[-1] + 1))
    return Group(slice(rows[0], rows[-1] + 1) if together else rows, parts[0].length, parts=tuple(parts))


def random_rows(vocab: Vocab, size: int, length: int) -> tuple[Tensor, Tensor]:
    """Random rows, half of them masks, and numbers to draw with; on the host."""
    source = CounterRNG(length, range(size))
    tokens = vocab.token(integers(vocab.K, (size, length), source))
    z = torch.where(uniforms((size, length), source) < 0.5, vocab.mask_id, tokens)
    return z, uniforms((size, length), source)


@torch.no_grad()
def seen(
    denoiser: Denoiser, quality: Callable[[Tensor], Tensor] | None, groups: Sequence[Group], z: Tensor, u: Tensor
) -> list[Tensor]:
    """What a sampler can see of the rows."""
    prediction = Prediction(denoiser, groups, z, 0.5, FILTERS)
    judged = [] if quality is None else [prediction.apply(quality)]
    return [prediction.log_p_z, *prediction.draw(torch.ones_like(u, dtype=torch.bool), u), *prediction.top(), *judged]
