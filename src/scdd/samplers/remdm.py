"""ReMDM: a masked model whose visible tokens may be masked again, at unchanged marginals."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor

from scdd.core import Transition
from scdd.core.errors import UserError
from scdd.processes.base import Process
from scdd.samplers.base import Context, Grid, Model, Sampler, certain
from scdd.samplers.options import RemdmOptions


@final
@dataclass(frozen=True)
class Remdm(RemdmOptions, Sampler):
    """Visible tokens are masked with probability σ; masks are filled with [α_s − (1 − σ)α_t]/(1 − α_t), α = γ.

    With the largest possible σ_max = min(1, (1 − α_s)/α_t):
    cap: σ = min(η, σ_max). rescale: σ = η·σ_max. conf: σ_l = softmax_l(ψ)·σ_max, ψ = −x_θ(token) when it was drawn.
    loop: no remasking until α_on of the tokens are visible; then the time stands still while the share t_on − t_off of
    the steps remask with cap; then the rest is filled in.
    """

    masks_only: ClassVar[bool] = True
    by_row: ClassVar[bool] = True

    def times(self, grid: Grid, model: Model, updatable: Tensor) -> Grid:
        """loop bends the grid: level α_on is reached at t_on, left at t_off."""
        process = model.process
        if self.variant != "loop" or not isinstance(process, Process):
            return grid
        if grid[0] != 1.0:
            raise UserError("remdm's loop runs from masks: start the grid at 1, or use variant cap.")
        return (1.0, *(_time_of(process, self._alpha(u)) for u in grid[1:-1]), 0.0)

    def _alpha(self, u: float) -> float:
        """The share of visible tokens at grid time u."""
        if u > self.t_on:
            return (1.0 - u) / (1.0 - self.t_on) * self.alpha_on
        if u >= self.t_off:
            return self.alpha_on
        return 1.0 - u / self.t_off * (1.0 - self.alpha_on)

    def step(self, z_t: Tensor, ctx: Context) -> Transition:
        """Remask or fill; the last step fills everything, since σ_max is 0 there."""
        masked = z_t == ctx.vocab.mask_id
        alpha_s, alpha_t, hidden_t = ctx.step.at_s.gamma, ctx.step.at_t.gamma, ctx.step.at_t.one_minus_gamma
        most = (ctx.step.at_s.one_minus_gamma / alpha_t.clamp(min=1e-300)).clamp(max=1.0)
        sigma = self._sigma(most, masked, ctx)
        # masks are filled faster by what is remasked elsewhere; conf's σ_l is 0 at a mask, so there they are not
        gained = torch.zeros_like(most) if self.variant == "conf" else sigma
        fill = ((alpha_s - (1.0 - gained) * alpha_t) / hidden_t.clamp(min=1e-300)).clamp(0.0, 1.0)
        return Transition(
            keep=torch.where(masked, 0.0, 1.0 - sigma),
            model=certain(masked) * fill,
            uniform=torch.zeros(z_t.shape, dtype=torch.float64, device=z_t.device),
            mask=torch.where(masked, 1.0 - fill, sigma),
        )

    def _sigma(self, most: Tensor, masked: Tensor, ctx: Context) -> Tensor:
        if self.variant == "rescale":
            return self.eta * most
        if self.variant == "conf":
            psi = torch.where(
                ctx.updatable & ~masked, -ctx.state.log_p_when_drawn.exp().nan_to_num(1.0), -torch.inf
            ).to(torch.float64)
            return torch.softmax(psi, dim=1).nan_to_num(0.0) * most
        standing = ctx.step.at_s.gamma == ctx.step.at_t.gamma
        cap = most.clamp(max=self.eta)
        return cap if self.variant == "cap" else torch.where(standing, cap, 0.0)


def _time_of(process: Process, alpha: float) -> float:
    """The time at which γ is `alpha`, by bisection: γ falls."""
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = 0.5 * (low + high)
        if float(process.levels(middle).gamma) > alpha:
            low = middle
        else:
            high = middle
    return high
