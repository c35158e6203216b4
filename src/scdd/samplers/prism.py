"""PRISM: a quality head says which visible tokens are probably wrong, and those are masked again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor

from scdd.core import Transition
from scdd.core.errors import UserError
from scdd.samplers.base import Context, Model, Sampler, certain, lowest
from scdd.samplers.options import PrismOptions


@final
@dataclass(frozen=True)
class Prism(PrismOptions, Sampler):
    """Of n visible tokens, the round(σn) with the lowest g_φ are remasked, σ = min(remask, (1 − α_s)/α_t).

    Masks are filled with ReMDM's probability for that σ, so that the expected number of masks stays the schedule's, but for
    the rounding of σn.
    """

    masks_only: ClassVar[bool] = True
    by_row: ClassVar[bool] = True

    def check(self, model: Model) -> None:
        """Only masked models with a quality head."""
        super().check(model)
        if model.quality is None:
            raise UserError(
                "sampler prism needs a quality head, which this model lacks: train one with the objective prism, or use remdm.",
                "sampler",
            )

    def step(self, z_t: Tensor, ctx: Context) -> Transition:
        """Remask by quality, fill by chance; the last step only fills."""
        assert ctx.model.quality is not None
        masked = z_t == ctx.vocab.mask_id
        visible = ctx.updatable & ~masked
        alpha_s, alpha_t, hidden_t = ctx.step.at_s.gamma, ctx.step.at_t.gamma, ctx.step.at_t.one_minus_gamma
        sigma = (ctx.step.at_s.one_minus_gamma / alpha_t.clamp(min=1e-300)).clamp(max=self.remask)
        count = torch.floor(sigma * visible.sum(1, keepdim=True) + 0.5).to(torch.int64)
        wrong = lowest(ctx.prediction.apply(ctx.model.quality).to(torch.float64), visible, count)
        fill = ((alpha_s - (1.0 - sigma) * alpha_t) / hidden_t.clamp(min=1e-300)).clamp(0.0, 1.0)
        return Transition(
            keep=certain(~masked & ~wrong),
            model=certain(masked) * fill,
            uniform=torch.zeros(z_t.shape, dtype=torch.float64, device=z_t.device),
            mask=torch.where(masked, 1.0 - fill, certain(wrong)),
        )
