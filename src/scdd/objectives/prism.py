"""PRISM: a head on the hidden states that learns which tokens are right (paper, appendix on related work)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from scdd.core.denoiser import Denoiser
from scdd.core.errors import UserError
from scdd.core.rng import uniforms
from scdd.core.types import Learnt
from scdd.objectives.base import BatchSlice, Loss, Objective, counted
from scdd.objectives.options import PrismOptions
from scdd.objectives.times import TimeSampler
from scdd.ops.elbo import elbo
from scdd.ops.head import redraw
from scdd.processes.base import Process


class PrismObjective(Objective):
    """BCE of g_φ against 1[x_i = y_i] at freshly unmasked tokens y_i ~ x_θ(· | z_t), alone or beside the MDLM loss.

    A reverse step from t to a random s < t decides which masks are filled, so g_φ sees what a sampler shows it. Each
    row counts its judged tokens' mean, so the normalisation needs no word between ranks.
    """

    process: Process

    def __init__(self, process: Process, quality: nn.Module, options: PrismOptions) -> None:
        self.process, self.quality, self.options = process, quality, options
        self.times = TimeSampler()

    def loss(
        self,
        network: Denoiser,
        tokens: Tensor,
        documents: Tensor | None,
        part: BatchSlice,
        learnt: Learnt | None = None,
    ) -> Loss:
        """The BCE, or unless the denoiser is frozen its continuous-time ELBO plus `share` times the BCE."""
        if learnt is not None:
            raise UserError("PRISM's head is trained on whole texts, not on pairs: use data of another kind.")
        times = self.times.draw(part, tokens.device)
        z_t = self.process.corrupt(tokens, times.t, part.keyed("corrupt", tokens.device))
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.options.freeze):
            hidden = network.hidden(z_t, times.t, documents)
        judged = self._judged(network, hidden.detach(), z_t, tokens, documents, times.t, part)
        if self.options.freeze:
            return judged
        real = counted(tokens, documents) * times.weight[:, None] / (part.total * tokens.shape[1])
        rows = self.process.elbo_coefficients(tokens, z_t, times.t).scaled(real).flatten(tokens.shape)
        noise = self.process.noise_scores(tokens.device)
        bound, _ = elbo(hidden.flatten(0, 1), network.head, tokens.flatten(), z_t.flatten(), rows, noise=noise)
        return judged._replace(total=bound + self.options.share * judged.total)

    def evaluate(
        self,
        network: Denoiser,
        tokens: Tensor,
        documents: Tensor | None,
        part: BatchSlice,
        learnt: Learnt | None = None,
    ) -> Loss:
        """The BCE alone, in nats per judged token."""
        return self.loss(network, tokens, documents, part, learnt)

    def modules(self) -> dict[str, nn.Module]:
        """The quality head."""
        return {"quality": self.quality}

    def _judged(
        self,
        network: Denoiser,
        hidden: Tensor,
        z_t: Tensor,
        x: Tensor,
        documents: Tensor | None,
        t: Tensor,
        part: BatchSlice,
    ) -> Loss:
        source = part.keyed("prism", x.device)
        s = t * uniforms((part.count,), source)
        move = self.process.transition(z_t, torch.zeros_like(z_t, dtype=torch.float64), s, t)
        filled = (uniforms(z_t.shape, source) < move.model) & (z_t == self.process.vocab.mask_id)
        filled = filled & (counted(x, documents) > 0)
        with torch.no_grad():
            u = uniforms(z_t.shape, source).flatten()
            drawn = redraw(hidden.flatten(0, 1), network.head, filled.flatten(), u, z_t=z_t.flatten()).tokens
            y = torch.where(filled, drawn.view_as(z_t), z_t)
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.options.freeze):
            states = network.hidden(y, s, documents)
        right = (y == x).to(torch.float32)
        bce = binary_cross_entropy_with_logits(self.quality(states).float(), right, reduction="none") * filled
        count = filled.sum(1)
        total = (bce.sum(1) / count.clamp(min=1)).sum() / part.total
        return Loss(total, bce.detach().double().sum(1), count)
