"""Reverse walks with their counts: the texts, what each position first said, and how many moves each step made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from scdd.core.denoiser import Denoiser
from scdd.core.rng import CounterRNG
from scdd.evals.likelihood import Watch
from scdd.lm.run import Settings
from scdd.processes.base import Process
from scdd.samplers.drive import CORRECTED, REMASKED, UNMASKED, drive


@dataclass(frozen=True)
class Engine:
    """What a walk needs; `lm.run.Engine` is one, and a table with a process makes one for tests."""

    denoiser: Denoiser
    process: Process | None


class Walked(NamedTuple):
    """N rows of L tokens after S steps, on the CPU. `first` holds each position's first visible token."""

    tokens: Tensor  # [N, L]
    first: Tensor  # [N, L]
    moves: Tensor  # [N, S, 3]: positions unmasked, corrected and remasked in each step
    nfe: Tensor  # [N]


@torch.no_grad()
def walk(
    engine: Engine,
    settings: Settings,
    z: Tensor,
    frozen: Tensor | None,
    indices: Sequence[int],
    watch: Watch | None = None,
    looking: bool = True,
) -> Walked:
    """Walk rows z [N, L], number `indices` of the seed, along the settings' grid.

    `looking` follows each step, for the counts; without it only the ends are seen, which is quicker, and `first` is the
    final text and `moves` the totals.
    """
    parts = []
    mask = engine.denoiser.vocab.mask_id
    for start in range(0, len(indices), settings.batch_size):
        cut = slice(start, start + settings.batch_size)
        some = z[cut]
        first, moves, frame = some.clone(), [], None
        for frame in drive(
            engine.denoiser,
            engine.process,
            settings.sampler,
            settings.grid,
            some,
            source=CounterRNG(settings.seed, list(indices[cut]), z.device),
            frozen=None if frozen is None else frozen[cut],
            filters=settings.filters,
            draws=settings.draws,
            final=settings.final,
            tolerance=settings.tolerance,
            record=looking,
            together=settings.together,
        ):
            if looking:
                first = torch.where(first == mask, frame.tokens, first)
                kinds = [(frame.moved == kind).sum(1) for kind in (UNMASKED, CORRECTED, REMASKED)]
                moves.append(torch.stack(kinds, dim=1))
        assert frame is not None
        counted = torch.stack(moves, dim=1) if moves else frame.counts[:, None]
        ends = frame.tokens if not looking else first
        parts.append(Walked(frame.tokens.cpu(), ends.cpu(), counted.cpu(), frame.nfe.cpu()))
        if watch is not None:
            watch(len(some))
    if not parts:
        none = torch.zeros((0, z.shape[1]), dtype=torch.int64)
        return Walked(none, none, torch.zeros((0, len(settings.grid) - 1, 3), dtype=torch.int64), none[:, 0])
    longest = max(part.moves.shape[1] for part in parts)  # rows that all stop early have fewer steps
    filled = [torch.nn.functional.pad(p.moves, (0, 0, 0, longest - p.moves.shape[1])) for p in parts]
    return Walked(
        torch.cat([p.tokens for p in parts]),
        torch.cat([p.first for p in parts]),
        torch.cat(filled),
        torch.cat([p.nfe for p in parts]),
    )
