"""Left to right with a key/value cache, for the autoregressive baseline: one token of every row a step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, cast, final

import torch
from torch import Tensor

from scdd.core.errors import UserError
from scdd.core.rng import uniforms
from scdd.ops.head import Draw, redraw
from scdd.processes.autoregressive import Autoregressive
from scdd.samplers.base import Context, Grid, Model, Sampler, Tokens
from scdd.samplers.options import ArOptions


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
class Ar(ArOptions, Sampler):
    """Draws x_{i+1} ~ p(· | x_{≤ i}). The frozen tokens must be a prompt, of one token at least ([BOS]).

    The model's end-of-text ends a row, and fills what is left of it. Steps are tokens here: N steps become as many as are
    to be drawn, and the prompt is read in the first of them.
    """

    finishes: ClassVar[bool] = True
    reads_network: ClassVar[bool] = True

    def check(self, model: Model) -> None:
        """Only autoregressive models, whose network is causal and remembers what it has read."""
        if not isinstance(model.process, Autoregressive):
            raise UserError("sampler ar needs an autoregressive model: use ancestral for this one.", "sampler")
        if not hasattr(model.denoiser, "cache"):
            raise UserError(
                "sampler ar needs a network with a cache, and this one has none: give it cache(capacity).", "sampler"
            )

    def times(self, grid: Grid, model: Model, updatable: Tensor) -> Grid:
        """As many steps as the longest row has tokens to draw."""
        steps = max(1, int(updatable.sum(1).max()))
        return tuple(1.0 - i / steps for i in range(steps + 1))

    def step(self, z_t: Tensor, ctx: Context) -> Tokens:
        """The next token of each row."""
        if not ctx.memory:
            ctx.memory["readers"] = _readers(z_t, ctx)
        u = uniforms((z_t.shape[0], 1), ctx.rng)[:, 0]
        tokens, log_p = z_t.clone(), torch.full(z_t.shape, torch.nan, device=z_t.device)
        ended = torch.zeros(z_t.shape[0], dtype=torch.bool, device=z_t.device)
        for reader in ctx.memory["readers"]:
            column, rows = reader.start + ctx.step.number - 1, reader.rows
            if column >= z_t.shape[1]:
                continue
            drawn = self._next(reader, z_t, ctx, u)
            tokens[rows, column], log_p[rows, column] = drawn.tokens, drawn.log_p.to(log_p.dtype)
            ended[rows] = column + 1 >= ctx.state.lengths[rows]
            if (eos := ctx.model.eos_id) is not None:
                stops = drawn.tokens == eos
                ended[rows] |= stops
                rest = torch.arange(z_t.shape[1], device=z_t.device) > column
                tokens[rows] = torch.where(stops[:, None] & rest, eos, tokens[rows])
        return Tokens(tokens, log_p, finished=ended)

    def _next(self, reader: Reader, z_t: Tensor, ctx: Context, u: Tensor) -> Draw:
        """Read what is new to the reader's cache, and draw what comes after it."""
        column, mask_id = reader.start + ctx.step.number - 1, ctx.vocab.mask_id
        fresh = z_t[reader.rows, 0 if ctx.step.number == 1 else column - 1 : column]
        filler = ctx.model.eos_id if ctx.model.eos_id is not None else int(mask_id == 0)
        fresh = torch.where(fresh == mask_id, filler, fresh)  # rows that have ended
        hidden = cast(Causal, ctx.model.denoiser).hidden(fresh, None, None, cache=reader.cache)[:, -1]
        every = torch.ones(len(reader.rows), dtype=torch.bool, device=z_t.device)
        unseen = torch.full_like(reader.rows, mask_id)
        return redraw(hidden, ctx.model.denoiser.head, every, u[reader.rows], ctx.plan.filters, unseen)


def _readers(z_t: Tensor, ctx: Context) -> list[Reader]:
    """Rows grouped by the length of their prompts; on a CPU each row reads alone (`prediction`)."""
    columns = torch.arange(z_t.shape[1], device=z_t.device)
    given = ((columns < ctx.state.lengths[:, None]) & ~ctx.updatable).cpu()
    starts = given.sum(1).tolist()
    for row, start in enumerate(starts):
        if start == 0 or not bool(given[row, :start].all()):
            raise UserError(
                "An autoregressive model can only go on from a prompt: freeze tokens at the start of each row only, "
                "and use a diffusion model for infilling."
            )
    alone = z_t.device.type == "cpu"
    keys = [i if alone else start for i, start in enumerate(starts)]
    readers = []
    for key in dict.fromkeys(keys):
        rows = [i for i, each in enumerate(keys) if each == key]
        cache = cast(Causal, ctx.model.denoiser).cache(z_t.shape[1])
        readers.append(Reader(torch.tensor(rows, device=z_t.device), starts[rows[0]], cache))
    return readers
