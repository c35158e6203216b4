"""The network as samplers use it: evaluated group by group, so that a sample's numbers do not depend on its batch.

Matrix products round differently for different numbers of rows, and one last bit can turn a draw. On a CPU every sample
is therefore its own group, cut to its own length: alone or in a batch, it goes through the very same operations. Only where
that changes no bit do rows of one length go together (`samplers.packing` tries it). On a GPU
all rows go together, which is fast and repeats exactly for the same batch; `rows_per_forward=m` evaluates exactly m rows at a time
(the last group is filled up), and then a sample depends on m and on the padded length only, provided that the library rounds
a row alike in every place among the m (`serve.sharing` tries it). The random numbers are the same in every case (`core.rng.CounterRNG`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from scdd.core.denoiser import Denoiser
from scdd.ops.common import NO_FILTERS, Filters
from scdd.ops.head import Draw, HeadStats, Top, all_logits, head_stats, redraw, redrawn, top


@dataclass(frozen=True)
class Group:
    """Rows that are evaluated together, the columns they use, and how many rows fill the group up."""

    rows: slice | list[int]
    length: int
    fill: int = 0
    documents: Tensor | None = None  # [n, L], −1 at padding; None where there is none
    parts: tuple[Group, ...] = ()
    """The groups of one row each that it was joined from, if it was."""

    @property
    def places(self) -> Sequence[int]:
        """Of its rows in the batch."""
        return range(self.rows.start, self.rows.stop) if isinstance(self.rows, slice) else self.rows

    def take(self, x: Tensor) -> Tensor:
        """The group's part of x [B, L, ...]; filling rows repeat the last one."""
        part = x[self.rows, : self.length]
        return part if not self.fill else torch.cat([part, part[-1:].expand(self.fill, *part.shape[1:])])


def rows_for(count: int, fewer: Sequence[int], usual: int | None) -> int | None:
    """Rows of the evaluations of `count` rows: the least of `fewer` (ascending) that holds them all, or the usual number."""
    return next((size for size in fewer if size >= count), usual)


