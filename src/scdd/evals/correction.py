"""Self-correction: how often, when, and to what good (`tab:correction_rate`, Figures `fig:ablation1-1`, `fig:ablation1-2`).

A rate says little by itself: a perfect denoiser corrects too, since the process draws noise and takes it back. So the
measured rate always stands beside the intrinsic one, and the excess is what the model adds. Whether corrections help is
asked of a judge: the text as each position first had it, against the finished one, against a walk that may not correct.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, final

import torch
from torch import Tensor

from scdd.core import Transition
from scdd.evals import stats
from scdd.processes.base import Process
from scdd.samplers.base import Context, Grid, Sampler, Tokens, certain
from scdd.samplers.intrinsic import intrinsic


@final
@dataclass(frozen=True)
class Uncorrected(Sampler):
    """The ablation: `inner`'s pace of unmasking, but visible tokens stay, and masks are filled from x_θ without noise.

    Noise has to go as well: it is drawn to be taken back, and nobody would.
    """

    inner: Sampler
    name: ClassVar[str] = "uncorrected"

    def check(self, process: Process | None) -> None:
        """As the inner one."""
        self.inner.check(process)

    def times(self, grid: Grid, process: Process | None, free: Tensor) -> Grid:
        """As the inner one."""
        return self.inner.times(grid, process, free)

    def step(self, z_t: Tensor, ctx: Context) -> Transition | Tokens:
        """Moves at masks only."""
        move = self.inner.step(z_t, ctx)
        masked = z_t == ctx.vocab.mask_id
        if isinstance(move, Tokens):
            still = torch.where(masked, move.tokens, z_t)
            return Tokens(still, torch.where(masked, move.log_p, torch.nan))
        hidden = certain(masked)
        return Transition(
            keep=torch.where(masked, move.keep, 1.0),
            model=hidden * (move.model + move.uniform),
            uniform=torch.zeros_like(hidden),
            mask=hidden * move.mask,
        )


def rates(moves: Tensor, length: int, process: Process | None, grid: Grid) -> dict[str, Any]:
    """Correction rate C/L and C/(L·N) with errors over samples, beside the intrinsic rate and the excess over it.

    `moves` [N, S, 3] as `walk` counts them. Remaskings are reported too: GIDD's corrections go through the mask as well.
    """
    corrected = moves[..., 1].double()
    rate = stats.mean((corrected.sum(1) / length).tolist())
    remasked = stats.mean((moves[..., 2].double().sum(1) / length).tolist())
    per_step = corrected.mean(0) / length
    steps = moves.shape[1]
    found: dict[str, Any] = {
        "rate": rate.value,
        "rate_error": rate.error,
        "rate_per_step": rate.value / steps,
        "rate_per_step_error": rate.error / steps,
        "remasked": remasked.value,
        "remasked_error": remasked.error,
        "steps": steps,
        "samples": rate.units,
        "cumulative": cumulative(per_step),
    }
    if process is None:
        return found
    own = intrinsic(process, grid)
    return {
        **found,
        "intrinsic": own.corrections,
        "excess": rate.value - own.corrections,
        "intrinsic_per_step": own.corrections / (len(grid) - 1),
        "intrinsic_remasked": own.remasked,
        "intrinsic_cumulative": cumulative(torch.tensor(own.per_step, dtype=torch.float64)),
    }


def cumulative(per_step: Tensor) -> list[float]:
    """The fraction of all corrections that is done by each step, Figure `fig:ablation1-2`."""
    total = float(per_step.sum())
    return (per_step.cumsum(0) / total).tolist() if total > 0 else [0.0] * len(per_step)
