"""How many rows may go through the network together: as many as change no bit of anybody's answer.

Whether a matrix product rounds a row otherwise in company depends on the machine's library, the shapes and the threads. So
it is tried, on random rows, before rows of some length are first evaluated k at a time, and k is used for that length only if
everything that a sampler can see of them agrees bit by bit. On a CPU, k rows together must be what they are one by one. On a
GPU every evaluation has k rows, filled up, since other shapes mean other kernels; there a row must be the same in every place,
which it is not where a library divides a product of few tiles among all processors.
"""

from __future__ import annotations

import logging
import math
from functools import cached_property

import torch
from torch import Tensor

from scdd.core.rng import CounterRNG, integers, uniforms
from scdd.lm.model import LM
from scdd.lm.run import windows
from scdd.ops.common import EVEN, Filters, compute_weights, raw_logits
from scdd.samplers.prediction import Prediction, row_groups

log = logging.getLogger("scdd.serve")
SIZES = (8, 4, 2)  # of groups
FILTERS = Filters(top_p=0.9)


class Sharing:
    """Remembers what was tried."""

    def __init__(self, lm: LM, fixed: int | None) -> None:
        """`fixed`: evaluate this many rows always, filled up (a GPU), or more where these do not agree."""
        self._lm, self._fixed = lm, fixed
        self._tried: dict[tuple[int, int], bool] = {}
        self._able = (fixed is not None or lm.device.type == "cpu") and not lm.engine.autoregressive

    def size(self, rows: int, length: int) -> int | None:
        """Rows of an evaluation, for this many texts of this many tokens; None: each by itself."""
        if not self._able:
            return self._fixed
        if self._fixed is not None:
            return self._filled(self._fixed, length)
        if rows < 2:
            return None
        # the last group is filled up, so a size that leaves much to fill is no bargain
        for size in sorted(SIZES, key=lambda k: math.ceil(rows / k) * (k + 1)):
            if size <= rows and all(self._agrees(size, part) for part in self._lengths(length)):
                return size
        return None

    def _filled(self, fixed: int, length: int) -> int:
        """The same for any number of texts: the size that was asked for, or the next that agrees; one row always does."""
        sizes = (fixed, 2 * fixed, 4 * fixed)
        return next((k for k in sizes if all(self._agrees(k, n) for n in self._lengths(length))), 1)

    def _lengths(self, length: int) -> set[int]:
        """The framed windows that a text is written in."""
        engine = self._lm.engine
        return {window.stop - window.start + 2 for window in windows(length, engine.room)}

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

    def _places_agree(self, size: int, length: int) -> bool:
        """Each row one place further on: what is the same in neighbouring places is the same in all."""
        z, u = self._random(size, length)
        here, next_ = (self._seen(z.roll(k, 0), u.roll(k, 0), size) for k in (0, 1))
        return all(torch.equal(a.roll(1, 0), b) for a, b in zip(here, next_, strict=True))

    def _rows_agree(self, size: int, length: int) -> bool:
        """Together and one by one."""
        z, u = self._random(size, length)
        together, apart = (self._seen(z, u, k) for k in (size, None))
        return all(torch.equal(a, b) for a, b in zip(together, apart, strict=True))

    def _random(self, size: int, length: int) -> tuple[Tensor, Tensor]:
        """Random rows, half of them masks, and numbers to draw with."""
        vocab, source = self._lm.tokenizer.vocab, CounterRNG(length, range(size))
        tokens = vocab.token(integers(vocab.K, (size, length), source))
        z = torch.where(uniforms((size, length), source) < 0.5, vocab.mask_id, tokens)
        return z.to(self._lm.device), uniforms((size, length), source).to(self._lm.device)

    @torch.no_grad()
    def _seen(self, z: Tensor, u: Tensor, rows_per_forward: int | None) -> list[Tensor]:
        """What a sampler can see of the rows."""
        denoiser, everywhere = self._lm.engine.model.denoiser, torch.ones_like(u, dtype=torch.bool)
        prediction = Prediction(denoiser, row_groups(z, None, rows_per_forward), z, 0.5, FILTERS)
        return [prediction.log_p_z, *prediction.draw(everywhere, u), *prediction.top()]

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
