"""GIDD's post-hoc self-correction: the finished text is resampled, one token a round, until it stops improving."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor

from scdd.core import Transition
from scdd.core.errors import UserError
from scdd.ops import Filters
from scdd.processes.base import Process
from scdd.samplers.ancestral import Ancestral
from scdd.samplers.base import Context, Sampler, Tokens, noisy


@final
@dataclass(frozen=True)
class GiddCorrect(Sampler):
    """Ancestral down to clean text, then at most `rounds` rounds at t = 0.

    In a round every free position gets a proposal from x_θ at `temperature`; of the proposals that differ from the
    standing token, the one with the highest probability is taken. A row ends when the share of its tokens that are the
    argmax of x_θ has not risen for `patience` rounds: a fixed point, as far as sampling can tell.
    """

    rounds: int = 64
    temperature: float = 0.1
    patience: int = 8
    name: ClassVar[str] = "gidd-correct"
    finishes: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.rounds < 1 or self.patience < 1:
            raise UserError("gidd-correct needs at least one round and a patience of at least one.")
        if not self.temperature > 0.0:
            raise UserError(f"gidd-correct's temperature is {self.temperature}: it must be positive.")

    def check(self, process: Process | None) -> None:
        """Only models that have learnt to doubt visible tokens."""
        Sampler.check(self, process)
        if process is not None and not noisy(process):
            raise UserError(
                "The sampler gidd-correct needs a model trained with uniform noise, and this process has none: "
                "use process.kind=scdd or gidd with p_u > 0, or sampler remdm."
            )

    def step(self, z_t: Tensor, ctx: Context) -> Transition | Tokens:
        """The walk first, the rounds after it."""
        return self._round(z_t, ctx) if ctx.polishing else Ancestral().step(z_t, ctx)

    def _round(self, z_t: Tensor, ctx: Context) -> Tokens:
        proposed, log_p = ctx.seen.draw(ctx.free, ctx.uniforms(), Filters(temperature=self.temperature))
        score = torch.where(ctx.free & (proposed != z_t), log_p, -torch.inf)
        chosen = torch.zeros_like(ctx.free).scatter_(1, score.argmax(1, keepdim=True), True) & (
            score > -torch.inf
        )
        self._watch(z_t, ctx)
        return Tokens(torch.where(chosen, proposed, z_t), torch.where(chosen, log_p, torch.nan))

    def _watch(self, z_t: Tensor, ctx: Context) -> None:
        """Remember each row's best self-accuracy, and end the rows that wait for a better one in vain."""
        agrees = (ctx.free & (ctx.seen.top().tokens[..., 0] == z_t)).sum(1)
        best, waited = ctx.memory.get("best", torch.full_like(agrees, -1)), ctx.memory.get("waited", 0)
        better = agrees > best
        ctx.memory["best"] = torch.where(better, agrees, best)
        ctx.memory["waited"] = torch.where(better, 0, waited + 1)
        ctx.finish(ctx.memory["waited"] >= self.patience)
