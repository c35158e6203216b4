"""The kernel's probabilities are the process's, at every kind of time and token."""

from __future__ import annotations

from importlib.util import find_spec

import numpy as np
import pytest
import torch

from scdd.core import CLEAN, Levels, Transition, Vocab
from scdd.processes.base import Process
from scdd.processes.gidd import GIDD
from scdd.processes.mdlm import MDLM
from scdd.processes.scdd import SCDD
from scdd.schedules.masked import Masked
from scdd.schedules.peaked import Peaked
from tests.laws import Early, Homemade
from tests.ops.cases import CUDA

VOCAB = Vocab(7, 3)
PROCESSES = {
    "scdd": SCDD(VOCAB, Peaked(p_u=0.4)),
    "gidd": GIDD(VOCAB, Peaked(p_u=0.4)),
    "mdlm": MDLM(VOCAB, Masked()),
    "scdd-early": SCDD(VOCAB, Early()),
    "gidd-homemade": GIDD(VOCAB, Homemade()),
}


@pytest.mark.skipif(find_spec("triton") is None, reason="no Triton here")
@pytest.mark.parametrize("name", PROCESSES)
def test_the_step_of_every_process(name: str) -> None:
    """Rows from t to s, to clean data, from t = 1, and standing still; tokens that x_θ holds impossible among them, or nearly so."""
    from scdd.ops.transition.triton import transition

    process: Process = PROCESSES[name]
    t = torch.tensor([1.0, 0.9, 0.5, 0.3, 0.2, 1e-6], dtype=torch.float64)
    s = torch.tensor([0.8, 0.5, 0.5, 0.1, 0.0, 0.0], dtype=torch.float64)
    at_s, at_t = (Levels(*(field[:, None] for field in process.levels(time))) for time in (s, t))
    at_s = Levels(*(torch.cat([field[:4], clean.expand(2, 1)]) for field, clean in zip(at_s, CLEAN, strict=True)))
    z = torch.arange(18).remainder(7).expand(6, 18)
    p = torch.rand((6, 18), generator=torch.Generator().manual_seed(0))
    p[:, ::5], p[z == VOCAB.mask_id] = 0.0, 0.0
    p[:, 4], p[:, 6] = 1.0, 1e-37
    log_p = p.log()
    # each e^v is torch's there, and the interpreter's is numpy's
    p = log_p.to(CUDA).exp().cpu() if CUDA == "cuda" else torch.from_numpy(np.exp(log_p.numpy()))
    wanted = process.transition(z, p, at_s, at_t)
    table = torch.cat([*at_s, *at_t], dim=1).to(CUDA)  # as a step has them: columns of a table
    apart = Levels(*(field.to(CUDA) for field in at_t))
    for t_there in (Levels(*table[:, 6:].split(1, dim=1)), apart):
        s_there = Levels(*table[:, :6].split(1, dim=1))
        found = transition(z.to(CUDA), log_p.to(CUDA), s_there, t_there, VOCAB, isinstance(process, GIDD))
        agree(found, wanted, z)


def agree(found: Transition, wanted: Transition, z: torch.Tensor) -> None:
    for mine, theirs in zip(found, wanted, strict=True):
        torch.testing.assert_close(mine.cpu(), theirs.expand_as(z), rtol=1e-12, atol=1e-15)
    torch.testing.assert_close(sum(found).cpu(), torch.ones(z.shape, dtype=torch.float64), rtol=0, atol=1e-9)  # type: ignore[union-attr]
