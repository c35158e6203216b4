"""Muon (Jordan et al., 2024) for the matrices inside the blocks: momentum, made orthogonal, is the step.

An orthogonal step moves every direction of a matrix alike, where a gradient's few strong directions would drown the
rest. It needs the whole matrix, and is dear; so every matrix has one rank that owns it:

- One process owns all, and takes those of a shape together, so that a network costs a few dozen launches.
- Replicas (DDP) each take their own matrices and send the steps to the others.
- Shards (FSDP2) go round by round. In a round each rank owns at most one matrix, is sent its rows by the others, and
  sends them theirs of the step: beside its shards, a rank holds one whole matrix at a time, and no other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from scdd.training.parallel import World, local

ROUNDS = 5
A, B, C = 3.4445, -4.7750, 2.0315  # x → A x + B x³ + C x⁵ on singular values: quickly near 1, not exactly 1


def _type_of(x: Tensor) -> torch.dtype:
    """In which the iteration runs."""
    return torch.bfloat16 if x.is_cuda else x.dtype


def orthogonal(x: Tensor) -> Tensor:
    """Matrices [n, rows, columns] with all singular values near 1 (0.7 to 1.2) and the same singular vectors."""
    tall = x.shape[-2] > x.shape[-1]
    x = x.mT if tall else x
    x = x / (torch.linalg.matrix_norm(x, keepdim=True) + 1e-7)
    x = x.to(_type_of(x))
    for _ in range(ROUNDS):
        square = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(square, square, square, beta=B, alpha=C), x, beta=A)
    return x.mT if tall else x


class Muon:
    """The momentum of some matrices by name, and their update."""

    def __init__(self, matrices: dict[str, nn.Parameter], momentum: float, world: World | None = None) -> None:
        self.matrices, self.momentum = matrices, momentum
        self.velocity = {name: torch.zeros_like(p) for name, p in matrices.items()}
        self.shards = next((Shards(p) for p in matrices.values() if hasattr(p, "full_tensor")), None)
        self.world = world or World()
        ranks = self.shards.size if self.shards is not None else self.world.size
        self.owners = dealt({name: tuple(p.shape) for name, p in matrices.items()}, ranks)
        # What goes together: matrices of one shape, or of shards one for each rank.
        self.batches: dict[Any, list[str]] = {}
        for name, (number, _) in self.owners.items():
            key = tuple(matrices[name].shape) if self.shards is None else number
            self.batches.setdefault(key, []).append(name)

    @torch.no_grad()
    def step(self, scale: Tensor, learning_rate: float, weight_decay: float) -> None:
        """One update; the gradients are multiplied by `scale` first, and decay is decoupled as in AdamW.

        A scale that is not finite leaves everything as it is.
        """
        finite = torch.isfinite(scale)
        keep = torch.where(finite, scale.new_full((), 1 - learning_rate * weight_decay), 1.0)
        for names in self.batches.values():
            used = [name for name in names if self.matrices[name].grad is not None]
            if not used:
                continue
            weights = [self.matrices[name] for name in used]
            gradients = local([g for g in (p.grad for p in weights) if g is not None])
            velocity = local([self.velocity[name] for name in used])
            torch._foreach_mul_(gradients, scale)
            for gradient, speed in zip(gradients, velocity, strict=True):
                torch.where(finite, gradient, speed, out=gradient)
            torch._foreach_lerp_(velocity, gradients, 1 - self.momentum)
            ahead = torch._foreach_lerp(gradients, velocity, self.momentum)  # Nesterov's look ahead
            steps = self._steps(used, ahead)
            torch._foreach_mul_(steps, finite.to(scale.dtype))
            places = local(list(weights))
            torch._foreach_mul_(places, keep)
            for shape in dict.fromkeys(p.shape for p in weights):
                reach = learning_rate * max(1.0, shape[0] / shape[1]) ** 0.5
                here = [i for i, p in enumerate(weights) if p.shape == shape]
                torch._foreach_add_([places[i] for i in here], [steps[i] for i in here], alpha=-reach)

    def _steps(self, names: Sequence[str], ahead: Sequence[Tensor]) -> list[Tensor]:
        """The orthogonal of each matrix, or this rank's rows of it, in the type of its weights."""
        owners = [self.owners[name][1] for name in names]
        if self.shards is not None:
            found = self.shards.steps([tuple(self.matrices[name].shape) for name in names], owners, ahead)
        elif self.world.size > 1:
            found = _shared(owners, self.world.rank, ahead)
        else:
            found = list(orthogonal(torch.stack(list(ahead))))
        return [step.to(part.dtype) for step, part in zip(found, ahead, strict=True)]


