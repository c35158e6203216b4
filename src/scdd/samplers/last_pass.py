"""Passes after the last step, each with an evaluation of its own (`SamplingOptions.last_pass`)."""

from __future__ import annotations

import torch
from torch import Tensor

from scdd.samplers.base import Context, PassRule, Tokens


def argmax(z_t: Tensor, ctx: Context) -> Tokens:
    """The likeliest token of the whole x_θ at every position, whatever stands there: right tokens give way as well.

    Masking alone is an exception: MDLM's code and ReMDM's put all of x_θ on a visible token (their carry-over), so that their argmax
    fills masks. Without it tokens would give way to logits that no loss ever saw.
    """
    best = ctx.prediction.top()
    tokens, log_p = best.tokens[..., 0], best.log_p[..., 0]
    if ctx.process.has_uniform_noise:
        return Tokens(tokens, log_p)
    masked = z_t == ctx.vocab.mask_id
    return Tokens(torch.where(masked, tokens, z_t), torch.where(masked, log_p, torch.nan))


PASSES: dict[str, PassRule] = {"argmax": argmax}
"""By name; "none" is none of them."""
