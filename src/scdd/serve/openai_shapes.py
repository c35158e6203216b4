"""Requests and answers in the shapes of the OpenAI API."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, Field, create_model

from scdd.samplers.options import SamplingOptions
from scdd.serve import requests as ask

Stop = Annotated[ask.Text, Field(min_length=1, max_length=256)]
Id = Annotated[ask.Whole, Field(ge=0)]


def _refuse(value: Any) -> Any:
    """Whatever would change the text and is not done here is refused, not ignored."""
    if value not in (None, 0, {}) or isinstance(value, bool):
        raise ValueError("this server does not have it; leave it out")
    return value


NoPenalty = Annotated[float | None, BeforeValidator(_refuse), Field(json_schema_extra={"minimum": 0, "maximum": 0})]
NoBias = Annotated[dict[str, float] | None, BeforeValidator(_refuse), Field(json_schema_extra={"maxProperties": 0})]


class StreamOptions(BaseModel):
    """What a stream says besides the text."""

    include_usage: ask.Flag = False
    include_obfuscation: ask.Flag | None = None


ADDITIONS = ("steps", "sampler", "grid", "final", "top_k")
_Additions: Any = create_model("_Additions", __base__=ask.Body, **ask.fields_of(SamplingOptions, *ADDITIONS))


class Completion(_Additions):  # type: ignore[misc]
    """A completion as OpenAI's clients ask for it; steps, sampler, … are this server's own additions."""

    model: ask.Text
    """The model's id (see /v1/models)."""
    prompt: ask.Text | list[ask.Text] | list[Id] | list[list[Id]] | None = ""
    """Text, texts, or the model's token ids; null is no text."""
    suffix: ask.Text | None = None
    """What comes after the completion: it is filled in between."""
    max_tokens: ask.Count | None = 16
    """Tokens that the completion may have; it may end before."""
    n: ask.Count | None = 1
    """Completions of each prompt."""
    best_of: ask.Count | None = None
    """Must equal n: texts are not ranked."""
    seed: ask.Seed | None = None
    """The same seed gives the same text."""
    temperature: Annotated[ask.Number, Field(ge=0.0, le=2.0)] | None = None
    """0 takes the likeliest token wherever one is drawn."""
    top_p: Annotated[ask.Number, Field(ge=0.0, le=1.0)] | None = None
    """Nucleus."""
    stop: Stop | Annotated[list[Stop], Field(max_length=4)] | None = None
    """Texts at which the completion ends."""
    logprobs: Annotated[ask.Whole, Field(ge=0, le=5)] | None = None
    """log x_θ of each token as of the last step; alternatives are not given."""
    echo: ask.Flag | None = False
    """Begin the text with the prompt."""
    stream: ask.Flag | None = False
    """Server-sent events."""
    stream_options: StreamOptions | None = None
    """Whether the stream ends with the usage."""
    frequency_penalty: NoPenalty = None
    """Not supported but as 0."""
    presence_penalty: NoPenalty = None
    """Not supported but as 0."""
    logit_bias: NoBias = None
    """Not supported but empty."""
    user: ask.Text | None = None
    """Ignored."""


class Choice(BaseModel):
    """One completion."""

    text: str
    index: int
    logprobs: dict[str, Any] | None = None
    finish_reason: Literal["stop", "length"] | None


class Usage(BaseModel):
    """Tokens."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class CompletionReply(BaseModel):
    """The completions."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[Choice]
    usage: Usage | None = None
    scdd: dict[str, Any]
    """Seed, steps, network evaluations and corrections."""


class ModelReply(BaseModel):
    """A model."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "scdd"


class ModelsReply(BaseModel):
    """All models: one."""

    object: Literal["list"] = "list"
    data: list[ModelReply]
