"""GIDD's post-hoc self-correction: the finished text is resampled, one token a round, until it stops improving."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor

from scdd.core import Transition
from scdd.core.errors import UserError
from scdd.ops.common import Filters
from scdd.processes.base import Process
from scdd.samplers.ancestral import Ancestral
from scdd.samplers.base import Context, Model, Sampler, Tokens
from scdd.samplers.options import GiddCorrectOptions


@final
@dataclass(frozen=True)
class GiddCorrect(GiddCorrectOptions, Sampler):
    """Ancestral down to clean text, then at most `corrections` rounds at t = 0.

    In a round every free position gets a proposal from x_θ at `temperature`; of the proposals that differ from the
    standing token, the one with the highest probability is taken. A row ends when the share of its tokens that are the
    argmax of x_θ has not risen for `patience` rounds: a fixed point, as far as sampling can tell.
    """

    finishes: ClassVar[bool] = True
    by_row: ClassVar[bool] = True

    @property
    def extra_steps(self) -> int:
        """A round is a step."""
        return self.corrections

    def check(self, model: Model) -> None:
        """Only models that have learnt to doubt visible tokens."""
        super().check(model)
        if isinstance(model.process, Process) and not model.process.has_uniform_noise:
            raise UserError(
                "sampler gidd-correct needs a model trained with uniform noise, and this process has none: "
                "use an scdd or gidd model with p_u > 0, or remdm.",
                "sampler",
            )

    def memory(self, rows: Tensor) -> dict[str, Tensor]:
        """The best agreement so far, and for how many rounds it has not risen."""
        none = torch.zeros(len(rows), dtype=torch.int64, device=rows.device)
        return {"best": none - 1, "waited": none}

    def step(self, z_t: Tensor, ctx: Context) -> Transition:
        """The walk, which comes first."""
        return Ancestral().step(z_t, ctx)

    def refine(self, z_t: Tensor, ctx: Context) -> Tokens:
        """A round."""
        filters = Filters(temperature=self.temperature)
        proposed, log_p = ctx.prediction.draw(ctx.updatable, ctx.uniforms(), filters)
        score = torch.where(ctx.updatable & (proposed != z_t), log_p, -torch.inf)
        best = torch.zeros_like(ctx.updatable).scatter_(1, score.argmax(1, keepdim=True), True)
        chosen = best & (score > -torch.inf)
        tokens = torch.where(chosen, proposed, z_t)
        return Tokens(tokens, torch.where(chosen, log_p, torch.nan), self._settled(z_t, ctx))

    def _settled(self, z_t: Tensor, ctx: Context) -> Tensor:
        """Rows [B] that have waited in vain for a better agreement with the model than their best so far."""
        agrees = (ctx.updatable & (ctx.prediction.top().tokens[..., 0] == z_t)).sum(1)
        better = agrees > ctx.memory["best"]
        ctx.memory["best"] = torch.where(better, agrees, ctx.memory["best"])
        ctx.memory["waited"] = torch.where(better, 0, ctx.memory["waited"] + 1)
        settled: Tensor = ctx.memory["waited"] >= self.patience
        return settled
