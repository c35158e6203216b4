"""Sums over sequences from which a mean per token and its standard error follow, on any number of ranks."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor


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

    def __str__(self) -> str:
        return f"{self.mean:.4f} ± {self.error:.4f} nats/token, PPL {self.ppl:.2f} ± {self.ppl_error:.2f}"


class RatioMeter:
    """Running sums (n, Σk, Σa, Σa², Σak, Σk²) of nats a and tokens k of each sequence; one small tensor, no host sync."""

    def __init__(self, device: torch.device | str = "cpu") -> None:
        self.sums = torch.zeros(6, dtype=torch.float64, device=device)

    def add(self, nats: Tensor, tokens: Tensor) -> None:
        """Take in sequences: their summed nats [B] and how many tokens each has [B]."""
        a, k = nats.detach().to(torch.float64), tokens.to(torch.float64)
        self.sums += torch.stack((torch.ones_like(a), k, a, a * a, a * k, k * k)).sum(1)

    def estimate(self) -> Estimate:
        """Σa/Σk, with the standard error of a ratio. Reads the sums: this waits for the device.

        Sequences are taken as independent. Times that are spread evenly over the batch make the truth better than that.
        """
        n, k, a, aa, ak, kk = self.sums.tolist()
        if not k:
            return Estimate(math.nan, math.nan, 0, 0)
        mean = a / k
        spread = max(aa - 2 * mean * ak + mean * mean * kk, 0.0) if math.isfinite(mean) else math.nan
        error = math.sqrt(spread * n / max(n - 1, 1)) / k if n > 1 else math.nan
        return Estimate(mean, error, round(n), round(k))
