"""Requests and answers in the shapes of the OpenAI API."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, create_model

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


class _Asked(_Additions):  # type: ignore[misc]
    """What both kinds of requests may say."""

    model: ask.Text
    """The model's id (see /v1/models)."""
    n: ask.Count | None = 1
    """Texts of each prompt."""
    seed: ask.Seed | None = None
    """The same seed gives the same text."""
    temperature: Annotated[ask.Number, Field(ge=0.0, le=2.0)] | None = None
    """0 takes the likeliest token wherever one is drawn."""
    top_p: Annotated[ask.Number, Field(ge=0.0, le=1.0)] | None = None
    """Nucleus."""
    stop: Stop | Annotated[list[Stop], Field(max_length=4)] | None = None
    """Texts at which it ends."""
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

    @property
    def stops(self) -> list[str]:
        """The texts at which it ends."""
        return [self.stop] if isinstance(self.stop, str) else list(self.stop or ())

    def drawing(self) -> dict[str, Any]:
        """What was chosen of how to draw. OpenAI's temperature 0 and top_p 0 mean: the likeliest token."""
        chosen: dict[str, Any] = self.chosen(SamplingOptions)
        if 0.0 in (chosen.get("temperature"), chosen.get("top_p")):
            return {**chosen, "top_k": 1, "temperature": None, "top_p": None}
        if "temperature" in chosen:
            chosen["temperature"] = max(chosen["temperature"], 0.01)
        return chosen


class Completion(_Asked):
    """A completion as OpenAI's clients ask for it; steps, sampler, … are this server's own additions."""

    prompt: ask.Text | list[ask.Text] | list[Id] | list[list[Id]] | None = ""
    """Text, texts, or the model's token ids; null is no text."""
    suffix: ask.Text | None = None
    """What comes after the completion: it is filled in between."""
    max_tokens: ask.Count | None = 16
    """Tokens that the completion may have; it may end before."""
    best_of: ask.Count | None = None
    """Must equal n: texts are not ranked."""
    logprobs: Annotated[ask.Whole, Field(ge=0, le=5)] | None = None
    """log x_θ of each token as of the last step, after temperature, top-p and top-k; alternatives are not given."""
    echo: ask.Flag | None = False
    """Begin the text with the prompt."""


class Part(BaseModel):
    """A piece of a message."""

    model_config = ConfigDict(extra="forbid")

    type: Literal["text"]
    text: ask.Text


class Message(BaseModel):
    """What somebody said."""

    model_config = ConfigDict(extra="forbid")

    role: ask.Text
    content: ask.Text | list[Part]

    def plain(self) -> dict[str, str]:
        """With its content as one text."""
        said = self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)
        return {"role": self.role, "content": said}


class ChatCompletion(_Asked):
    """The next turn of a chat as OpenAI's clients ask for it."""

    messages: Annotated[list[Message], Field(min_length=1, max_length=1024)]
    """The chat so far."""
    max_tokens: ask.Count | None = None
    """Tokens that the answer may have; left out: 64, or what is left of the server's limit."""
    max_completion_tokens: ask.Count | None = None
    """The same by its newer name."""


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


class Answer(BaseModel):
    """What the assistant said."""

    role: Literal["assistant"] = "assistant"
    content: str


class ChatChoice(BaseModel):
    """One answer."""

    index: int
    message: Answer
    logprobs: None = None
    finish_reason: Literal["stop", "length"]


class ChatReply(BaseModel):
    """The answers."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
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
