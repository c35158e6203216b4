"""Problems that every implementation of an op must agree on, and where each implementation can run."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec

import pytest
import torch
from torch import Tensor

from scdd.core import ElboCoefficients, Head, Vocab
from scdd.core.types import padded
from scdd.processes.base import Process
from scdd.processes.gidd import GIDD
from scdd.processes.mdlm import MDLM
from scdd.processes.scdd import SCDD
from scdd.schedules.curves import Polynomial
from scdd.schedules.decoupled import Decoupled
from scdd.schedules.masked import Masked
from scdd.schedules.peaked import Peaked

CUDA = "cuda" if torch.cuda.is_available() else "cpu"  # without a GPU, Triton's interpreter works on CPU tensors

IMPLS = [
    pytest.param("chunked", "cpu", id="chunked-cpu"),
    pytest.param("chunked", "cuda", id="chunked-cuda", marks=pytest.mark.gpu),
    pytest.param(
        "triton", CUDA, id="triton", marks=pytest.mark.skipif(find_spec("triton") is None, reason="no Triton here")
    ),
]


def problems(impl: str) -> list[tuple[int, int, bool, int]]:
    """(V, mask id, input bias, positions) to try; few for Triton's interpreter, which takes its time."""
    if impl == "triton" and CUDA == "cpu":
        return [(140, 139, True, 3)]
    return [(6, 2, False, 12), (300, 299, True, 12)]


PROCESSES = {
    "scdd": lambda vocab: SCDD(vocab, Peaked(0.2)),
    "scdd, hardly any noise": lambda vocab: SCDD(vocab, Peaked(1e-6)),
    "scdd, decoupled": lambda vocab: SCDD(vocab, Decoupled(Polynomial(2.0), Polynomial(0.5))),
    "scdd, no noise": lambda vocab: SCDD(vocab, Masked("cosine")),
    "mdlm": lambda vocab: MDLM(vocab, Masked()),
    "gidd": lambda vocab: GIDD(vocab, Peaked(0.2)),
}


@dataclass
class Case:
    """Hidden states, a head and tokens; `rows` covers z_t = x, z_t ≠ x and z_t = m at one time."""

    vocab: Vocab
    hidden: Tensor
    weight: Tensor
    bias: Tensor
    input_bias: Tensor | None
    x: Tensor
    z_t: Tensor

    def head(self, like: Tensor | None = None) -> Head:
        """The head in `like`'s dtype and place."""
        move = (lambda v: v) if like is None else (lambda v: v.to(like))
        bias = None if self.input_bias is None else move(self.input_bias)
        return Head(move(self.weight), self.vocab, move(self.bias), bias)


def case(size: int, mask_id: int, count: int = 12, width: int = 16, input_bias: bool = False, seed: int = 0) -> Case:
    """Random, in float64, with all three relations of z_t to x in it."""
    generator = torch.Generator().manual_seed(seed)
    vocab = Vocab(size, mask_id)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    x = vocab.token(torch.randint(vocab.K, (count,), generator=generator))
    other = vocab.token(torch.randint(vocab.K, (count,), generator=generator))
    kind = torch.arange(count) % 3
    z_t = torch.where(kind == 0, x, torch.where(kind == 1, mask_id, other))
    columns = padded(size)
    bias = torch.tensor(0.7, dtype=torch.float64) if input_bias else None
    weight = normal(columns, width) * 0.7
    weight[size:] = 50.0  # padding that would win every softmax if it took part
    return Case(vocab, normal(count, width), weight, normal(columns), bias, x, z_t)


def rows_of(process: Process, case: Case, t: float, s: float | None, dynamic: bool = False) -> ElboCoefficients:
    """Rows at the case's positions; those that the process cannot reach keep weight zero."""
    time = torch.full_like(case.x, 0, dtype=torch.float64) + t
    if dynamic:
        return process.weighted_coefficients(case.x, case.z_t, time, "dynamic").flatten(case.x.shape)
    return process.elbo_coefficients(case.x, case.z_t, time, s).flatten(case.x.shape)
