"""Small worlds with known answers: table denoisers, and the NELBO of one summed over everything that can happen."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from scdd.core import Vocab
from scdd.evals.measure.walk import StartRows
from scdd.objectives.elbo import nelbo
from scdd.processes.base import Process
from scdd.processes.gidd import GIDD
from scdd.processes.mdlm import MDLM
from scdd.processes.scdd import SCDD
from scdd.schedules.masked import Masked
from scdd.schedules.peaked import Peaked
from tests.samplers.tables import Table, Truth

VOCAB = Vocab(5, 4)
PROCESSES: dict[str, Process] = {
    "scdd": SCDD(VOCAB, Peaked(0.2)),
    "gidd": GIDD(VOCAB, Peaked(0.2)),
    "mdlm": MDLM(VOCAB, Masked()),
}


def uniform(vocab: Vocab) -> Table:
    """x_θ = u wherever it is asked."""
    return Table(torch.zeros(vocab.size, vocab.size), vocab)


def free_rows(z: Tensor) -> StartRows:
    """Rows that may change anywhere."""
    return StartRows(z, torch.zeros_like(z, dtype=torch.bool), range(len(z)))


def truth(x: Tensor, vocab: Vocab) -> Truth:
    return Truth(x, vocab)


def enumerated(process: Process, denoiser: Table, x: int, steps: int | None) -> float:
    """The NELBO of one token: x_θ reads its own position only, so sum over i and z_t, or integrate over t."""
    V = process.vocab.size
    z = torch.arange(V)
    logits = denoiser.head.weight[:V].T.double()

    def expected(t: Tensor, s: Tensor | None) -> Tensor:
        n = len(t)
        values = nelbo(process, logits.expand(n, V, V), torch.full((n, V), x), z.expand(n, V), t, s)
        chance = process.marginal(torch.full((n,), x), t)
        return torch.where(chance > 0, chance * values, 0.0).sum(1)

    if steps is not None:
        grid = torch.linspace(0, 1, steps + 1, dtype=torch.float64)
        return float(expected(grid[1:], grid[:-1]).sum())
    nodes, weights = np.polynomial.legendre.leggauss(400)
    v, w = torch.tensor((nodes + 1) / 2), torch.tensor(weights / 2)
    # in v = t^{1/4} and mirrored the integrand is smooth at both ends
    near, far = v**4 / 2, 1 - v**4 / 2
    slope = 2 * v**3 * w
    return float((expected(near, None) * slope).sum() + (expected(far, None) * slope).sum())
