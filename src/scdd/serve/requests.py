"""What may be asked. Unknown keys, numbers that are no numbers and text that is no text are refused here.

How to draw and how to repair is read off the options themselves (`SamplingOptions`, `RepairOptions`): what a recipe may say, a
request may say, and what it leaves out is as the model has it.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Annotated, Any, Literal, get_type_hints

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, Strict, TypeAdapter, create_model

from scdd.core.options import Options, number_type
from scdd.lm.options import RepairOptions, ScoreOptions
from scdd.processes.options import PROCESSES, ProcessOptions
from scdd.samplers.options import DRAWING, SAMPLER_NAMES, GridKind, SamplerOptions, SamplingOptions


def _is_text(value: str) -> str:
    """JSON can spell lone surrogates, which no tokenizer can read."""
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        raise ValueError("the text holds a lone surrogate: send valid Unicode") from None
    return value


Text = Annotated[str, AfterValidator(_is_text)]
Whole = Annotated[int, Strict()]
Number = Annotated[float, Strict()]
Flag = Annotated[bool, Strict()]
Count = Annotated[Whole, Field(ge=1, le=2**31 - 1)]
Seed = Annotated[Whole, Field(ge=-(2**63), lt=2**63)]
ProcessName = Annotated[str, Field(json_schema_extra={"enum": list(PROCESSES)})]
SamplerName = Annotated[str, Field(json_schema_extra={"enum": list(SAMPLER_NAMES)})]

BY_NAME = {"sampler": SamplerName | SamplerOptions, "grid": GridKind}
"""Parts with options of their own: a name, or a section as recipes spell it."""
NARROWER = {"temperature": Field(ge=0.01, le=100.0), "tolerance": Field(le=1e6)}
"""What a server refuses although a recipe may say it: numbers that would overflow."""


def fields_of(options: type[Options], *names: str) -> dict[str, Any]:
    """Fields of a body for these options (all, if none is named): each may be left out, and numbers must be numbers."""
    hints = get_type_hints(options, include_extras=True)
    properties = TypeAdapter(options).json_schema()["properties"]
    fields: dict[str, Any] = {}
    for name in names or hints:
        if name in properties:
            kind = BY_NAME.get(name, hints[name])
            if number_type(options, name) is int:
                kind = Annotated[kind, Strict(), Field(le=2**31 - 1)]
            elif number_type(options, name) is float:
                kind = Annotated[kind, Strict(), NARROWER.get(name, Field())]
            fields[name] = (kind | None, Field(default=None, description=properties[name]["description"]))
    return fields


class Body(BaseModel):
    """A request's body."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True)

    model: Text | None = None
    """The model's id; there is one model only, so it may be left out."""

    def chosen(self, options: type[Options]) -> dict[str, Any]:
        """What was asked for of these options."""
        known = {each.name for each in fields(options)} - {"length"}  # type: ignore[arg-type]
        names = [name for name in type(self).model_fields if name in known]
        return {name: value for name in names if (value := getattr(self, name)) is not None}


class Reverse(Body):
    """A body that may choose the reverse process."""

    process: ProcessName | ProcessOptions | None = None
    """Another reverse process: by name with the model's own schedule, or a section as recipes spell it."""


_How: Any = create_model("_How", __base__=Reverse, **fields_of(SamplingOptions, *DRAWING))
_Repair: Any = create_model("_Repair", __base__=Reverse, **fields_of(RepairOptions))


class How(_How):  # type: ignore[misc]
    """How to draw. What is left out is as the model's recipe has it."""

    seed: Seed | None = None
    """The same seed gives the same text, whatever else the server is doing. Left out: a random one, named in the answer."""


class Generate(How):
    """Text from masks."""

    prompt: Text = ""
    """What the text begins with."""
    suffix: Text = ""
    """What the text ends with."""
    length: Count | None = None
    """Tokens in all; left out: as the model's recipe has it, or what the context holds."""
    num: Count = 1
    """How many texts."""
    stop: Flag | None = None
    """Cut a text at its first end-of-text token; left out: unless there is a suffix."""


class Infill(How):
    """A text with holes."""

    text: Annotated[Text, Field(min_length=1)]
    """[MASK] is a hole of one token, [MASK:12] of twelve, [MASK:4-12] of four to twelve: all are tried, the best are answered."""
    num: Count = 1
    """How many texts."""


_Score: Any = create_model("_Score", __base__=Reverse, **fields_of(ScoreOptions))


class Score(_Score):  # type: ignore[misc]
    """A text to score."""

    text: Annotated[Text, Field(min_length=1)]
    """The text."""


class Correct(_Repair):  # type: ignore[misc]
    """A text to repair. What is left out is as the model has it."""

    text: Annotated[Text, Field(min_length=1)]
    """The text."""
    freeze: Annotated[list[Text | Annotated[list[Whole], Field(min_length=2, max_length=2)]], Field(max_length=64)] = (
        Field(default_factory=list)
    )
    """Pieces of the text, or [from, to) character ranges, that stay."""
    seed: Seed | None = None
    """edit and reverse: the seed."""


Texts = (
    Annotated[Text, Field(min_length=1)] | Annotated[list[Annotated[Text, Field(min_length=1)]], Field(min_length=1)]
)


class InfillTexts(Infill):
    """A text with holes, or a list of them."""

    text: Texts  # type: ignore[assignment]
    """[MASK] is a hole of one token, [MASK:12] of twelve, [MASK:4-12] of four to twelve: all are tried, the best are answered.
    A list is answered with a list."""


class ScoreTexts(Score):
    """A text to score, or a list of them."""

    text: Texts  # type: ignore[assignment]
    """The text; a list is answered with a list."""


class CorrectTexts(Correct):
    """A text to repair, or a list of them. What is left out is as the model has it."""

    text: Texts  # type: ignore[assignment]
    """The text; a list is answered with a list, each as if it were alone."""


class GenerateTask(Generate):
    """Watch a text come into being."""

    task: Literal["generate"]


class InfillTask(Infill):
    """Watch holes being filled."""

    task: Literal["infill"]


def _walks(mode: object) -> object:
    """Edits and a single pass have no steps to watch."""
    if mode in ("edit", "pass"):
        raise ValueError(f"a stream shows the steps of reverse, and {mode} has none: leave it out, or POST /v1/correct")
    return mode


class CorrectTask(Correct):
    """Watch a text being repaired: in mode reverse, whatever the model's own is, since the others have no steps."""

    task: Literal["correct"]
    mode: Annotated[Literal["reverse"], BeforeValidator(_walks)] = "reverse"


Task = Annotated[GenerateTask | InfillTask | CorrectTask, Field(discriminator="task")]


class Tokenize(Body):
    """A text to cut into tokens."""

    text: Text
    """The text."""
