"""The network as samplers use it: evaluated group by group, so that a sample's numbers do not depend on its batch.

Matrix products round differently for different numbers of rows, and one last bit can turn a draw. On a CPU every sample
is therefore its own group, cut to its own length: alone or in a batch, it goes through the very same operations. On a GPU
all rows go together, which is fast and repeats exactly for the same batch; `together=m` evaluates exactly m rows at a time
(the last group is filled up), and then a sample depends on m and on the padded length only, provided that the library rounds
a row alike in every place among the m (with 64 rows of the bundled model an H200 does, with 16 it does not; `serve.sharing`
tries it). The random numbers are the same in every case (`core.rng.CounterRNG`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from scdd.core.denoiser import Denoiser
from scdd.core.errors import UserError
from scdd.ops import Filters, HeadStats, Top, head_stats, redraw, top


@dataclass(frozen=True)
class Group:
    """Rows that are evaluated together, the columns they use, and how many rows fill the group up."""

    rows: slice
    length: int
    fill: int = 0
    documents: Tensor | None = None  # [n, L], −1 at padding; None where there is none

    def take(self, x: Tensor) -> Tensor:
        """The group's part of x [B, L, ...]; filling rows repeat the last one."""
        part = x[self.rows, : self.length]
        return part if not self.fill else torch.cat([part, part[-1:].expand(self.fill, *part.shape[1:])])


def groups(
    batch: int, length: int, lengths: Sequence[int] | None, device: torch.device, together: int | None
) -> tuple[Group, ...]:
    """How B rows of L columns are evaluated; `lengths` says how many columns of each row are real."""
    if together is not None and together < 1:
        raise UserError(f"together is {together}: evaluate at least one row at a time.")
    real = [length] * batch if lengths is None else list(lengths)
    if len(real) != batch or max(real) > length or min(real) < 1:
        raise ValueError(f"lengths {real} do not fit tokens of shape ({batch}, {length})")
    if together is None and device.type == "cpu":
        return tuple(Group(slice(i, i + 1), real[i]) for i in range(batch))
    size = together or batch
    made = []
    for start in range(0, batch, size):
        some = real[start : start + size]
        fill = size - len(some)
        documents = None
        if min(some) < length:
            ends = torch.tensor(some + some[-1:] * fill, device=device)
            columns = torch.arange(length, device=device)
            documents = torch.where(columns < ends[:, None], 0, -1)
        made.append(Group(slice(start, start + len(some)), length, fill, documents))
    return tuple(made)


class Evaluation:
    """x_θ(z_t, t) at every position, and the questions that a sampler may ask of it. Shapes [B, L] throughout."""

    def __init__(
        self, denoiser: Denoiser, parts: Sequence[Group], z_t: Tensor, t: Tensor, filters: Filters
    ) -> None:
        """`parts`: the groups to evaluate (rows that have finished may be left out); t [B] float64."""
        self._head, self._parts, self._z, self._filters = denoiser.head, parts, z_t, filters
        self._tokens = [part.take(z_t) for part in parts]
        times = [part.take(t[:, None]).reshape(-1) for part in parts]
        self._hidden = [
            denoiser.hidden(tokens, time, part.documents)
            for part, tokens, time in zip(parts, self._tokens, times, strict=True)
        ]

    @cached_property
    def log_p_z(self) -> Tensor:
        """log x_θ(z_t) after the filters, float32; −∞ at masks."""
        return self._spread([stats.log_p_z for stats in self._stats], -torch.inf)

    def draw(self, moves: Tensor, u: Tensor, filters: Filters | None = None) -> tuple[Tensor, Tensor]:
        """(Tokens, log x_θ) drawn from the filtered x_θ where `moves`, by uniform numbers u; elsewhere (−1, −∞).

        On a GPU the draw reuses the logits of `log_p_z`, which also spares the host sync that picks rows.
        """
        drawn = []
        for i, part in enumerate(self._parts):
            logits = self._stats[i].logits if self._z.is_cuda else None
            drawn.append(
                redraw(
                    self._hidden[i].flatten(0, 1),
                    self._head,
                    part.take(moves).reshape(-1),
                    part.take(u).reshape(-1),
                    filters or self._filters,
                    self._tokens[i].reshape(-1),
                    logits,
                )
            )
        return self._spread([d.tokens for d in drawn], -1), self._spread([d.log_p for d in drawn], -torch.inf)

    def top(self, k: int = 1) -> Top:
        """The k likeliest tokens everywhere ([B, L, k]), unfiltered, with log x_θ(z_t) beside them."""
        found = [
            top(hidden.flatten(0, 1), self._head, tokens.reshape(-1), k)
            for hidden, tokens in zip(self._hidden, self._tokens, strict=True)
        ]
        return Top(
            self._spread([f.tokens for f in found], 0),
            self._spread([f.log_p for f in found], -torch.inf),
            self._spread([f.log_p_z for f in found], -torch.inf),
        )

    def apply(self, module: Callable[[Tensor], Tensor]) -> Tensor:
        """A head of another kind on the hidden states, [B, L, D] → [B, L] (PRISM's quality)."""
        return self._spread([module(hidden).reshape(-1) for hidden in self._hidden], 0.0)

    @cached_property
    def _stats(self) -> list[HeadStats]:
        return [
            head_stats(hidden.flatten(0, 1), self._head, tokens.reshape(-1), self._filters)
            for hidden, tokens in zip(self._hidden, self._tokens, strict=True)
        ]

    def _spread(self, values: Sequence[Tensor], fill: float) -> Tensor:
        """Per-group results [n·l, ...] put back into [B, L, ...]."""
        whole = self._z.shape
        if len(values) == 1 and not self._parts[0].fill and self._tokens[0].shape == whole:
            return values[0].reshape(*whole, *values[0].shape[1:])
        tail = values[0].shape[1:] if values else ()
        dtype = values[0].dtype if values else torch.float32
        out = torch.full((*whole, *tail), fill, dtype=dtype, device=self._z.device)
        for part, value in zip(self._parts, values, strict=True):
            count = part.rows.stop - part.rows.start
            out[part.rows, : part.length] = value.reshape(count + part.fill, part.length, *tail)[:count]
        return out
