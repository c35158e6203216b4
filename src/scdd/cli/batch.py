"""Many texts at once: a file of JSON objects or of lines in, a file of answers out, a line for a line.

What has been written stays: the same command again goes on behind the last whole line. The settings that the answers were
made with lie beside them (`OUT.settings.json`), and other settings are refused rather than mixed in.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

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


class Entry(NamedTuple):
    """A line of the source."""

    number: int
    text: str
    given: dict[str, Any] | None  # the object that it came in


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
    with _entries(source, field) as entries, _sink(flags.out, told) as (write, done), _bar(source) as advance:
        for entry in islice(entries, done):
            advance(entry)
        while chunk := list(islice(entries, CHUNK)):
            asked = [entry for entry in chunk if not _blank(entry, plain)]
            answers = iter(_answers(ask, [entry.text for entry in asked]) if asked else ())
            for entry in chunk:
                result = next(answers) if not _blank(entry, plain) else None
                if isinstance(result, UserError):
                    failed, first = failed + 1, first or f"line {entry.number}: {result}"
                write(entry.text if result is None else _line(verb, entry, result, plain))
                advance(entry)
            total += len(chunk)
    if failed:
        where = "they stand as they were" if field is None and plain is not None else 'see "error" in their lines'
        typer.secho(f"{failed} of {total} texts could not be answered ({where}), first {first}", err=True)


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
        said = entry.text if isinstance(result, UserError) else plain(result)
        return " ".join(said.splitlines())
    given = {"text": entry.text} if entry.given is None else entry.given
    from scdd.lm.results import Result

    if isinstance(result, UserError):
        added: dict[str, Any] = {"error": str(result)}
    else:
        added = {verb: result.json() if isinstance(result, Result) else [each.json() for each in result]}
    line = json.dumps({**given, **added}, ensure_ascii=False)
    halves = any("\ud800" <= character <= "\udfff" for character in line)  # which JSON can spell and UTF-8 cannot
    return json.dumps({**given, **added}) if halves else line


@contextmanager
def _entries(source: Path, field: str | None) -> Iterator[Iterator[Entry]]:
    if str(source) == "-":
        yield _read(sys.stdin.buffer, "standard input", field)
        return
    try:
        file = source.open("rb")
    except OSError as error:
        raise UserError(f"{source} cannot be read ({error.strerror}): check the path.") from error
    with file:
        yield _read(file, str(source), field)


def _read(file: IO[bytes], name: str, field: str | None) -> Iterator[Entry]:
    number = 0
    while raw := file.readline(LONGEST + 1):
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
        yield Entry(number, *_parsed(line, place, field))


def _parsed(line: str, place: str, field: str) -> tuple[str, dict[str, Any]]:
    try:
        given = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{place} is no JSON: mend or remove it.") from error
    if not isinstance(given, dict) or not isinstance(given.get(field), str):
        raise UserError(f"{place} has no text {field!r}: name its key with --field.")
    return given[field], given


@contextmanager
def _sink(out: Path | None, told: dict[str, Any]) -> Iterator[tuple[Callable[[str], None], int]]:
    """What writes a line, and how many lines are there already."""
    if out is None:
        yield print, 0
        return
    beside = out.with_name(out.name + ".settings.json")
    settings = json.dumps(told, indent=1, ensure_ascii=False, default=str) + "\n"
    try:
        if out.exists():
            earlier = beside.read_text(encoding="utf-8", errors="replace") if beside.exists() else ""
            if _verb(earlier) != told["verb"]:
                raise UserError(f"--out {out} exists and is no result of this command: choose another.")
            if earlier != settings:
                raise UserError(f"--out {out} exists, and was made with other settings: choose another, or delete it.")
        else:
            beside.write_text(settings, encoding="utf-8")
        with out.open("a+b") as file:
            done = _whole_lines(file)

            def write(line: str) -> None:
                file.write(line.encode() + b"\n")
                file.flush()

            yield write, done
    except OSError as error:
        raise UserError(f"--out {out} cannot be written ({error.strerror}): make room, or choose another.") from error


def _same(source: Path, out: Path) -> bool:
    """Whether they are one file, by whatever names."""
    try:
        return source.samefile(out)
    except OSError:  # one of them is not there
        return False


def _verb(settings: str) -> str | None:
    """The verb whose settings these are; None where they are no settings of ours."""
    try:
        told = json.loads(settings)
    except (ValueError, RecursionError):
        return None
    return told.get("verb") if isinstance(told, dict) else None


def _whole_lines(file: IO[bytes]) -> int:
    """Lines that were written to their end; what is left of a cut one is dropped."""
    file.seek(0)
    count = end = 0
    for line in file:
        if line.endswith(b"\n"):
            count, end = count + 1, end + len(line)
    file.truncate(end)
    return count


@contextmanager
def _bar(source: Path) -> Iterator[Callable[[Entry], None]]:
    """A bar of the lines, on a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda entry: None
        return
    total = None if str(source) == "-" else sum(1 for _ in source.open("rb"))
    columns = (TextColumn("texts"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("texts", total=total)
        yield lambda entry: progress.update(task, completed=entry.number)
