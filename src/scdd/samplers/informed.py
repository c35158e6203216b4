"""Informed Corrector: beside each predictor step, redraw the tokens that the network is least sure of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor

from scdd.core import Transition
from scdd.core.errors import UserError
from scdd.processes.base import Process
from scdd.samplers.base import Context, Sampler, certain, lowest, need_mask_only


@final
@dataclass(frozen=True)
class Informed(Sampler):
    """MDLM's step on the masks; of the visible tokens, the `corrections` with the lowest margin are redrawn from x_θ.

    margin_d = log x_θ(z_d) − max_{v ≠ z_d} log x_θ(v). Approximate: the method wants x_θ(· | all but d), from a hollow
    network, and a plain denoiser has seen z_d itself. Predictor and corrector share one evaluation.
    """

    corrections: int = 1
    name: ClassVar[str] = "informed"
    approximate: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.corrections < 1:
            raise UserError(
                f"informed's corrections is {self.corrections}: redraw at least one token a step."
            )

    def check(self, process: Process | None) -> None:
        """Only masked models."""
        need_mask_only(self, process)

    def step(self, z_t: Tensor, ctx: Context) -> Transition:
        """Ancestral at masks, model at the least certain visible tokens."""
        masked = z_t == ctx.vocab.mask_id
        best = ctx.seen.top(2)
        first = best.tokens[..., 0] == z_t
        rival = torch.where(first, best.log_p[..., 1], best.log_p[..., 0])
        doubtful = lowest(best.log_p_z - rival, ctx.free & ~masked, self.corrections)
        walk = ctx.process.transition(z_t, best.log_p_z.exp(), ctx.at_s, ctx.at_t)
        return Transition(
            keep=torch.where(doubtful, 0.0, walk.keep),
            model=torch.where(doubtful, 1.0, walk.model),
            uniform=walk.uniform * certain(~doubtful),
            mask=walk.mask * certain(~doubtful),
        )