@dataclass
class Room:
    """How many rows evaluations have, while rows come and go: less only after some steps for which that would have done."""

    fewer: tuple[int, ...]  # that round as the usual number does, ascending
    usual: int | None
    patience: int = 0  # steps
    held: int = 0  # rows that there are, or were some steps ago
    spare: int = 0  # steps for which less room would have done

    @property
    def size(self) -> int | None:
        """Rows of one evaluation."""
        return rows_for(self.held, self.fewer, self.usual)

    @property
    def rows(self) -> int:
        """Rows of all evaluations of a step together, filled up."""
        return self._of(self.held)

    def leave(self, count: int) -> None:
        """So many rows are left."""
        if not count or not self.patience:
            self.held = count

    def made_do(self, count: int) -> bool:
        """A step of so many rows begins: whether they have less room from now on."""
        self.spare = 0 if self._of(count) == self.rows else self.spare + 1
        if self.spare <= self.patience:
            return False
        self.spare, self.held = 0, count
        return True

    def _of(self, count: int) -> int:
        size = rows_for(count, self.fewer, self.usual)
        return count if size is None else -(-count // size) * size


def row_groups(
    z: Tensor, lengths: Sequence[int] | None = None, rows_per_forward: int | None = None, masked: bool = False
) -> tuple[Group, ...]:
    """How the rows of z [B, L] are evaluated; `lengths` says how many columns of each row are real.

    `masked`: the network is told of padding even where there is none, so that rows of any length go the same way.
    """
    batch, length = z.shape
    real = [length] * batch if lengths is None else list(lengths)
    if len(real) != batch or max(real) > length or min(real) < 1:
        raise ValueError(f"lengths {real} do not fit tokens of shape ({batch}, {length})")
    if rows_per_forward is None and z.device.type == "cpu":
        return tuple(Group(slice(i, i + 1), real[i]) for i in range(batch))
    size = rows_per_forward or batch
    groups = []
    for start in range(0, batch, size):
        ends = real[start : start + size]
        fill = size - len(ends)
        documents = None
        if masked or min(ends) < length:
            stops = torch.tensor(ends + ends[-1:] * fill, device=z.device)
            documents = torch.where(torch.arange(length, device=z.device) < stops[:, None], 0, -1)
        groups.append(Group(slice(start, start + len(ends)), length, fill, documents))
    return tuple(groups)


class Known(NamedTuple):
    """What the network said of a group of rows; the same tokens need not be asked about again where it looks at them alone."""

    tokens: Tensor
    documents: Tensor | None
    hidden: Tensor
    stats: HeadStats | None
    """If somebody asked for them."""

    def holds(self, tokens: Tensor, documents: Tensor | None) -> bool:
        """Whether the group has not changed."""
        return documents is self.documents and torch.equal(tokens, self.tokens)

    def part(self, row: int, length: int) -> Known:
        """Of one row of a joined group."""
        own = slice(row * length, (row + 1) * length)
        stats = None if self.stats is None else HeadStats(self.stats.log_total[own], self.stats.log_p_z[own], None)
        return Known(self.tokens[row : row + 1], None, self.hidden[row : row + 1], stats)


class Prediction:
    """x_θ(z_t, t) at every position, and the questions that a sampler may ask of it. Shapes [B, L] throughout."""

    def __init__(
        self,
        denoiser: Denoiser,
        groups: Sequence[Group],
        z_t: Tensor,
        t: float | Tensor,
        filters: Filters = NO_FILTERS,
        before: Prediction | None = None,
        packing: Callable[[Sequence[Group]], list[Group]] | None = None,
    ) -> None:
        """Evaluates the network, for the rows of `groups` (those that have finished may be left out).

        t and the filters' temperature are numbers, or columns [B, 1], each row's own; the temperature may be [B, L] as well. `before` is an
        evaluation of the same rows with the same filters: groups whose tokens are still the same are not evaluated again, if the network
        looks at nothing else. `packing` joins groups of one row each before they are evaluated.
        """
        known = {} if before is None else before._known()
        found = [(group, known.get(_place(group))) for group in groups]
        same = [(group, old) for group, old in found if old is not None and old.holds(group.take(z_t), group.documents)]
        kept = {_place(group) for group, _ in same}
        new = [group for group in groups if _place(group) not in kept]
        if packing is not None:
            new = packing(new)
        self._head, self._z = denoiser.head, z_t
        self._groups = [*(group for group, _ in same), *new]
        self._same = [*(old for _, old in same), *[None] * len(new)]
        self._filters = [_spread_filters(filters, group) for group in self._groups]
        self._tokens = [group.take(z_t) for group in self._groups]
        self._hidden = [
            denoiser.hidden(tokens, _times(t, group, tokens), group.documents) if old is None else old.hidden
            for group, tokens, old in zip(self._groups, self._tokens, self._same, strict=True)
        ]
        self._log_p_z: Tensor | None = None

    def _known(self) -> dict[Place, Known]:
        """What was found of each group, by where it is; of joined ones, of each row."""
        stats: Sequence[HeadStats | None] = self.__dict__.get("_stats", [None] * len(self._groups))
        found: dict[Place, Known] = {}
        for group, tokens, hidden, each in zip(self._groups, self._tokens, self._hidden, stats, strict=True):
            whole = Known(tokens, group.documents, hidden, each)
            if not group.parts:
                found[_place(group)] = whole
            for row, part in enumerate(group.parts):
                found[_place(part)] = whole.part(row, group.length)
        return found

    @property
    def log_p_z(self) -> Tensor:
        """log x_θ(z_t) after the filters, float32; −∞ at masks."""
        if self._log_p_z is None:
            self._log_p_z = self._spread([stats.log_p_z for stats in self._stats], -torch.inf)
        return self._log_p_z

    @property
    def known_log_p_z(self) -> Tensor | None:
        """`log_p_z`, if somebody has asked for it already."""
        return self._log_p_z

    def draw(self, moves: Tensor, u: Tensor, filters: Filters | None = None) -> tuple[Tensor, Tensor]:
        """(Tokens, log x_θ) drawn from the filtered x_θ where `moves`, by uniform numbers u; elsewhere (−1, −∞).

        On a GPU the draw reuses the logits of `log_p_z`, which also spares the host sync that picks rows.
        """
        drawn = []
        for i, group in enumerate(self._groups):
            logits = self._stats[i].logits if self._z.is_cuda else None
            drawn.append(
                redraw(
                    self._hidden[i].flatten(0, 1),
                    self._head,
                    group.take(moves).reshape(-1),
                    group.take(u).reshape(-1),
                    filters or self._filters[i],
                    self._tokens[i].reshape(-1),
                    logits,
                )
            )
        return self._spread([d.tokens for d in drawn], -1), self._spread([d.log_p for d in drawn], -torch.inf)

    def draw_over(
        self, moves: Tensor, u: Tensor, filters: Filters | None, otherwise: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, Tensor]:
        """`draw`, and `otherwise` at the positions that stay: on a GPU in the same launch, where the rows are one group."""
        if self._z.is_cuda and self._in_one and (logits := self._stats[0].logits) is not None:
            which, z, *rest = (x.reshape(-1) for x in (u, self._tokens[0], *otherwise))
            if not (chosen := filters or self._filters[0]).other_nucleus:
                drawn = redrawn(logits, self._head, moves.reshape(-1), which, chosen, z, Draw(*rest))
                return drawn.tokens.reshape(moves.shape), drawn.log_p.reshape(moves.shape)
        new, log_p = self.draw(moves, u, filters)
        return torch.where(moves, new, otherwise[0]), torch.where(moves, log_p, otherwise[1])

    def top(self, k: int = 1) -> Top:
        """The k likeliest tokens everywhere ([B, L, k]), unfiltered, with log x_θ(z_t) beside them."""
        best = [
            top(hidden.flatten(0, 1), self._head, tokens.reshape(-1), k)
            for hidden, tokens in zip(self._hidden, self._tokens, strict=True)
        ]
        return Top(
            self._spread([each.tokens for each in best], 0),
            self._spread([each.log_p for each in best], -torch.inf),
            self._spread([each.log_p_z for each in best], -torch.inf),
        )

    @cached_property
    def logits(self) -> Tensor:
        """[B, L, V] float32 before any filter, −∞ at the mask and where a row was not evaluated: whole, so only if asked for."""
        return self._spread(
            [
                all_logits(hidden.flatten(0, 1), self._head, tokens.reshape(-1))
                for hidden, tokens in zip(self._hidden, self._tokens, strict=True)
            ],
            -torch.inf,
        )

    def apply(self, module: Callable[[Tensor], Tensor]) -> Tensor:
        """A head of another kind on the hidden states, [B, L, D] → [B, L] (PRISM's quality)."""
        return self._spread([module(hidden).reshape(-1) for hidden in self._hidden], 0.0)

    @cached_property
    def _stats(self) -> list[HeadStats]:
        return [
            head_stats(hidden.flatten(0, 1), self._head, tokens.reshape(-1), filters)
            if same is None or same.stats is None
            else same.stats
            for hidden, tokens, filters, same in zip(self._hidden, self._tokens, self._filters, self._same, strict=True)
        ]

    @property
    def _in_one(self) -> bool:
        """Whether all rows are one group, and nothing fills it up."""
        return len(self._groups) == 1 and not self._groups[0].fill and self._tokens[0].shape == self._z.shape

    def _spread(self, values: Sequence[Tensor], fill: float) -> Tensor:
        """Per-group results [n·l, ...] put back into [B, L, ...]."""
        whole = self._z.shape
        if self._in_one:
            return values[0].reshape(*whole, *values[0].shape[1:])
        tail = values[0].shape[1:] if values else ()
        dtype = values[0].dtype if values else torch.float32
        out = torch.full((*whole, *tail), fill, dtype=dtype, device=self._z.device)
        for group, value in zip(self._groups, values, strict=True):
            count = len(group.places)
            rows = value.reshape(count + group.fill, group.length, *tail)
            out[group.rows, : group.length] = rows[:count]
        return out


Place = tuple[int, int, int]


def _place(group: Group) -> Place:
    assert isinstance(group.rows, slice)
    return group.rows.start, group.rows.stop, group.length


def _spread_filters(filters: Filters, group: Group) -> Filters:
    """With a temperature for every position of the group, where each row has its own."""
    if not isinstance(filters.temperature, Tensor):
        return filters
    of_rows = group.take(filters.temperature)
    return replace(filters, temperature=of_rows.expand(-1, group.length).reshape(-1))


def _times(t: float | Tensor, group: Group, tokens: Tensor) -> Tensor:
    """One time a row, [n] float64."""
    if isinstance(t, Tensor):
        return group.take(t)[:, 0]
    return torch.full((len(tokens),), t, dtype=torch.float64, device=tokens.device)
