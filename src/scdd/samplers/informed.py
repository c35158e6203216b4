"""Informed Corrector: beside each predictor step, redraw the tokens that the network is least sure of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor

from scdd.core import Transition
from scdd.samplers.base import Context, Sampler, certain, lowest
from scdd.samplers.options import InformedOptions


@final
@dataclass(frozen=True)
class Informed(InformedOptions, Sampler):
    """MDLM's step on the masks; of the visible tokens, the `corrections` with the lowest margin are redrawn from x_θ.

    margin_d = log x_θ(z_d) − max_{v ≠ z_d} log x_θ(v). Approximate: the method wants x_θ(· | all but d), from a hollow
    network, and a plain denoiser has seen z_d itself. Predictor and corrector share one evaluation.
    """

    masks_only: ClassVar[bool] = True
    by_row: ClassVar[bool] = True

    def step(self, z_t: Tensor, ctx: Context) -> Transition:
        """Ancestral at masks, model at the least certain visible tokens."""
        masked = z_t == ctx.vocab.mask_id
        best = ctx.prediction.top(2)
        first = best.tokens[..., 0] == z_t
        rival = torch.where(first, best.log_p[..., 1], best.log_p[..., 0])
        doubtful = lowest(best.log_p_z - rival, ctx.updatable & ~masked, self.corrections)
        walk = ctx.process.transition(z_t, best.log_p_z.exp(), ctx.step.at_s, ctx.step.at_t)
        return Transition(
            keep=torch.where(doubtful, 0.0, walk.keep),
            model=torch.where(doubtful, 1.0, walk.model),
            uniform=walk.uniform * certain(~doubtful),
            mask=walk.mask * certain(~doubtful),
        )
