"""Many texts at once: a file of JSON objects or of lines in, a file of answers out, a line for a line.

What has been written stays: the same command again goes on behind the last whole line. The settings that the answers were
made with lie beside them (`OUT.settings.json`), and other settings, or other texts, are refused rather than mixed in (`answers`).
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from math import isfinite
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any

import typer

from scdd.cli.answers import Entry, sink
from scdd.core.errors import UserError

if TYPE_CHECKING:
    from scdd.lm.model import LM
    from scdd.lm.results import Result

    Answer = Result | Sequence[Result]
    Ask = Callable[[list[str]], Sequence[Answer]]
    Plain = Callable[[Any], str]

CHUNK = 16
"""Texts handed over at a time; answers do not depend on it."""
LONGEST = 16 << 20  # bytes of a line
SHOWN = 30  # characters of what is refused
LINE_END = re.compile(r"\r\n|[\r\n]")
LAST_END = re.compile(r"(?:\r\n|[\r\n])\Z")

Jsonl = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Many texts: one JSON object a line; - reads standard input.")
]
Lines = Annotated[Path | None, typer.Option(metavar="FILE", help="Many texts, one a line; - reads standard input.")]
Field = Annotated[str, typer.Option(help="--jsonl: the key of the text.")]
Out = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Write the answers there, a line for a line; the same command again goes on."),
]


@dataclass(frozen=True)
class BatchFlags:
    """The flags of verbs that take many texts."""

    jsonl: Jsonl = None
    lines: Lines = None
    field: Field = "text"
    out: Out = None

    @property
    def wanted(self) -> bool:
        """Whether there are many texts; refuses flags that do not go together."""
        if self.jsonl is not None and self.lines is not None:
            raise UserError("--jsonl and --lines are both given: keep one.")
        if self.out is not None and self.jsonl is None and self.lines is None:
            raise UserError("--out is for many texts: give them with --jsonl or --lines, or redirect the output.")
        source = self.jsonl or self.lines
        if source is not None and self.out is not None and _same(source, self.out):
            raise UserError("--out is the file that is read: choose another.")
        return source is not None


def check_alone(text: str | None, file: Path | None, trace: Path | None = None) -> None:
    """Many texts and one are not asked for together."""
    if text is not None or file is not None:
        raise UserError("A single text is given beside --jsonl or --lines: keep one of them.")
    if trace is not None:
        raise UserError("--trace shows the steps of one text: leave it out for many.")


def identity(lm: LM, flags: BatchFlags) -> dict[str, str]:
    """What tells one model from another where answers are gone on with: its weights may have changed in their place."""
    if flags.out is None:
        return {}
    from scdd.evals.measure.model import weights_hash

    return {"model": lm.name, "process": lm.engine.process_name, "weights": weights_hash(lm), "dtype": lm.dtype}


def run_batch(verb: str, flags: BatchFlags, settings: dict[str, Any], ask: Ask, plain: Plain | None) -> None:
    """Answer every text of the source; `plain` is how an answer reads where lines come in, or None for JSON there too."""
    source = flags.jsonl or flags.lines
    assert source is not None
    field = flags.field if flags.jsonl is not None else None
    told = {"verb": verb, "source": str(source), "field": field, **settings}
    if flags.lines is not None and plain is None:
        told["json"] = True
    failed, total, first = 0, 0, ""
    bare = field is None and plain is not None
    with (
        _entries(source, field, verb) as entries,
        sink(flags.out, told, _name(source), bare) as answered,
        _bar(source) as advance,
    ):
        rest = answered.rest(entries)
        while chunk := list(islice(rest, CHUNK)):
            answered.begin(chunk)
            asked = [entry for entry in chunk if not _blank(entry, plain)]
            answers = iter(_answers(ask, [entry.text for entry in asked]) if asked else ())
            for entry in chunk:
                result = next(answers) if not _blank(entry, plain) else None
                if isinstance(result, UserError):
                    failed, first = failed + 1, first or f"line {entry.number}: {result}"
                answered.write(entry.text if result is None else _line(verb, entry, result, plain))
                advance(entry)
            total += len(chunk)
    if failed:
        where = "they stand as they were" if bare else 'see "error" in their lines'
        typer.secho(f"{failed} of {total} texts could not be answered ({where}), first {first}", err=True)
        if failed == total and not answered.done:
            raise typer.Exit(2)


def _blank(entry: Entry, plain: Plain | None) -> bool:
    """Whether it is an empty line between others, which is no text and stays."""
    return entry.given is None and plain is not None and not entry.text.strip()


def _answers(ask: Ask, texts: list[str]) -> list[Answer | UserError]:
    """All at once; where one of them cannot be answered, each for itself: the others are."""
    try:
        return list(ask(texts))
    except UserError as error:
        if len(texts) > 1:
            return [each for text in texts for each in _answers(ask, [text])]
        return [error if error.option is None else error.spelt(f"--{error.option.replace('_', '-')}")]


def _line(verb: str, entry: Entry, result: Answer | UserError, plain: Plain | None) -> str:
    if entry.given is None and plain is not None:
        return entry.text if isinstance(result, UserError) else _one_line(plain(result))
    given = {"text": entry.text} if entry.given is None else entry.given
    from scdd.lm.results import Result

    if isinstance(result, UserError):
        if "error" in given:
            raise UserError(
                f'Line {entry.number} has a key "error" of its own and cannot be answered ({str(result).rstrip(".")}), '
                "which would be said there: rename the key."
            )
        added: dict[str, Any] = {"error": str(result)}
    else:
        added = {verb: result.json() if isinstance(result, Result) else [each.json() for each in result]}
    line = json.dumps({**given, **added}, ensure_ascii=False)
    halves = any("\ud800" <= character <= "\udfff" for character in line)  # which JSON can spell and UTF-8 cannot
    return json.dumps({**given, **added}) if halves else line


def _one_line(text: str) -> str:
    """An answer where a line's end would make two of it; other characters that end lines somewhere are the writer's."""
    return LINE_END.sub(" ", LAST_END.sub("", text))


def _name(source: Path) -> str:
    return "standard input" if str(source) == "-" else str(source)


@contextmanager
def _entries(source: Path, field: str | None, verb: str) -> Iterator[Iterator[Entry]]:
    if str(source) == "-":
        yield _read(sys.stdin.buffer, _name(source), field, verb)
        return
    try:
        file = source.open("rb")
    except OSError as error:
        raise UserError(f"{source} cannot be read ({error.strerror}): check the path.") from error
    with file:
        yield _read(file, _name(source), field, verb)


def _read(file: IO[bytes], name: str, field: str | None, verb: str) -> Iterator[Entry]:
    number = 0
    while raw := _raw(file, name):
        number += 1
        place = f"{name}, line {number}"
        if len(raw) > LONGEST:
            raise UserError(f"{place} is longer than {LONGEST >> 20} MiB: cut it.")
        try:
            line = raw.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
        except UnicodeDecodeError as error:
            raise UserError(f"{place} is not valid UTF-8 (byte {error.start}): convert it first.") from error
        if field is None:
            yield Entry(number, line, None)
            continue
        if not line.strip():
            raise UserError(f"{place} is empty: remove it.")
        yield Entry(number, *_parsed(line, place, field, verb))


def _raw(file: IO[bytes], name: str) -> bytes:
    try:
        return file.readline(LONGEST + 1)
    except OSError as error:
        raise UserError(f"{name} cannot be read ({error.strerror}): check it.") from error


def _parsed(line: str, place: str, field: str, verb: str) -> tuple[str, dict[str, Any]]:
    def finite(number: str) -> float:
        if not isfinite(value := float(number)):
            shown = number if len(number) <= SHOWN else f"{number[:SHOWN]}…"
            raise UserError(
                f"{place} has the number {shown}, which JSON cannot give back: write it as a text, in quotes."
            )
        return value

    try:
        given = json.loads(line, parse_float=finite, parse_constant=finite)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{place} is no JSON: mend or remove it.") from error
    if not isinstance(given, dict) or not isinstance(given.get(field), str):
        raise UserError(f"{place} has no text {field!r}: name its key with --field.")
    if verb in given:
        raise UserError(f'{place} has a key "{verb}" of its own, where the answer would stand: rename it.')
    return given[field], given


def _same(source: Path, out: Path) -> bool:
    """Whether they are one file, by whatever names."""
    try:
        return source.samefile(out)
    except OSError:  # one of them is not there
        return False


@contextmanager
def _bar(source: Path) -> Iterator[Callable[[Entry], None]]:
    """A bar of the lines, on a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda entry: None
        return
    total = None
    if source.is_file():  # what comes through a pipe can be read once
        with source.open("rb") as file:
            total = sum(1 for _ in file)
    columns = (TextColumn("texts"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("texts", total=total)
        yield lambda entry: progress.update(task, completed=entry.number)
