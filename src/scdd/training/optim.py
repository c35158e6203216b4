"""AdamW as in the paper (appendix "Training Details"): warm-up, cosine, clipping, and no host sync anywhere."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn


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
    """torch's AdamW with those settings, its state by parameter name.

    The reference code decays every parameter, biases and norms too, and so does this.
    """

    def __init__(self, parameters: Iterable[tuple[str, nn.Parameter]], settings: Optim) -> None:
        self.settings = settings
        self.parameters = {name: p for name, p in parameters if p.requires_grad}
        weights = list(self.parameters.values())
        self.fused = all(p.is_cuda for p in weights)
        self.adamw = torch.optim.AdamW(
            weights,
            lr=settings.peak,
            betas=settings.betas,
            eps=settings.epsilon,
            weight_decay=settings.weight_decay,
            fused=self.fused,
            foreach=None if self.fused else True,
        )

    def step(self, step: int) -> Tensor:
        """One update at the learning rate of `step`; returns the gradient's norm before clipping, on the device."""
        weights = list(self.parameters.values())
        norm = torch.nn.utils.get_total_norm([p.grad for p in weights if p.grad is not None], foreach=True)
        if hasattr(norm, "full_tensor"):
            norm = norm.full_tensor()  # sharded: every rank learns the norm of the whole
        if self.settings.clip is not None:
            torch.nn.utils.clip_grads_with_norm_(weights, self.settings.clip, norm, foreach=True)
        for group in self.adamw.param_groups:
            group["lr"] = self.settings.learning_rate(step)
        self.adamw.step()
        self.adamw.zero_grad(set_to_none=True)
        return norm

    def state(self, updates: int) -> dict[str, Tensor]:
        """Both moments of every parameter after so many updates; the tensors are the live ones, made here if need be."""
        found: dict[str, Tensor] = {}
        for name, p in self.parameters.items():
            state = self.adamw.state[p]
            if not state:
                where = p.device if self.fused else torch.device("cpu")
                state["step"] = torch.tensor(float(updates), dtype=torch.float32, device=where)
                state["exp_avg"] = torch.zeros_like(p)
                state["exp_avg_sq"] = torch.zeros_like(p)
            found[f"{name}.exp_avg"], found[f"{name}.exp_avg_sq"] = state["exp_avg"], state["exp_avg_sq"]
        return found
