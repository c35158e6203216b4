"""AdamW as in the paper (appendix "Training Details"): warm-up, cosine, clipping, and no host sync anywhere."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from scdd.models.ema import EMA, local
from scdd.ops.update import Rates, Slots, update


@dataclass(frozen=True)
class Optim:
    """The paper's settings: β 0.9/0.999, ε 1e-9, weight decay 0.02 on every parameter, gradient norm at most 1.

    The learning rate rises linearly from `initial` to `peak` in `warmup` steps, then falls as a cosine to
    `final_fraction` of the peak at `steps`.
    """

    steps: int
    peak: float = 5e-4
    initial: float = 1e-6
    final_fraction: float = 0.1
    warmup: int = 10_000
    betas: tuple[float, float] = (0.9, 0.999)
    epsilon: float = 1e-9
    weight_decay: float = 0.02
    clip: float | None = 1.0

    def learning_rate(self, step: float) -> float:
        """At optimiser step 0, 1, 2, …"""
        if step < self.warmup:
            return self.initial + (self.peak - self.initial) * step / self.warmup
        done = min(1.0, (step - self.warmup) / max(1, self.steps - self.warmup))
        share = self.final_fraction + (1 - self.final_fraction) * 0.5 * (1 + math.cos(math.pi * done))
        return self.peak * share


class AdamW:
    """AdamW with those settings, its two moments by parameter name, and the moving average in the same pass.

    The reference code decays every parameter, biases and norms too, and so does this. Sharded parameters are updated
    where their shards are: only the gradient's norm needs all of them.
    """

    def __init__(
        self, parameters: Iterable[tuple[str, nn.Parameter]], settings: Optim, impl: str = "auto"
    ) -> None:
        self.settings, self.impl = settings, impl
        self.parameters = {name: p for name, p in parameters if p.requires_grad}
        self.first = {name: torch.zeros_like(p) for name, p in self.parameters.items()}
        self.second = {name: torch.zeros_like(p) for name, p in self.parameters.items()}

    @torch.no_grad()
    def step(self, step: int, ema: EMA | None = None) -> Tensor:
        """The update number `step`, from 0 on, then `ema`'s; returns the gradient's norm before clipping, on the device."""
        used = [name for name, p in self.parameters.items() if p.grad is not None]
        gradients = [g for g in (self.parameters[name].grad for name in used) if g is not None]
        norm = torch.nn.utils.get_total_norm(gradients, foreach=True)
        if hasattr(norm, "full_tensor"):
            norm = norm.full_tensor()  # sharded: every rank learns the norm of the whole
        settings = self.settings
        rates = Rates(
            settings.learning_rate(step),
            settings.betas,
            settings.epsilon,
            settings.weight_decay,
            updates=step + 1,
            pull=0.0 if ema is None else ema.advance(),
        )
        groups: tuple[list[Tensor], ...] = (
            [self.parameters[name] for name in used],
            gradients,
            [self.first[name] for name in used],
            [self.second[name] for name in used],
            [] if ema is None else [ema.shadow[name] for name in used],
        )
        update(Slots(*map(local, groups)), self._scale(norm), rates, self.impl)
        for p in self.parameters.values():
            p.grad = None
        return norm

    def _scale(self, norm: Tensor) -> Tensor:
        """What clipping multiplies the gradients with."""
        if self.settings.clip is None:
            return torch.ones_like(norm)
        return (self.settings.clip / (norm + 1e-6)).clamp(max=1.0)

    def state(self) -> dict[str, Tensor]:
        """Both moments of every parameter; the tensors are the live ones."""
        first = {f"{name}.exp_avg": tensor for name, tensor in self.first.items()}
        return first | {f"{name}.exp_avg_sq": tensor for name, tensor in self.second.items()}
