"""What a teacher adds to the ELBO op: τ²·weight·KL(teacher's x ‖ x_θ) at each position, from a chunk of logits that is there anyway.

The student's logits of a chunk are in memory for the ELBO; the teacher's are made beside them and go with them. So the
student's head is multiplied no second time, and nothing V-wide outlives its chunk.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from scdd.core import Head
from scdd.ops.common import compute_weights, raw_logits
from scdd.ops.distil import chunked


class Teacher(NamedTuple):
    """What a teacher says of N positions; nothing here has a gradient."""

    hidden: Tensor  # [N, D'], its own width
    head: Head
    weight: Tensor  # [N], what the divergence counts at each position
    temperature: float = 1.0  # by which both sides' logits are divided

    def at(self, index: Tensor, counts: Tensor) -> Teacher:
        """At some of the positions, each of which stands for so many."""
        weight = self.weight[index] * counts.to(self.weight.dtype)
        return self._replace(hidden=self.hidden[index], weight=weight)


class Pull:
    """A teacher at work, chunk by chunk."""

    def __init__(self, teacher: Teacher, count: int) -> None:
        self.teacher, hidden = teacher, teacher.hidden
        self.compute = compute_weights(hidden, teacher.head)
        self.losses = torch.empty(count, dtype=torch.float32, device=hidden.device)
        self._work: Any = _compiled() if hidden.is_cuda else chunked.divergence

    def on(self, part: slice, logits: Tensor, head: Head, z_t: Tensor) -> Tensor:
        """Notes the divergences of these rows, and returns their gradient by `logits` [n, columns], both sides' least."""
        teacher = self.teacher
        told = raw_logits(teacher.hidden[part], *self.compute)
        columns = min(told.shape[1], logits.shape[1])  # beyond the vocabulary both have nothing
        sides = (with_input_bias(logits, head, z_t), with_input_bias(told, teacher.head, z_t))
        ours, theirs = (side[:, :columns] for side in sides)
        gradient: Tensor
        self.losses[part], gradient = self._work(ours, theirs, teacher.weight[part].float(), teacher.temperature)
        return gradient


def with_input_bias(logits: Tensor, head: Head, z_t: Tensor) -> Tensor:
    """The logits with what the head adds to that of each input token; another tensor only where there is such a thing."""
    if head.input_bias is None:
        return logits
    bias = head.input_bias.detach().to(logits.dtype)
    return logits.scatter_add(1, z_t[:, None], bias.expand(len(z_t), 1))


@cache
def _compiled() -> Any:
    """On a GPU some ten passes over a chunk become three."""
    return torch.compile(chunked.divergence, dynamic=False)
