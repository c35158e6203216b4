"""The baseline without a forward process: tokens are drawn left to right, each given those before it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from scdd.core.types import Vocab


@final
@dataclass(frozen=True)
class Autoregressive:
    """Stands where a diffusion model has its `Process`: there is nothing to noise and nothing to reverse."""

    vocab: Vocab
