"""What the front door hands back: plain, frozen, typed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor


class Moment(NamedTuple):
    """When a recorded frame was taken."""

    step: int
    t: float
    s: float


@dataclass(frozen=True, eq=False)
class Trajectory:
    """One sample's way from noise to text: F frames of L tokens, on the CPU."""

    start: Tensor  # [L] int64, the tokens before the first step
    tokens: Tensor  # [F, L] int64
    moved: Tensor  # [F, L] int8, by number as `samplers.KINDS` names them
    log_p: Tensor  # [F, L] float32: log x_θ of each token; NaN unknown, −∞ at masks
    moments: tuple[Moment, ...]

    @property
    def last_log_p(self) -> Tensor:
        """[L]: log x_θ of each token in the last frame that knows it; no frame shows all windows of a long text."""
        last = self.log_p.new_full(self.start.shape, torch.nan)
        for seen in self.log_p:
            last = torch.where(seen.isnan(), last, seen)
        return last


@dataclass(frozen=True)
class Sample:
    """A text that was drawn, and how."""

    text: str
    tokens: tuple[int, ...]
    seed: int
    index: int
    """Which sample of the seed: (seed, index) gives this text again, whatever is drawn beside it."""
    steps: int
    nfe: int
    """Network evaluations that this sample took."""
    unmasked: int
    corrections: int
    """Visible tokens that were replaced by other visible ones."""
    remasked: int
    sampler: str
    final: str
    process: str
    ended: bool = False
    """Whether the text stops at an end-of-text token."""
    trajectory: Trajectory | None = None

    def json(self) -> dict[str, Any]:
        """One flat object, as `--json` prints it."""
        names = (
            *("text", "tokens", "seed", "index", "steps", "nfe", "corrections", "unmasked", "remasked"),
            *("sampler", "final", "process", "ended"),
        )
        return {name: list(self.tokens) if name == "tokens" else getattr(self, name) for name in names}


@dataclass(frozen=True)
class TokenScore:
    """What a model thinks of one token of a given text."""

    position: int
    token: int
    text: str
    p: float
    """x_θ of the token that stands there."""
    best: str
    """The likeliest token there."""
    p_best: float
    doubt: float
    """Probability that the token is wrong: 1 − p_θ(z_0 = z_t | z_t) at the noise level that was assumed."""

    def json(self) -> dict[str, Any]:
        """Plain data."""
        return dict(self.__dict__)


@dataclass(frozen=True)
class Score:
    """A doubt map."""

    text: str
    tokens: tuple[TokenScore, ...]
    strength: float
    nfe: int

    @property
    def log_p(self) -> float:
        """Mean log x_θ of the tokens (a pseudo-likelihood: each token is seen when it is judged)."""
        return sum(math.log(max(token.p, 1e-45)) for token in self.tokens) / len(self.tokens)

    def json(self) -> dict[str, Any]:
        """Plain data."""
        tokens = [token.json() for token in self.tokens]
        return {
            "text": self.text,
            "strength": self.strength,
            "nfe": self.nfe,
            "log_p": self.log_p,
            "tokens": tokens,
        }


@dataclass(frozen=True)
class Change:
    """One token that was repaired."""

    position: int
    before: str
    after: str
    p_before: float
    """x_θ of the old token in the text as it was given."""
    p_after: float
    """x_θ of the new token when it was last judged."""
    doubt: float

    def json(self) -> dict[str, Any]:
        """Plain data."""
        return dict(self.__dict__)


@dataclass(frozen=True)
class Correction:
    """A repaired text, what was changed in it, and the doubt map of the text as it was given."""

    text: str
    before: str
    tokens: tuple[int, ...]
    changes: tuple[Change, ...]
    doubts: tuple[TokenScore, ...]
    mode: str
    strength: float
    seed: int
    steps: int
    nfe: int
    sampler: str
    final: str
    process: str
    trajectory: Trajectory | None = None

    def json(self) -> dict[str, Any]:
        """One flat object, as `--json` prints it."""
        names = ("text", "before", "mode", "strength", "seed", "steps", "nfe", "sampler", "final", "process")
        changes = [change.json() for change in self.changes]
        return {
            **{name: getattr(self, name) for name in names},
            "tokens": list(self.tokens),
            "corrections": len(self.changes),
            "changes": changes,
        }
