"""MDLM: masking alone. SCDD at ρ ≡ 1 (`pro:mdlm-ours`); visible tokens carry over and cost nothing, unforced."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor

from scdd.core import Kernel, UserError, Vocab
from scdd.processes.base import Process, Time, hazard_rate, survival_ratio
from scdd.processes.noise import Noise
from scdd.schedules.base import Schedule


@final
class MDLM(Process):
    """The masked process, `eq:mdlm-forward`, with the marginals `eq:marginal_mdm`, α = γ.

    Its losses `eq:loss_mdm` and `eq:loss_mdm_continuous` are the general ones: nothing at visible tokens, by itself.
    """

    def __init__(self, vocab: Vocab, schedule: Schedule, noise: Noise | None = None) -> None:
        super().__init__(vocab, schedule, noise)
        if self.has_uniform_noise:
            raise UserError(
                f"MDLM needs ρ ≡ 1 but {schedule!r} has uniform noise: use a masked schedule, or SCDD.", "schedule"
            )

    def kernel(self, z_t: Tensor, s: Time, t: Time) -> Kernel:
        """`eq:mdlm-forward`: a token stays with probability α_t/α_s, else it is masked."""
        seen, hidden = survival_ratio(self._aligned(s, z_t), self._aligned(t, z_t), "gamma")
        is_mask = z_t == self.vocab.mask_id
        return Kernel(
            keep=torch.where(is_mask, 0.0, seen),
            other=torch.where(is_mask, hidden, 0.0),
            from_mask=is_mask.to(torch.float64),
        )

    def rates(self, z_t: Tensor, t: Time) -> Kernel:
        """`eq:mdlm_forward_rate_matrix`."""
        hide = hazard_rate(self._aligned(self.inside(t), z_t), "gamma")
        is_mask = z_t == self.vocab.mask_id
        return Kernel(
            keep=torch.where(is_mask, 0.0, -hide),
            other=torch.where(is_mask, hide, 0.0),
            from_mask=torch.zeros_like(is_mask, dtype=torch.float64),
        )
