"""What may be asked. Unknown keys, numbers that are no numbers and text that is no text are refused here."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, Strict

from scdd.assemble.samplers import SECTIONS
from scdd.processes.options import ProcessOptions
from scdd.samplers.options import SamplerOptions


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
Share = Annotated[Number, Field(gt=0.0, le=1.0)]
Final = Literal["ancestral", "masks-only", "greedy", "none"]
SamplerName = Annotated[str, Field(json_schema_extra={"enum": list(SECTIONS)})]


class Body(BaseModel):
    """A request's body."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True)

    model: Text | None = None
    """The model's id; there is one model only, so it may be left out."""


class How(Body):
    """How to draw. What is left out is as the model's recipe has it."""

    steps: Count | None = None
    """Steps, each one network evaluation."""
    seed: Seed | None = None
    """The same seed gives the same text, whatever else the server is doing. Left out: a random one, named in the answer."""
    sampler: SamplerName | SamplerOptions | None = None
    """A sampler's name, or its section as recipes spell it."""
    process: Literal["scdd", "gidd", "mdlm"] | ProcessOptions | None = None
    """Another reverse process: by name with the model's own schedule, or a section as recipes spell it."""
    grid: Literal["uniform", "quadratic", "cosine"] | None = None
    """Spacing of the times."""
    final: Final | None = None
    """The last step."""
    top_p: Share | None = None
    """Nucleus."""
    top_k: Count | None = None
    """Keep only this many likeliest tokens."""
    temperature: Annotated[Number, Field(ge=0.01, le=100.0)] | None = None
    """Divides the logits."""
    tolerance: Annotated[Number, Field(gt=0.0, le=1e6)] | None = None
    """Stop a text when fewer than this many tokens are expected to change any more."""

    def wishes(self) -> dict[str, Any]:
        """What was asked for, as `LM.start` takes it; the other settings need the server to be understood."""
        names = ("grid", "final", "top_p", "top_k", "temperature", "tolerance")
        return {name: getattr(self, name) for name in names if getattr(self, name) is not None}


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
    """[MASK] is a hole of one token, [MASK:12] of twelve."""
    num: Count = 1
    """How many texts."""


class Score(Body):
    """A text to judge."""

    text: Annotated[Text, Field(min_length=1)]
    """The text."""
    strength: Share = 0.1
    """Noise level to assume of the text: higher doubts more."""
    process: Literal["scdd", "gidd", "mdlm"] | ProcessOptions | None = None
    """Another reverse process."""


class Correct(Score):
    """A text to repair."""

    mode: Literal["reverse", "pass"] = "reverse"
    """reverse walks the reverse process from the text; pass repairs in one evaluation."""
    threshold: Annotated[Number, Field(gt=0.0, lt=1.0)] = 2e-4
    """pass: tokens less likely than this share of the best one are replaced."""
    freeze: Annotated[
        list[Text | Annotated[list[Whole], Field(min_length=2, max_length=2)]], Field(max_length=64)
    ] = []
    """Pieces of the text, or [from, to) character ranges, that stay."""
    steps: Count = 16
    """reverse: steps."""
    seed: Seed | None = None
    """reverse: the seed."""
    final: Final = "greedy"
    """reverse: the last step."""
    top_p: Share = 0.9
    """reverse: nucleus of the replacements."""


class GenerateTask(Generate):
    """Watch a text come into being."""

    task: Literal["generate"]


class InfillTask(Infill):
    """Watch holes being filled."""

    task: Literal["infill"]


class CorrectTask(Correct):
    """Watch a text being repaired; mode reverse only."""

    task: Literal["correct"]
    mode: Literal["reverse"] = "reverse"


Task = Annotated[GenerateTask | InfillTask | CorrectTask, Field(discriminator="task")]


class Tokenize(Body):
    """A text to cut into tokens."""

    text: Text
    """The text."""
