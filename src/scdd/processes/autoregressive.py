"""Autoregression: what stands where a diffusion model has its process."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from scdd.core.vocab import Vocab


@final
@dataclass(frozen=True)
class Autoregressive:
    """No forward process: nothing is noised, and tokens are drawn left to right."""

    vocab: Vocab
    autoregressive: ClassVar[bool] = True
