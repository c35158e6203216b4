"""The process's own reverse step: SCDD, MDLM and GIDD alike."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from torch import Tensor

from scdd.core import Transition
from scdd.samplers.base import Context, Sampler


@final
@dataclass(frozen=True)
class Ancestral(Sampler):
    """p_θ(z_s | z_t), `eq:backwardParam`. Any weights fit any process of the marginals that they were trained with."""

    name: ClassVar[str] = "ancestral"

    def step(self, z_t: Tensor, ctx: Context) -> Transition:
        """Straight from the process, which asks only for x_θ(z_t)."""
        return ctx.process.transition(z_t, ctx.seen.log_p_z.exp(), ctx.at_s, ctx.at_t)
