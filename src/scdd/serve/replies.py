"""What is answered, for the OpenAPI document and for whoever reads it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel

from scdd.lm.results import Correction, Sample


class SampleReply(BaseModel):
    """One text, and how it was drawn."""

    text: str
    tokens: list[int]
    seed: int
    index: int
    steps: int
    nfe: int
    corrections: int
    unmasked: int
    remasked: int
    sampler: str
    final: str
    process: str
    ended: bool


class SamplesReply(BaseModel):
    """Texts that were drawn."""

    model: str
    samples: list[SampleReply]


class TokenReply(BaseModel):
    """What the model thinks of one token."""

    position: int
    token: int
    text: str
    p: float
    best: str
    p_best: float
    doubt: float


class ScoreReply(BaseModel):
    """A doubt map; log_p is the mean log-probability of the tokens."""

    model: str
    text: str
    strength: float
    nfe: int
    log_p: float
    tokens: list[TokenReply]


class ChangeReply(BaseModel):
    """One token that was repaired."""

    position: int
    before: str
    after: str
    p_before: float
    p_after: float
    doubt: float


class CorrectReply(BaseModel):
    """A repaired text, its changes, and the doubts about the text as it was given."""

    model: str
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
    tokens: list[int]
    corrections: int
    changes: list[ChangeReply]
    doubts: list[TokenReply]


class Piece(BaseModel):
    """A token and what it reads as."""

    id: int
    text: str


class TokenizeReply(BaseModel):
    """A text's tokens."""

    model: str
    tokens: list[Piece]


class Health(BaseModel):
    """Whether the server takes requests."""

    status: str
    model: str
    waiting: int


class Settings(BaseModel):
    """What the playground needs to know: the model, the limits, defaults, and the recipe's schema of the choices."""

    model: str
    parameters: int
    process: dict[str, Any]
    context: int
    room: int
    length: int
    """Tokens of a text when nobody says how many."""
    limits: dict[str, float]
    sampling: dict[str, Any]
    refusals: dict[str, str]
    """Why some samplers do not fit this model."""
    recipe_schema: dict[str, Any]


def of_samples(samples: Sequence[Sample]) -> dict[str, Any]:
    """What a generation or an infilling is answered."""
    return {"samples": [sample.json() for sample in samples]}


def of_correction(found: Correction) -> dict[str, Any]:
    """What a correction is answered."""
    return {**found.json(), "doubts": [token.json() for token in found.doubts]}


def finite(value: float) -> float | None:
    """JSON has no NaN and no infinity."""
    return value if math.isfinite(value) else None
