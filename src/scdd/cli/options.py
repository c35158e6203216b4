"""Options that several verbs share, and how they read texts. Nothing here imports torch."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from scdd.core.errors import UserError

if TYPE_CHECKING:
    from scdd.lm import LM

Model = Annotated[
    str | None,
    typer.Option(
        metavar="PATH|HUB-ID", help="Checkpoint folder, run folder or Hub id; default: the bundled model."
    ),
]
Process = Annotated[
    str | None, typer.Option(help="Sample with another process of the same marginals: scdd, gidd or mdlm.")
]
Device = Annotated[str | None, typer.Option(help="cuda or cpu; cuda where there is one.")]
Num = Annotated[int, typer.Option(help="How many texts.")]
Steps = Annotated[int | None, typer.Option(help="Steps, each one network evaluation; default: the recipe's.")]
Seed = Annotated[int, typer.Option(help="Sample i of a seed is the same text alone or in any batch.")]
SamplerName = Annotated[
    str | None,
    typer.Option(
        help="ancestral, remdm-cap|rescale|conf|loop, informed, prism, p2, gidd-correct, threshold, ar."
    ),
]
GridName = Annotated[str | None, typer.Option(help="Spacing of the times: uniform, quadratic or cosine.")]
Final = Annotated[str | None, typer.Option(help="Last step: ancestral, masks-only, greedy or none.")]
TopP = Annotated[
    float | None, typer.Option(help="Nucleus: keep the likeliest tokens up to this probability.")
]
TopK = Annotated[int | None, typer.Option(help="Keep only this many likeliest tokens.")]
Temperature = Annotated[float | None, typer.Option(help="Divides the logits; below 1 is more cautious.")]
Tolerance = Annotated[
    float | None,
    typer.Option(help="Stop a text when fewer than this many tokens are expected to change any more."),
]
BatchSize = Annotated[int, typer.Option(help="Texts drawn at a time; changes speed and memory only.")]
Changes = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Change the recipe's sampling, e.g. sampling.sampler.eta=0.02."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="One JSON object a line.")]
Trace = Annotated[
    Path | None, typer.Option(help="Write the way step by step: a .html page that plays it, or a .gif.")
]
Plain = Annotated[bool, typer.Option("--plain", help="No live view and no colours, also on a terminal.")]
Blocks = Annotated[
    bool, typer.Option("--blocks", help="Go through a text longer than the context in overlapping blocks.")
]
Strength = Annotated[
    float, typer.Option(help="Noise level t0 in (0, 1] to assume of the text: higher doubts more.")
]
Text = Annotated[
    str | None, typer.Argument(metavar="[TEXT]", help="The text; - or nothing reads standard input.")
]
File = Annotated[Path | None, typer.Option("--file", help="Read the text from a file.")]


def open_model(
    model: str | None, process: str | None = None, device: str | None = None, changes: list[str] | None = None
) -> LM:
    """The model that the options name."""
    from scdd.lm import load

    return load(model, process=process, device=device, overrides=changes or ())


def read_text(text: str | None, file: Path | None = None) -> str:
    """The text from the argument, a file or standard input: exactly one of them.

    Windows' line ends and byte-order mark are dropped: models learn "\\n" alone and would take the rest for noise.
    """
    if text is not None and text != "-" and file is not None:
        raise UserError("The text is given twice, as an argument and by --file: keep one.")
    if file is not None:
        try:
            found = file.read_bytes()
        except OSError as error:
            raise UserError(f"--file {file} cannot be read ({error.strerror}): check the path.") from error
        found_text = _decoded(found, str(file))
    elif text is None or text == "-":
        if text is None and sys.stdin.isatty():
            raise UserError("There is no text: give it as an argument, with --file, or on standard input.")
        found_text = _decoded(sys.stdin.buffer.read(), "standard input")
    else:
        found_text = checked(text, "The text")
    if not found_text.strip():
        raise UserError("The text is empty: give at least a word.")
    return found_text.removeprefix("\ufeff").replace("\r\n", "\n").removesuffix("\n")


def checked(text: str, name: str) -> str:
    """`text`, refused if the shell handed over bytes that are no UTF-8."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise UserError(
            f"{name} is not valid UTF-8 (character {error.start}): convert it to UTF-8 first."
        ) from error
    return text


def _decoded(found: bytes, place: str) -> str:
    try:
        return found.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(
            f"{place} is not valid UTF-8 (byte {error.start}): convert it to UTF-8 first."
        ) from error


def wishes(**given: Any) -> dict[str, Any]:
    """Options that were really given."""
    return {name: value for name, value in given.items() if value is not None}
