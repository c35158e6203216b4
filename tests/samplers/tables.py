"""Denoisers whose x_θ is known exactly, and the chi-square test that samplers are held to."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import stats
from torch import Tensor

from scdd.core import Head, Vocab
from scdd.core.rng import CounterRNG
from scdd.core.types import padded
from scdd.ops.common import NO_FILTERS, Filters
from scdd.processes.autoregressive import Autoregressive
from scdd.processes.base import Process
from scdd.samplers.base import Model, Sampler
from scdd.samplers.loop import Frame, sample_loop
from scdd.samplers.options import SamplingOptions
from scdd.samplers.plan import SamplingPlan
from scdd.samplers.step import TokenRows

Array = NDArray[np.float64]


class Table:
    """x_θ at a position is a fixed function of the token that stands there: row z of softmax(logits), no mask."""

    def __init__(self, logits: Tensor, vocab: Vocab) -> None:
        self.vocab, self.calls = vocab, 0
        weight = torch.zeros(padded(vocab.size), vocab.size)
        weight[: vocab.size] = logits.T.to(torch.float32)
        self.head = Head(weight=weight, vocab=vocab)

    def hidden(self, z_t: Tensor, t: Tensor | None = None, documents: Tensor | None = None) -> Tensor:
        self.calls += 1
        return torch.nn.functional.one_hot(z_t, self.vocab.size).to(torch.float32)

    def logits(self, z_t: Tensor, t: Tensor | None = None, documents: Tensor | None = None) -> Tensor:
        raise NotImplementedError

    def x_theta(self, filters: Filters = NO_FILTERS) -> Array:
        """[V, V] float64: a row for each z_t, the filters applied as their definition says."""
        scores = self.head.weight[: self.vocab.size].T.double().numpy().copy() / filters.temperature
        scores[:, self.vocab.mask_id] = -np.inf
        p = np.exp(scores - scores.max(1, keepdims=True))
        p /= p.sum(1, keepdims=True)
        for row in p:
            order = np.argsort(-row)
            before = np.concatenate([[0.0], np.cumsum(row[order])[:-1]])
            row[order[before >= filters.top_p]] = 0.0
        return p / p.sum(1, keepdims=True)


class Truth(Table):
    """A perfect denoiser of one text x [L]: x_θ = x wherever it is asked."""

    def __init__(self, x: Tensor, vocab: Vocab) -> None:
        super().__init__(torch.zeros(vocab.size, vocab.size), vocab)
        self.x = x
        weight = torch.full((padded(vocab.size), vocab.size), -200.0)
        weight[: vocab.size] += 400.0 * torch.eye(vocab.size)
        self.head = Head(weight=weight, vocab=vocab)

    def hidden(self, z_t: Tensor, t: Tensor | None = None, documents: Tensor | None = None) -> Tensor:
        self.calls += 1
        rows = self.x[: z_t.shape[1]].expand_as(z_t)
        return torch.nn.functional.one_hot(rows, self.vocab.size).to(torch.float32)


def table(vocab: Vocab, seed: int = 0, spread: float = 1.2) -> Table:
    values = np.random.default_rng(seed).normal(size=(vocab.size, vocab.size)) * spread
    return Table(torch.tensor(values), vocab)


def walk(
    model: Model, sampler: Sampler, times: Sequence[float], rows: Tensor | TokenRows, rng: CounterRNG, **plan: Any
) -> Iterator[Frame]:
    """The loop's frames, every one unless `record=False`."""
    given = rows if isinstance(rows, TokenRows) else TokenRows(rows)
    options = SamplingOptions(**{name: plan.pop(name) for name in ("final", "tolerance") if name in plan})
    return sample_loop(
        model, SamplingPlan(sampler, tuple(times), **{"record": True, "options": options, **plan}), given, rng
    )


def one_step(
    denoiser: Table,
    process: Process | Autoregressive,
    sampler: Sampler,
    z: Tensor,
    t: float,
    s: float,
    filters: Filters = NO_FILTERS,
    quality: Callable[[Tensor], Tensor] | None = None,
    seed: int = 0,
) -> Frame:
    """A single step t → s from z [B, L], s = 0 meaning the final one."""
    grid = (t, s, 0.0) if s > 0 else (t, 0.0)
    rng = CounterRNG(seed, range(z.shape[0]))
    # all rows in one evaluation: x_θ is a table, so batching cannot round it differently
    model = Model(denoiser, process, quality)
    return next(walk(model, sampler, grid, z, rng, filters=filters, rows_per_forward=z.shape[0]))


def assert_frequencies(drawn: Tensor, expected: Array, level: float = 1e-4) -> None:
    """Chi-square of drawn ids [n] against a distribution [V]; what is impossible must not occur at all."""
    counts = np.bincount(drawn.numpy().ravel(), minlength=len(expected)).astype(np.float64)
    possible = expected > 1e-12
    assert counts[~possible].sum() == 0, f"impossible outcomes occurred: {counts} against {expected}"
    assert abs(expected.sum() - 1.0) < 1e-9
    if possible.sum() == 1:
        return
    wanted = expected[possible] / expected[possible].sum() * counts.sum()
    statistic = float(((counts[possible] - wanted) ** 2 / wanted).sum())
    p_value = float(stats.chi2.sf(statistic, int(possible.sum()) - 1))
    assert p_value > level, f"p = {p_value:.2e}: {counts / counts.sum()} against {expected}"
