"""Options that several verbs share, and how they read texts. Nothing here imports torch."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Optional, get_args, get_origin, get_type_hints

import typer
from pydantic import TypeAdapter

from scdd.cli.view import on_terminal
from scdd.core.errors import UserError
from scdd.core.options import Options, number_type
from scdd.samplers.options import SAMPLER_NAMES, GridKind

if TYPE_CHECKING:
    from scdd.lm.model import LM

Model = Annotated[
    str | None,
    typer.Option(
        metavar="PATH|HUB-ID",
        help="Checkpoint folder, run folder, Hub id, or a model that convert reads; default: the bundled model.",
    ),
]
Process = Annotated[
    str | None, typer.Option(help="Sample with another process of the same marginals: scdd, gidd or mdlm.")
]
Device = Annotated[str | None, typer.Option(help="cuda or cpu; cuda where there is one.")]
Graphs = Annotated[
    bool, typer.Option("--graphs/--no-graphs", help="On a GPU, replay captured steps: one launch each, the same texts.")
]
Dtype = Annotated[
    str | None,
    typer.Option(
        help="What to compute in: float32, bfloat16, or, on a CPU, int8 (the large products alone). A seed keeps its text within a dtype.",
        show_default="bfloat16 on a GPU; on a CPU int8 if stored so and the CPU has it, else float32",
    ),
]
Num = Annotated[int, typer.Option(help="How many texts.")]
Seed = Annotated[int, typer.Option(help="Sample i of a seed is the same text alone or in any batch.")]
BatchSize = Annotated[int, typer.Option(help="Texts drawn at a time; changes speed and memory only.")]
Changes = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change the recipe's sampling, e.g. sampling.sampler.eta=0.02."),
]
Json = Annotated[bool, typer.Option("--json", help="One JSON object a line.")]
Trace = Annotated[Path | None, typer.Option(help="Write the way step by step: a .html page that plays it, or a .gif.")]
Plain = Annotated[bool, typer.Option("--plain", help="No live view and no colours, also on a terminal.")]
Blocks = Annotated[
    bool, typer.Option("--blocks", help="Go through a text longer than the context in overlapping blocks.")
]
Text = Annotated[str | None, typer.Argument(metavar="TEXT", help="The text; - or nothing reads standard input.")]
File = Annotated[Path | None, typer.Option("--file", help="Read the text from a file.")]


@dataclass(frozen=True)
class ModelFlags:
    """The flags of every verb that uses a model."""

    model: Model = None
    process: Process = None
    device: Device = None
    dtype: Dtype = None
    json: Json = False
    plain: Plain = False
    graphs: Graphs = True

    @property
    def live(self) -> bool:
        """Whether somebody is watching."""
        return on_terminal(self.json, self.plain)

    @property
    def watched(self) -> bool:
        """Whether somebody sees standard error, wherever the text goes: for a bar of long work."""
        return sys.stderr.isatty() and not self.plain

    def open(self) -> LM:
        """The model that the flags name."""
        return open_model(self.model, self.process, self.device, dtype=self.dtype, graphs=self.graphs)


@dataclass(frozen=True)
class DrawFlags(ModelFlags):
    """Those of verbs that draw, too."""

    seed: Seed = 0
    changes: Changes = None
    trace: Trace = None

    def open(self) -> LM:
        """The model with its recipe's sampling changed; refuses a trace that cannot be written before it is loaded."""
        if self.trace is not None:
            from scdd.trace.output import check_path

            check_path(self.trace)
        how = {"dtype": self.dtype, "graphs": self.graphs}
        return open_model(self.model, self.process, self.device, self.changes, **how)  # type: ignore[arg-type]


def open_model(
    model: str | None,
    process: str | None = None,
    device: str | None = None,
    changes: list[str] | None = None,
    dtype: str | None = None,
    graphs: bool = True,
) -> LM:
    """The model that the options name."""
    from scdd.lm.loading import load

    how = {"process": process, "device": device, "dtype": dtype, "graphs": graphs}
    return load(model, overrides=changes or (), **how)  # type: ignore[arg-type]


