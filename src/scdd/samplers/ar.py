"""Left to right with a key/value cache, for the autoregressive baseline: one token of every row a step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, cast, final

import torch
from torch import Tensor

from scdd.core.errors import UserError
from scdd.core.rng import uniforms
from scdd.ops import redraw
from scdd.processes.base import Process
from scdd.samplers.base import Context, Sampler, Tokens
from scdd.samplers.grids import Grid


class Causal(Protocol):
    """What this sampler asks of a network beyond `Denoiser`."""

    def hidden(self, z_t: Tensor, t: None, documents: None, cache: Any) -> Tensor:
        """Hidden states of the new tokens, the cache holding those before."""
        ...

    def cache(self, capacity: int) -> Any:
        """An empty cache."""
        ...


@dataclass
class Reader:
    """Rows that are read together: their prompts are equally long, so their caches stay in step."""

    rows: Tensor
    start: int
    cache: Any


@final
@dataclass(frozen=True)
class Ar(Sampler):
    """Draws x_{i+1} ~ p(· | x_{≤ i}). The frozen tokens must be a prompt, of one token at least ([BOS]).

    `eos_id` ends a row, and fills what is left of it. Steps are tokens here: N steps become as many as are to be drawn,
    and the prompt is read in the first of them.
    """

    eos_id: int | None = None
    name: ClassVar[str] = "ar"
    finishes: ClassVar[bool] = True

    def check(self, process: Process | None) -> None:
        """Only autoregressive models, which have no process."""
        if process is not None:
            raise UserError(
                "The sampler ar needs an autoregressive model: use sampler ancestral for this one."
            )

    def times(self, grid: Grid, process: Process | None, free: Tensor) -> Grid:
        """As many steps as the longest row has tokens to draw."""
        steps = max(1, int(free.sum(1).max()))
        return tuple(1.0 - i / steps for i in range(steps + 1))

    def step(self, z_t: Tensor, ctx: Context) -> Tokens:
        """The next token of each row."""
        readers = ctx.memory.setdefault("readers", None) or self._begin(z_t, ctx)
        ctx.memory["readers"] = readers
        ctx.count()
        u = uniforms((z_t.shape[0], 1), ctx.source)[:, 0]
        tokens, log_p = z_t.clone(), torch.full(z_t.shape, torch.nan, device=z_t.device)
        ended = torch.zeros(z_t.shape[0], dtype=torch.bool, device=z_t.device)
        lengths = torch.tensor(ctx.lengths, device=z_t.device)
        for reader in readers:
            column = reader.start + ctx.step - 1
            if column >= z_t.shape[1]:
                continue
            fresh = (
                z_t[reader.rows, column - 1 : column] if ctx.step > 1 else z_t[reader.rows, : reader.start]
            )
            fresh = torch.where(fresh == ctx.vocab.mask_id, self._filler(ctx), fresh)  # rows that have ended
            hidden = cast(Causal, ctx.denoiser).hidden(fresh, None, None, cache=reader.cache)[:, -1]
            every = torch.ones(len(reader.rows), dtype=torch.bool, device=z_t.device)
            unseen = torch.full_like(reader.rows, ctx.vocab.mask_id)
            drawn = redraw(hidden, ctx.denoiser.head, every, u[reader.rows], ctx.filters, unseen)
            tokens[reader.rows, column], log_p[reader.rows, column] = (
                drawn.tokens,
                drawn.log_p.to(log_p.dtype),
            )
            ended[reader.rows] = column + 1 >= lengths[reader.rows]
            if self.eos_id is not None:
                stops = drawn.tokens == self.eos_id
                ended[reader.rows] |= stops
                rest = torch.arange(z_t.shape[1], device=z_t.device) > column
                tokens[reader.rows] = torch.where(stops[:, None] & rest, self.eos_id, tokens[reader.rows])
        ctx.finish(ended)
        return Tokens(tokens, log_p)

    def _filler(self, ctx: Context) -> int:
        return self.eos_id if self.eos_id is not None else int(ctx.vocab.mask_id == 0)

    def _begin(self, z_t: Tensor, ctx: Context) -> list[Reader]:
        """Group rows by the length of their prompts; on a CPU each row reads alone (`network`)."""
        if not getattr(getattr(ctx.denoiser, "config", None), "causal", False):
            raise UserError(
                "The sampler ar needs an autoregressive model: use sampler ancestral for this one."
            )
        real = (
            torch.arange(z_t.shape[1], device=z_t.device)
            < torch.tensor(ctx.lengths, device=z_t.device)[:, None]
        )
        given = (real & ~ctx.free).cpu()
        starts = given.sum(1).tolist()
        for row, start in enumerate(starts):
            if start == 0 or not bool(given[row, :start].all()):
                raise UserError(
                    "An autoregressive model can only go on from a prompt: freeze tokens at the start of each row only, "
                    "and use a diffusion model for infilling."
                )
        alone = z_t.device.type == "cpu"
        keys = [(i,) if alone else (start,) for i, start in enumerate(starts)]
        readers = []
        for key in dict.fromkeys(keys):
            rows = [i for i, each in enumerate(keys) if each == key]
            where = torch.tensor(rows, device=z_t.device)
            readers.append(Reader(where, starts[rows[0]], cast(Causal, ctx.denoiser).cache(z_t.shape[1])))
        return readers
