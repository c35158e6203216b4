"""The process's own reverse step: SCDD, MDLM and GIDD alike."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from torch import Tensor

from scdd.core import Transition
from scdd.ops.common import HAS_TRITON
from scdd.samplers.base import Context, Sampler
from scdd.samplers.options import AncestralOptions


@final
@dataclass(frozen=True)
class Ancestral(AncestralOptions, Sampler):
    """p_θ(z_s | z_t), `eq:backwardParam`. Any weights fit any process of the marginals that they were trained with."""

    by_row: ClassVar[bool] = True

    def step(self, z_t: Tensor, ctx: Context) -> Transition:
        """Straight from the process, which asks only for x_θ(z_t)."""
        log_p_z = ctx.prediction.log_p_z
        if z_t.is_cuda and HAS_TRITON and ctx.process.noise is None and isinstance(ctx.step.phase, Tensor):
            from scdd.processes.gidd import GIDD
            from scdd.processes.mdlm import MDLM
            from scdd.processes.scdd import SCDD

            if isinstance(ctx.process, SCDD | MDLM | GIDD):
                from scdd.ops.transition.triton import transition

                mixing = isinstance(ctx.process, GIDD)
                return transition(z_t, log_p_z, ctx.step.at_s, ctx.step.at_t, ctx.vocab, mixing)
        return ctx.process.transition(z_t, log_p_z.exp(), ctx.step.at_s, ctx.step.at_t)
