"""A frozen denoiser whose predictions another one learns, at the tokens that are noised."""

from __future__ import annotations

import torch
from torch import Tensor

from scdd.core.denoiser import Denoiser
from scdd.objectives.options import TeacherOptions
from scdd.ops.distil import Teacher


class Distillation:
    """What a teacher says of a noised batch, for `ops.elbo`. It is not trained, saved or averaged."""

    def __init__(self, network: Denoiser, options: TeacherOptions, digest: str = "") -> None:
        """`digest` tells these weights from others: a run goes on under the teacher that it began with."""
        self.network, self.options, self.digest = network, options, digest

    @torch.no_grad()
    def of(self, z_t: Tensor, t: Tensor, documents: Tensor | None, weight: Tensor) -> Teacher:
        """At rows z_t [B, L] as the student sees them, with its times; `weight` [B, L] is 0 where nothing is learnt."""
        hidden = self.network.hidden(z_t, t, documents).flatten(0, 1)
        return Teacher(hidden, self.network.head, weight.flatten() * self.options.weight, self.options.temperature)
