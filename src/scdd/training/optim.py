"""AdamW as in the paper (appendix "Training Details"), or Muon with AdamW around it: warm-up, cosine, clipping.

Nothing here waits for the device.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from scdd.models.blocks import is_block_matrix
from scdd.models.ema import EMA, local
from scdd.ops.update import Rates, Slots, update
from scdd.training.muon import Muon


@dataclass(frozen=True)
class Optim:
    """The paper's settings: β 0.9/0.999, ε 1e-9, weight decay 0.02 on every parameter, gradient norm at most 1.

    The learning rate rises linearly from `initial` to `peak` in `warmup` steps, then falls as a cosine to
    `final_fraction` of the peak at `steps`. `muon` is the peak learning rate of Muon for the matrices inside the blocks,
    on the same curve; None leaves them to AdamW, as the paper does.
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
    muon: float | None = None
    momentum: float = 0.95

    def learning_rate(self, step: float) -> float:
        """At optimiser step 0, 1, 2, …"""
        if step < self.warmup:
            return self.initial + (self.peak - self.initial) * step / self.warmup
        done = min(1.0, (step - self.warmup) / max(1, self.steps - self.warmup))
        share = self.final_fraction + (1 - self.final_fraction) * 0.5 * (1 + math.cos(math.pi * done))
        return self.peak * share


class Optimiser:
    """AdamW with those settings, its moments by parameter name, the moving average in the same pass; Muon where asked.

    The reference code decays every parameter, biases and norms too, and so does this. Sharded parameters are updated
    where their shards are: AdamW needs all of them for the gradient's norm only.
    """

    def __init__(
        self, parameters: Iterable[tuple[str, nn.Parameter]], settings: Optim, impl: str = "auto"
    ) -> None:
        self.settings, self.impl = settings, impl
        self.parameters = {name: p for name, p in parameters if p.requires_grad}
        inner = {name: p for name, p in self.parameters.items() if settings.muon and is_block_matrix(name)}
        self.muon = Muon(inner, settings.momentum)
        self.outer = [name for name in self.parameters if name not in inner]
        self.first = {name: torch.zeros_like(self.parameters[name]) for name in self.outer}
        self.second = {name: torch.zeros_like(self.parameters[name]) for name in self.outer}

    @torch.no_grad()
    def step(self, step: int, ema: EMA | None = None) -> Tensor:
        """The update number `step`, from 0 on, then `ema`'s; returns the gradient's norm before clipping, on the device."""
        gradients = [p.grad for p in self.parameters.values() if p.grad is not None]
        norm = torch.nn.utils.get_total_norm(gradients, foreach=True)
        if hasattr(norm, "full_tensor"):
            norm = norm.full_tensor()  # sharded: every rank learns the norm of the whole
        settings, scale = self.settings, self._scale(norm)
        rate, pull = settings.learning_rate(step), 0.0 if ema is None else ema.advance()
        if settings.muon:
            self.muon.step(scale, settings.muon * rate / settings.peak, settings.weight_decay)
            if ema is not None:
                ema.pull(self.muon.matrices, pull)
        rates = Rates(rate, settings.betas, settings.epsilon, settings.weight_decay, step + 1, pull)
        update(self._slots(ema), scale, rates, self.impl)
        for p in self.parameters.values():
            p.grad = None
        return norm

    def _scale(self, norm: Tensor) -> Tensor:
        """What clipping multiplies the gradients with."""
        if self.settings.clip is None:
            return torch.ones_like(norm)
        return (self.settings.clip / (norm + 1e-6)).clamp(max=1.0)

    def _slots(self, ema: EMA | None) -> Slots:
        """AdamW's tensors, this rank's part of them."""
        used = {name: self.parameters[name] for name in self.outer if self.parameters[name].grad is not None}
        groups: tuple[list[Tensor], ...] = (
            list(used.values()),
            [p.grad for p in used.values() if p.grad is not None],
            [self.first[name] for name in used],
            [self.second[name] for name in used],
            [] if ema is None else [ema.shadow[name] for name in used],
        )
        return Slots(*map(local, groups))

    def state(self) -> dict[str, Tensor]:
        """The moments of every parameter; the tensors are the live ones."""
        kinds = {"exp_avg": self.first, "exp_avg_sq": self.second, "velocity": self.muon.velocity}
        return {f"{name}.{kind}": t for kind, held in kinds.items() for name, t in held.items()}
