"""SCDD: masking and uniform noise with an absorbing mask, so that no token is ever remasked."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor

from scdd.core import Kernel
from scdd.processes.base import Process, Time, hazard_rate, survival_ratio


@final
class SCDD(Process):
    """The paper's process, `eq:forward`."""

    def kernel(self, z_t: Tensor, s: Time, t: Time) -> Kernel:
        """`eq:forward`: tokens keep, jump uniformly or are masked; the mask stays."""
        at_s, at_t = self._aligned(s, z_t), self._aligned(t, z_t)
        (seen, hidden), (kept, noised) = (survival_ratio(at_s, at_t, "gamma"), survival_ratio(at_s, at_t, "rho"))
        is_mask = z_t == self.vocab.mask_id
        return Kernel(
            keep=torch.where(is_mask, 0.0, seen * kept),
            other=torch.where(is_mask, hidden, self.noise_part(seen * noised, z_t)),
            from_mask=is_mask.to(torch.float64),
        )

    def rates(self, z_t: Tensor, t: Time) -> Kernel:
        """`eq:forward_rate` (`lem:forward-rate`): masking at −γ′/γ and uniform jumps at −ρ′/ρ, each on its own."""
        at = self._aligned(self.inside(t), z_t)
        hide, noise = hazard_rate(at, "gamma"), hazard_rate(at, "rho")
        is_mask = z_t == self.vocab.mask_id
        return Kernel(
            keep=torch.where(is_mask, 0.0, -hide - noise),
            other=torch.where(is_mask, hide, self.noise_part(noise, z_t)),
            from_mask=torch.zeros_like(is_mask, dtype=torch.float64),
        )
