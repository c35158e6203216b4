"""What the verbs hand back: plain, frozen, typed. Notebooks show them as the player, the diff and the heat map."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from html import escape
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

if TYPE_CHECKING:
    from scdd.data.tokenizer import TextTokenizer


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
    moved: Tensor  # [F, L] int8, by number as `samplers.step.KINDS` names them
    log_p: Tensor  # [F, L] float32: log x_θ, as it was drawn from (after the filters), of each token; NaN unknown, −∞ at masks
    moments: tuple[Moment, ...]
    tokenizer: TextTokenizer

    @property
    def last_log_p(self) -> Tensor:
        """[L]: log x_θ of each token in the last frame that knows it; no frame shows all windows of a long text."""
        last = self.log_p.new_full(self.start.shape, torch.nan)
        for seen in self.log_p:
            last = torch.where(seen.isnan(), last, seen)
        return last


@dataclass(frozen=True)
class Result:
    """Plain data that can be printed as one flat object."""

    def json(self) -> dict[str, Any]:
        """As `--json` prints it and the server answers it."""
        shown = [each.name for each in fields(self) if each.metadata.get("json", True)]
        return {name: _plain(getattr(self, name)) for name in shown}


def _plain(value: Any) -> Any:
    if isinstance(value, Result):
        return value.json()
    if not isinstance(value, tuple):
        return value
    return [_plain(item) if isinstance(item, tuple | Result) else item for item in value]


HIDDEN = {"json": False}


@dataclass(frozen=True)
class Tried(Result):
    """A filling of gaps whose lengths were open, such as [MASK:4-12], and what the model thinks of it."""

    lengths: tuple[int, ...]
    """Tokens of each gap."""
    index: int
    """Which sample of the seed it is."""
    nats: float
    """The bound on −log p(filling | the rest), per filled token."""
    score: float
    """What it is ranked by: the bound, less a credit for its length; lower is better."""


@dataclass(frozen=True)
class Drawn(Result):
    """How a text was drawn: what a `Sample` says besides its trajectory."""

    text: str
    tokens: tuple[int, ...]
    seed: int
    index: int
    """Which sample of the seed: (seed, index) gives this text again, whatever is drawn beside it."""
    steps: int
    nfe: int
    """Network evaluations that this sample took."""
    corrections: int
    """Visible tokens that were replaced by other visible ones."""
    unmasked: int
    remasked: int
    sampler: str
    final: str
    process: str
    ended: bool = False
    """Whether the text stops at an end-of-text token."""
    tried: tuple[Tried, ...] = ()
    """infill: the fillings among which the lengths of open gaps were chosen, best first."""


@dataclass(frozen=True)
class Sample(Drawn):
    """A text that was drawn, and how."""

    trajectory: Trajectory | None = field(default=None, metadata=HIDDEN, repr=False)

    def _repr_html_(self) -> str:
        from scdd.trace.page import player

        return f"<pre>{escape(self.text)}</pre>" if self.trajectory is None else player(self, self.trajectory.tokenizer)


@dataclass(frozen=True)
class TokenScore(Result):
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


@dataclass(frozen=True)
class Score(Result):
    """A doubt map."""

    text: str
    strength: float
    nfe: int
    log_p: float = field(init=False)
    """Mean log x_θ of the tokens (a pseudo-likelihood: each token is seen when it is scored)."""
    tokens: tuple[TokenScore, ...]

    def __post_init__(self) -> None:
        mean = sum(math.log(max(token.p, 1e-45)) for token in self.tokens) / len(self.tokens)
        object.__setattr__(self, "log_p", mean)

    def _repr_html_(self) -> str:
        from scdd.trace.html import heat_map

        return heat_map(self)


@dataclass(frozen=True)
class Change(Result):
    """One token that was repaired."""

    position: int
    before: str
    after: str
    p_before: float
    """x_θ of the old token in the text as it was given."""
    p_after: float
    """x_θ of the new token as it was last seen."""
    doubt: float


@dataclass(frozen=True)
class Edit(Result):
    """Characters [start, end) of the text as it was given, and what stands there now."""

    start: int
    end: int
    before: str
    after: str
    log_odds: float
    """Of this edit against none, in nats, at the strength that was asked for."""
    kind: str
    """spelling, case, split, join, near, form, confusion, insert, delete, repeat, swap or fill."""


@dataclass(frozen=True)
class Repaired(Result):
    """How a text was repaired: what a `Correction` says besides doubts and trajectory."""

    text: str
    before: str
    mode: str
    strength: float
    seed: int
    steps: int
    nfe: int
    sampler: str
    final: str
    process: str
    tokens: tuple[int, ...]
    corrections: int
    changes: tuple[Change, ...]
    """Modes reverse and pass: token by token."""
    edits: tuple[Edit, ...]
    """Mode edit: by characters."""


@dataclass(frozen=True)
class Correction(Repaired):
    """A repaired text, what was changed in it, and the doubt map of the text as it was given."""

    doubts: tuple[TokenScore, ...] = field(default=(), metadata=HIDDEN, repr=False)
    trajectory: Trajectory | None = field(default=None, metadata=HIDDEN, repr=False)

    def _repr_html_(self) -> str:
        from scdd.trace.html import diff

        return diff(self)
