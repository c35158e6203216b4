"""Muon (Jordan et al., 2024) for the matrices inside the blocks: momentum, made orthogonal, is the step.

An orthogonal step moves every direction of a matrix alike, where a gradient's few strong directions would drown the
rest. Matrices of one shape go through the iteration together, so that it takes a few dozen launches for a network.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from scdd.training.parallel import local, share_of, whole_from

ROUNDS = 5
A, B, C = 3.4445, -4.7750, 2.0315  # x → A x + B x³ + C x⁵ on singular values: quickly near 1, not exactly 1


def orthogonal(x: Tensor) -> Tensor:
    """Matrices [n, rows, columns] with all singular values near 1 (0.7 to 1.2) and the same singular vectors."""
    tall = x.shape[-2] > x.shape[-1]
    x = x.mT if tall else x
    x = x / (torch.linalg.matrix_norm(x, keepdim=True) + 1e-7)
    x = x.to(torch.bfloat16 if x.is_cuda else x.dtype)
    for _ in range(ROUNDS):
        square = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(square, square, square, beta=B, alpha=C), x, beta=A)
    return x.mT if tall else x


class Muon:
    """The momentum of some matrices by name, and their update. Shards are gathered for the iteration alone."""

    def __init__(self, matrices: dict[str, nn.Parameter], momentum: float) -> None:
        self.matrices, self.momentum = matrices, momentum
        self.velocity = {name: torch.zeros_like(p) for name, p in matrices.items()}
        self.groups: dict[tuple[int, ...], list[str]] = {}
        for name, p in matrices.items():
            self.groups.setdefault(tuple(p.shape), []).append(name)

    @torch.no_grad()
    def step(self, scale: Tensor, learning_rate: float, weight_decay: float) -> None:
        """One update; the gradients are multiplied by `scale` first, and decay is decoupled as in AdamW."""
        for shape, names in self.groups.items():
            used = [name for name in names if self.matrices[name].grad is not None]
            if not used:
                continue
            weights = [self.matrices[name] for name in used]
            gradients = local([g for g in (p.grad for p in weights) if g is not None])
            velocity = local([self.velocity[name] for name in used])
            torch._foreach_mul_(gradients, scale)
            torch._foreach_lerp_(velocity, gradients, 1 - self.momentum)
            ahead = torch._foreach_lerp(gradients, velocity, self.momentum)  # Nesterov's look ahead
            whole = torch.stack([whole_from(part, p) for part, p in zip(ahead, weights, strict=True)])
            steps = [share_of(step, p) for step, p in zip(orthogonal(whole), weights, strict=True)]
            reach = learning_rate * max(1.0, shape[0] / shape[1]) ** 0.5
            places = local(list(weights))
            torch._foreach_mul_(places, 1 - learning_rate * weight_decay)
            torch._foreach_add_(places, steps, alpha=-reach)
