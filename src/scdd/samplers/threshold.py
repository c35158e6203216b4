"""Confidence-threshold parallel decoding: everything the network is sure of is filled in at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor

from scdd.samplers.base import Context, Sampler, Tokens
from scdd.samplers.options import ThresholdOptions


@final
@dataclass(frozen=True)
class Threshold(ThresholdOptions, Sampler):
    """Masks whose likeliest token has x_θ ≥ threshold are filled with a draw of x_θ; if too few have, the surest ones.

    At least ⌈masks left / steps left⌉ are filled in each step, so N steps always suffice, and a row without masks ends
    there: easy text takes fewer evaluations. Confidence is that of the unfiltered x_θ, draws are filtered; `top_k=1`
    makes them greedy.
    """

    finishes: ClassVar[bool] = True
    masks_only: ClassVar[bool] = True
    by_row: ClassVar[bool] = True

    def step(self, z_t: Tensor, ctx: Context) -> Tokens:
        """Fill what is sure enough, and as many more as the steps left require."""
        masked = ctx.updatable & (z_t == ctx.vocab.mask_id)
        confidence = ctx.prediction.top().log_p[..., 0].to(torch.float64).exp()
        left = ctx.step.total - ctx.step.number + 1
        count = (masked.sum(1, keepdim=True) + left - 1) // left
        ranked = torch.where(masked, -confidence, torch.inf).sort(dim=1, stable=True).indices
        sure = torch.argsort(ranked, dim=1) < count
        filled = masked & (sure | (confidence >= self.threshold))
        drawn, log_p = ctx.prediction.draw(filled, ctx.uniforms())
        tokens = torch.where(filled, drawn, z_t)
        return Tokens(tokens, torch.where(filled, log_p, torch.nan), finished=~(masked & ~filled).any(1))
