"""What is answered, for the OpenAPI document and for whoever reads it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Generic, TypeVar

from fastapi import Response
from pydantic import BaseModel
from pydantic.dataclasses import dataclass
from pydantic_core import to_json

from scdd.lm.results import Correction, Drawn, Repaired, Sample, TokenScore

Reply = TypeVar("Reply")


class ListReply(BaseModel, Generic[Reply]):
    """What each text of a list is answered, in their order."""

    model: str
    results: list[Reply]


class SamplesReply(BaseModel):
    """Texts that were drawn."""

    model: str
    samples: list[Drawn]


class ScoreReply(BaseModel):
    """A doubt map; log_p is the mean log-probability of the tokens."""

    model: str
    text: str
    strength: float
    nfe: int
    log_p: float
    tokens: list[TokenScore]


@dataclass(frozen=True)
class CorrectReply(Repaired):
    """A repaired text, its changes, and the doubts about the text as it was given."""

    model: str
    doubts: list[TokenScore]


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


class SettingsReply(BaseModel):
    """What the playground needs to know: the model, the limits, defaults, and the recipe's schema of the choices."""

    model: str
    parameters: int
    dtype: str
    """What is computed in: a seed keeps its text within it."""
    process: dict[str, Any]
    context: int
    room: int
    length: int
    """Tokens of a text when nobody says how many."""
    limits: dict[str, int | float]
    sampling: dict[str, Any]
    repair: dict[str, Any]
    """How a text is repaired when nobody says how."""
    refusals: dict[str, str]
    """Why some samplers do not fit this model."""
    recipe_schema: dict[str, Any]


def of_samples(samples: Sequence[Sample]) -> dict[str, Any]:
    """What a generation or an infilling is answered."""
    return {"samples": [sample.json() for sample in samples]}


def of_correction(correction: Correction) -> dict[str, Any]:
    """What a correction is answered."""
    return {**correction.json(), "doubts": [token.json() for token in correction.doubts]}


def answer(**fields: Any) -> Response:
    """A reply of results of our own, as they are: a model would check them once more, field by field."""
    return Response(to_json(fields), media_type="application/json")


def facts(seed: int, samples: Sequence[Sample]) -> dict[str, Any]:
    """What OpenAI's shapes have no place for."""
    first = samples[0]
    return {
        "seed": seed,
        "steps": first.steps,
        "sampler": first.sampler,
        "final": first.final,
        "nfe": [sample.nfe for sample in samples],
        "corrections": [sample.corrections for sample in samples],
    }


def finite(value: float) -> float | None:
    """JSON has no NaN and no infinity."""
    return value if math.isfinite(value) else None
