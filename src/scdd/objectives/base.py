"""What passes between a trainer and an objective: a slice of a batch in, a loss out, and a meter that sums losses.

The trainer hands over a network and tokens, and never looks into a process.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from scdd.core.denoiser import Denoiser
from scdd.core.rng import CounterRNG, derive_seed, first_uniform
from scdd.core.stats import ratio_error
from scdd.core.types import Learnt
from scdd.processes.autoregressive import Autoregressive
from scdd.processes.base import Process

Reduce = Callable[[Tensor], None]
"""Sums a tensor over all ranks, in place."""


@dataclass(frozen=True)
class BatchSlice:
    """Rows first … first + count − 1 of the `total` rows of global batch `step`: all that its randomness depends on.

    Every number drawn for a row is a function of (seed, step, row), so neither ranks nor micro-batches nor a resumed
    run change what is drawn.
    """

    seed: int
    step: int
    first: int
    count: int
    total: int

    def keyed(self, use: str, device: torch.device | str) -> CounterRNG:
        """A stream of numbers for each row."""
        rows = torch.arange(self.count, device=device) + (self.step * self.total + self.first)
        return CounterRNG(derive_seed(self.seed, use), rows, device)

    def shared(self, use: str) -> float:
        """A number in [0, 1) that all rows of the global batch share."""
        return first_uniform(derive_seed(self.seed, use), self.step)

    def cut(self, first: int, count: int) -> BatchSlice:
        """Rows first … of this slice, as a slice of the same global batch."""
        return BatchSlice(self.seed, self.step, self.first + first, count, self.total)

    def micro_batches(self, size: int | None, border: int = 0) -> Iterator[tuple[slice, BatchSlice]]:
        """This slice in pieces of `size` rows at most, or whole: which of its rows, and the piece.

        None reaches over row `border` of the global batch, and slices of one length are all cut alike.
        """
        first, width = 0, size or self.count
        while first < self.count:
            within = border % self.count
            end = min(first + width, self.count, within if first < within else self.count)
            yield slice(first, end), self.cut(first, end - first)
            first = end


class Loss(NamedTuple):
    """The loss of B rows. Over all slices of a global batch the `total`s sum to its mean loss per position, or where
    some tokens are given, per learnt token."""

    total: Tensor  # scalar with gradient
    nats: Tensor  # [B] summed over each row's tokens, weights of the times included; no gradient
    tokens: Tensor  # [B] how many tokens that sum is over


class Objective(ABC):
    """A loss to train on, an honest number to report, and whatever the loss learns about itself on the way."""

    process: Process | Autoregressive
    changes_at = 0
    """The batch from which on its loss is of another kind, and no more to be compared with those before; 0: it stays the same."""

    @abstractmethod
    def loss(
        self,
        network: Denoiser,
        tokens: Tensor,
        documents: Tensor | None,
        part: BatchSlice,
        learnt: Learnt | None = None,
    ) -> Loss:
        """What training minimises, at tokens [B, L]; documents [B, L] number each token's document, −1 padding.

        `learnt` says which tokens are learnt, where not all are; it is handed over only then.
        """

    @abstractmethod
    def evaluate(
        self,
        network: Denoiser,
        tokens: Tensor,
        documents: Tensor | None,
        part: BatchSlice,
        learnt: Learnt | None = None,
    ) -> Loss:
        """What is reported: an unbiased estimate of the bound itself, however training weights it."""

    def border(self, total: int) -> int:
        """The first of a global batch's `total` rows that is learnt otherwise than those before it; 0: there is none.

        A slice that reaches over it may run the network twice, which sharded ranks must not do unless all do.
        """
        return 0

    def modules(self) -> dict[str, nn.Module]:
        """Networks of the objective's own that are trained with the denoiser."""
        return {}

    def end_step(self, reduce: Reduce) -> None:  # noqa: B027 (most objectives learn nothing)
        """After each optimiser step."""

    def state_dict(self) -> dict[str, Tensor]:
        """What a resumed run needs to know."""
        return {}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:  # noqa: B027
        """Take over what `state_dict` gave."""


def counted(tokens: Tensor, documents: Tensor | None, learnt: Learnt | None = None) -> Tensor:
    """1 where a position is a real token that is learnt and 0 where it is padding or given, float64 [B, L]."""
    if learnt is not None:
        return (learnt.where if documents is None else learnt.where & (documents >= 0)).to(torch.float64)
    if documents is None:
        return torch.ones(tokens.shape, dtype=torch.float64, device=tokens.device)
    return (documents >= 0).to(torch.float64)


def positions_of(part: BatchSlice, length: int, learnt: Learnt | None) -> int | Tensor:
    """What the loss of the global batch is a mean over: its positions, or its learnt tokens."""
    return part.total * length if learnt is None else learnt.total


def shown(z_t: Tensor, tokens: Tensor, learnt: Learnt | None) -> Tensor:
    """What the network sees of a noised row: tokens that are given stay clean."""
    return z_t if learnt is None else torch.where(learnt.where, z_t, tokens)


class Estimate(NamedTuple):
    """Nats per token with standard error, over so many sequences and tokens."""

    mean: float
    error: float
    sequences: int
    tokens: int

    @property
    def ppl(self) -> float:
        """Perplexity, e^mean."""
        return math.exp(self.mean) if self.mean < 700 else math.inf

    @property
    def ppl_error(self) -> float:
        """Standard error of the perplexity, to first order."""
        return self.ppl * self.error


class RatioMeter:
    """Σ nats / Σ tokens over sequences, on any number of ranks: running sums in one small tensor, without a host sync."""

    def __init__(self, device: torch.device | str = "cpu") -> None:
        self.sums = torch.zeros(6, dtype=torch.float64, device=device)  # n, Σk, Σa, Σa², Σak, Σk²

    def add(self, nats: Tensor, tokens: Tensor) -> None:
        """Take in sequences: their summed nats a [B] and how many tokens k each has [B]."""
        a, k = nats.detach().to(torch.float64), tokens.to(torch.float64)
        self.sums += torch.stack((torch.ones_like(a), k, a, a * a, a * k, k * k)).sum(1)

    def estimate(self) -> Estimate:
        """The ratio and its standard error. Reads the sums: this waits for the device.

        Sequences are taken as independent. Times that are spread evenly over the batch make the truth better than that.
        """
        n, k, a, aa, ak, kk = self.sums.tolist()
        if not k:
            return Estimate(math.nan, math.nan, 0, 0)
        mean = a / k
        squares = max(aa - 2 * mean * ak + mean * mean * kk, 0.0) if math.isfinite(mean) else math.nan
        return Estimate(mean, ratio_error(squares, n, k), round(n), round(k))
