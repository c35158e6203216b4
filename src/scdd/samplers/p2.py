"""P2-Self: path planning with the denoiser as its own planner."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor

from scdd.samplers.base import Context, Sampler, Tokens, lowest
from scdd.samplers.options import P2Options


@final
@dataclass(frozen=True)
class P2(P2Options, Sampler):
    """Every position has a candidate: the token that stands there, or at a mask a draw of x_θ.

    A drawn candidate scores log x_θ(y), a standing one η·log x_θ(z): of itself, not of a fresh draw. The share 1 − γ_s
    of the free positions (rounded down) with the lowest scores is masked; everywhere else the candidate stands.
    η = 0 never remasks, larger η remasks more.
    """

    masks_only: ClassVar[bool] = True
    by_row: ClassVar[bool] = True

    def step(self, z_t: Tensor, ctx: Context) -> Tokens:
        """Rank all candidates of a row and mask the worst."""
        masked = z_t == ctx.vocab.mask_id
        drawn, log_p = ctx.prediction.draw(ctx.updatable & masked, ctx.uniforms())
        standing = self.eta * ctx.prediction.log_p_z if self.eta > 0.0 else torch.zeros_like(log_p)
        score = torch.where(masked, log_p, standing)
        count = torch.floor(ctx.step.at_s.one_minus_gamma * ctx.updatable.sum(1, keepdim=True)).to(torch.int64)
        worst = lowest(score, ctx.updatable, count)
        candidate = torch.where(masked, drawn, z_t)
        tokens = torch.where(worst, ctx.vocab.mask_id, candidate)
        return Tokens(tokens, torch.where(worst, -torch.inf, torch.where(masked, log_p, ctx.prediction.log_p_z)))
