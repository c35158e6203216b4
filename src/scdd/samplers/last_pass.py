"""Passes after the last step, each with an evaluation of its own (`SamplingOptions.last_pass`)."""

from __future__ import annotations

from torch import Tensor

from scdd.samplers.base import Context, PassRule, Tokens


def argmax(z_t: Tensor, ctx: Context) -> Tokens:
    """The likeliest token of the whole x_θ at every position, whatever stands there: right tokens give way as well."""
    best = ctx.prediction.top()
    return Tokens(best.tokens[..., 0], best.log_p[..., 0])


PASSES: dict[str, PassRule] = {"argmax": argmax}
"""By name; "none" is none of them."""
