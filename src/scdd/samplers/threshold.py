"""Confidence-threshold parallel decoding: everything the network is sure of is filled in at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor

from scdd.core.errors import UserError
from scdd.processes.base import Process
from scdd.samplers.base import Context, Sampler, Tokens, need_mask_only


@final
@dataclass(frozen=True)
class Threshold(Sampler):
    """Masks whose likeliest token has x_θ ≥ threshold are filled with a draw of x_θ; if too few have, the surest ones.

    At least ⌈masks left / steps left⌉ are filled in each step, so N steps always suffice, and a row without masks ends
    there: easy text takes fewer evaluations. Confidence is that of the unfiltered x_θ, draws are filtered; `top_k=1`
    makes them greedy.
    """

    threshold: float = 0.9
    name: ClassVar[str] = "threshold"
    finishes: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not 0.0 <= self.threshold <= 1.0:
            raise UserError(f"threshold is {self.threshold}: it is a probability, so choose one in [0, 1].")

    def check(self, process: Process | None) -> None:
        """Only masked models."""
        need_mask_only(self, process)

    def step(self, z_t: Tensor, ctx: Context) -> Tokens:
        """Fill what is sure enough, and as many more as the steps left require."""
        masked = ctx.free & (z_t == ctx.vocab.mask_id)
        confidence = ctx.seen.top().log_p[..., 0].to(torch.float64).exp()
        left = ctx.steps - ctx.step + 1
        count = (masked.sum(1) + left - 1) // left
        ranked = torch.where(masked, -confidence, torch.inf).sort(dim=1, stable=True).indices
        sure = torch.argsort(ranked, dim=1) < count[:, None]
        filled = masked & (sure | (confidence >= self.threshold))
        drawn, log_p = ctx.seen.draw(filled, ctx.uniforms())
        tokens = torch.where(filled, drawn, z_t)
        ctx.finish(~(masked & ~filled).any(1))
        return Tokens(tokens, torch.where(filled, log_p, torch.nan))
