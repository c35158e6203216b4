"""The autoregressive baseline: next-token cross-entropy through the same fused op as every ELBO."""

from __future__ import annotations

import torch
from torch import Tensor

from scdd.core import ElboCoefficients
from scdd.core.denoiser import Denoiser
from scdd.core.types import Learnt
from scdd.objectives.base import BatchSlice, Loss, Objective, counted, positions_of
from scdd.ops.elbo import elbo
from scdd.processes.autoregressive import Autoregressive


def cross_entropy_coefficients(weight: Tensor) -> ElboCoefficients:
    """Rows whose loss is −weight·log x_θ(x): no floor (r = ∞) and no other term."""
    zero = torch.zeros_like(weight)
    infinite = torch.full_like(weight, torch.inf)
    return ElboCoefficients(log_r=infinite, log_r_t=infinite, w_x=weight, w_z=zero, w_o=zero, w_t=zero, w_e=zero)


class ArObjective(Objective):
    """−log p(x_{i+1} | x_{≤ i}), on a causal network. A row's first token is given, not predicted."""

    def __init__(self, process: Autoregressive, impl: str = "auto") -> None:
        self.process, self.impl = process, impl

    def loss(
        self,
        network: Denoiser,
        tokens: Tensor,
        documents: Tensor | None,
        part: BatchSlice,
        learnt: Learnt | None = None,
    ) -> Loss:
        """Cross-entropy at every position but the first; also none where the next token begins another document."""
        known = None if documents is None else documents[:, :-1]
        hidden = network.hidden(tokens[:, :-1], None, known)
        targets = tokens[:, 1:]
        told = None if learnt is None else Learnt(learnt.where[:, 1:], learnt.total)
        real = counted(targets, None if documents is None else documents[:, 1:], told)
        if documents is not None and known is not None:
            real = real * (documents[:, 1:] == known)
        positions = positions_of(part, targets.shape[1], learnt)
        head = network.head
        unseen = torch.full_like(targets, head.vocab.mask_id)  # the next token is not an input
        rows = cross_entropy_coefficients(real / positions).flatten(targets.shape)
        flat = hidden.flatten(0, 1), head, targets.flatten(), unseen.flatten(), rows
        total, losses = elbo(*flat, impl=self.impl)
        return Loss(total, losses.view(targets.shape).double().sum(1) * positions, real.sum(1))

    def evaluate(
        self,
        network: Denoiser,
        tokens: Tensor,
        documents: Tensor | None,
        part: BatchSlice,
        learnt: Learnt | None = None,
    ) -> Loss:
        """The same, which here is exact."""
        return self.loss(network, tokens, documents, part, learnt)