def read_text(text: str | None, file: Path | None = None) -> str:
    """The text from the argument, a file or standard input: exactly one of them.

    Windows' line ends and byte-order mark are dropped: models learn "\\n" alone and would take the rest for noise.
    """
    if text is not None and text != "-" and file is not None:
        raise UserError("The text is given twice, as an argument and by --file: keep one.")
    if file is not None:
        try:
            raw = file.read_bytes()
        except OSError as error:
            raise UserError(f"--file {file} cannot be read ({error.strerror}): check the path.") from error
        given = _decoded(raw, str(file))
    elif text is None or text == "-":
        if text is None and sys.stdin.isatty():
            raise UserError("There is no text: give it as an argument, with --file, or on standard input.")
        given = _decoded(sys.stdin.buffer.read(), "standard input")
    else:
        given = checked(text, "The text")
    if not given.strip():
        raise UserError("The text is empty: give at least a word.")
    return given.removeprefix("\ufeff").replace("\r\n", "\n").removesuffix("\n")


def checked(text: str, name: str) -> str:
    """`text`, refused if the shell handed over bytes that are no UTF-8."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise UserError(f"{name} is not valid UTF-8 (character {error.start}): convert it to UTF-8 first.") from error
    return text


def _decoded(raw: bytes, place: str) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{place} is not valid UTF-8 (byte {error.start}): convert it to UTF-8 first.") from error


# -- flags that are read off options -----------------------------------------------------------------------------------

Verb = Callable[..., None]


def with_flags(flags: type, into: str = "flags") -> Callable[[Verb], Verb]:
    """Give a verb the flags that this dataclass lists; they arrive as one of them, in the verb's parameter `into`."""
    parameters = inspect.signature(flags, eval_str=True).parameters.values()
    return _with(
        [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in parameters], lambda given: flags(**given), into
    )


def with_options(options: type[Options], *names: str, into: str = "chosen") -> Callable[[Verb], Verb]:
    """Give a verb a flag for each of these options (all, if none is named); what is given arrives as a dictionary `into`.

    Types, choices and help come from the options, so a flag is written down nowhere else. A part with options of its own
    (a sampler, a grid) is chosen by its name.
    """
    properties = TypeAdapter(options).json_schema()["properties"]
    hints = get_type_hints(options)
    flags = [
        _flag(name, hints[name], number_type(options, name) or str, properties[name]["description"])
        for name in names or properties
    ]
    return _with(flags, lambda given: {name: value for name, value in given.items() if value is not None}, into)


def _with(flags: list[inspect.Parameter], gather: Callable[[dict[str, Any]], Any], into: str) -> Callable[[Verb], Verb]:
    def decorate(verb: Verb) -> Verb:
        signature = inspect.signature(verb, eval_str=True)
        own = [parameter for parameter in signature.parameters.values() if parameter.name != into]

        @functools.wraps(verb)
        def run(**given: Any) -> None:
            verb(**{into: gather({flag.name: given.pop(flag.name) for flag in flags})}, **given)

        run.__signature__ = signature.replace(parameters=[*own, *flags])  # type: ignore[attr-defined]
        return run

    return decorate


def _flag(name: str, hint: Any, kind: type, description: str) -> inspect.Parameter:
    """An optional flag: None, where it is not given, leaves the choice to the model's recipe."""
    parts = [hint, *get_args(hint)]
    choices = next((get_args(part) for part in parts if get_origin(part) is Literal), ())
    choices = choices or {"sampler": SAMPLER_NAMES, "grid": get_args(GridKind)}.get(name, ())
    spelt = [each for each in choices if each != "remdm"]  # which is remdm-cap
    text = description if all(str(each) in description for each in spelt) else f"{description} ({', '.join(spelt)})"
    annotation: Any = Annotated[Optional[kind], typer.Option(help=text, show_default="the model's")]  # noqa: UP045
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
