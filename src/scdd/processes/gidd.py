"""GIDD: the same marginals, reached by one mixing step, so that masks may turn back into tokens on the way."""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor

from scdd.core import Kernel
from scdd.processes.base import Process, Time, hazard_rate, survival_ratio


@final
class GIDD(Process):
    """The generalised interpolating process, `eq:gidd_forward2`; its + is a weighting (`weighted_coefficients`).

    `pro:gidd-ours`: with α = ρ·γ and β·π = γ(1 − ρ)u + (1 − γ)m (`eq:giddreparam`) this is GIDD as its authors write
    it, `eq:gidd-marginal`, `eq:gidd-forward` with `eq:gidd-params`, and `eq:gidd-rate`.
    """

    def kernel(self, z_t: Tensor, s: Time, t: Time) -> Kernel:
        """`eq:gidd_forward2`: keep with γ_{t/s}·ρ_{t/s}, else draw from one mixture, wherever one comes from."""
        at_s, at_t = self._aligned(s, z_t), self._aligned(t, z_t)
        (seen, hidden), (kept, noised) = (survival_ratio(at_s, at_t, "gamma"), survival_ratio(at_s, at_t, "rho"))
        # (1 − γ_t) − γ_{t/s}·ρ_{t/s}·(1 − γ_s), rearranged into terms that are all positive
        to_mask = hidden + seen * noised * at_s.one_minus_gamma
        mixed = torch.where(z_t == self.vocab.mask_id, to_mask, self.noise_part(at_t.gamma * noised, z_t))
        return Kernel(keep=(seen * kept).expand_as(mixed), other=mixed, from_mask=mixed)

    def rates(self, z_t: Tensor, t: Time) -> Kernel:
        """`eq:gidd-rate2`: the two noises share their rates."""
        at = self._aligned(self.inside(t), z_t)
        hide, noise = hazard_rate(at, "gamma"), hazard_rate(at, "rho")
        to_mask = at.one_minus_gamma * noise + hide
        mixed = torch.where(z_t == self.vocab.mask_id, to_mask, self.noise_part(at.gamma * noise, z_t))
        return Kernel(keep=(-hide - noise).expand_as(mixed), other=mixed, from_mask=mixed)