def dealt(shapes: dict[str, tuple[int, ...]], ranks: int) -> dict[str, tuple[int, int]]:
    """(Round, owner) of each matrix: the dearest first, one a rank in each round, back and forth, so that loads are near.

    The iteration costs a matrix its numbers times its shorter side.
    """
    costs = {name: shape[0] * shape[1] * min(shape) for name, shape in shapes.items()}
    found = {}
    for place, name in enumerate(sorted(costs, key=lambda name: -costs[name])):
        number, seat = divmod(place, ranks)
        found[name] = number, seat if number % 2 == 0 else ranks - 1 - seat
    return {name: found[name] for name in shapes}


def _shared(owners: Sequence[int], rank: int, ahead: Sequence[Tensor]) -> list[Tensor]:
    """Replicas: this rank's share of the matrices, all of one shape, is worked out here, and everybody's sent to all."""
    own = [i for i, owner in enumerate(owners) if owner == rank]
    found = torch.empty((len(ahead), *ahead[0].shape), dtype=_type_of(ahead[0]), device=ahead[0].device)
    if own:
        for i, step in zip(own, orthogonal(torch.stack([ahead[i] for i in own])), strict=True):
            found[i] = step
    under_way = [dist.broadcast(step, owner, async_op=True) for step, owner in zip(found, owners, strict=True)]
    for each in under_way:
        each.wait()
    return list(found)


class Shards:
    """How FSDP2 deals a matrix's rows to a group of ranks, and the way of a round of matrices to their owners and back.

    With several groups that hold the same (HSDP), each group does so on its own.
    """

    def __init__(self, like: Any) -> None:
        axis = next(i for i, placement in enumerate(like.placements) if placement.is_shard(0))
        mesh = like.device_mesh
        self.group, self.rank, self.size = mesh.get_group(axis), mesh.get_local_rank(axis), mesh.size(axis)

    def rows(self, count: int, rank: int) -> int:
        """How many of a matrix's `count` rows that rank has: equal parts, the last ones less or none."""
        part = -(-count // int(self.size))
        return min(part, max(0, count - rank * part))

    def steps(self, shapes: Sequence[tuple[int, ...]], owners: Sequence[int], ahead: Sequence[Tensor]) -> list[Tensor]:
        """This rank's rows of the orthogonal of each matrix, from its rows of each; no two have the same owner."""
        order = sorted(range(len(owners)), key=lambda i: owners[i])  # as the exchange wants it
        sent = [0] * self.size
        for i in order:
            sent[owners[i]] = ahead[i].numel()
        mine = next((shapes[i] for i in order if owners[i] == self.rank), (0, 0))
        received = [self.rows(mine[0], rank) * mine[1] for rank in range(self.size)]

        whole = ahead[0].new_empty(mine)
        parts = torch.cat([ahead[i].reshape(-1) for i in order])
        dist.all_to_all_single(whole.view(-1), parts, received, sent, group=self.group)
        kind = _type_of(whole)
        step = orthogonal(whole[None])[0].contiguous() if whole.numel() else whole.to(kind)
        del whole
        back = torch.empty_like(parts, dtype=kind)
        dist.all_to_all_single(back, step.view(-1), sent, received, group=self.group)
        found = dict(zip(order, torch.split(back, [ahead[i].numel() for i in order]), strict=True))
        return [found[i].view_as(part) for i, part in enumerate(ahead)]
