"""The one reader of texts: documents from text files, JSON lines, tables, folders and Hugging Face datasets, in order.

A corpus may be larger than memory: files are cut into raw records, which come in bounded batches; decoding and JSON
parsing (`parse`) belong to whoever has a core to spare. A record's place, (source, ordinal), is enough to go on later.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, Literal, NamedTuple

from scdd.core.errors import UserError, missing_extra, reason
from scdd.data import tables
from scdd.data.address import Address, Place, is_address, place, size_of, version_of, without_secrets
from scdd.data.files import COMPRESSIONS, DAMAGE, open_input, refuse_binary
from scdd.data.options import SEPARATORS, Separator

Split = Literal["train", "valid", "hash"]
TEXT_SUFFIXES = (".txt", ".text", ".md", ".tokens", ".raw")
JSON_SUFFIXES = (".jsonl", ".ndjson", ".json")
LONGEST = 256 << 20  # bytes of one document: memory is bounded by it
BATCH_BYTES = 1 << 20
BATCH_RECORDS = 4096
_HEADING = re.compile(rb"^ ?= [^=\s].* = ?$")


@dataclass(frozen=True)
class Source:
    """One file or one dataset. `split` says where its documents go: train, valid, or as each one's hash decides."""

    path: str
    kind: Literal["json", "text", "table", "dataset"]
    separator: Separator
    field: str  # which holds the text, in JSON lines, tables and datasets
    split: Split
    size: int = 0  # bytes on disk; 0 when unknown
    version: int | str = 0  # what changes with its content

    @property
    def shown(self) -> str:
        """Its path for people, without what only the store may know."""
        return without_secrets(self.path)

    @property
    def place(self) -> Place:
        """Its file."""
        return place(self.path)


class Record(NamedTuple):
    """A document as it lies in its source."""

    line: int  # of the file, from 1; for a dataset, the row's number
    raw: bytes


@dataclass(frozen=True)
class RecordBatch:
    """Consecutive records of `sources[source]`, the first of which is number `first` of that source."""

    source: int
    first: int
    records: list[Record]
    position: int  # bytes of all sources read so far, as they lie on disk


def discover(
    arguments: Sequence[str | Path], *, field: str = "text", separator: Separator = "auto", split: Split = "hash"
) -> list[Source]:
    """Files, folders (searched in sorted order), addresses of either, and `hf:NAME[:CONFIG[:SPLIT]]` as a list of sources."""
    if separator not in SEPARATORS:
        raise UserError(f"separator {separator} is not known: choose one of {', '.join(SEPARATORS)}.", "separator")
    if not field.isprintable():  # bytes that are no UTF-8 arrive as such, too
        raise UserError(f"field {field!r} is no name: give that of the field or column that holds the text.", "field")
    sources: list[Source] = []
    for argument in map(str, arguments):
        path = place(argument)
        named = argument.startswith("hf:") and not is_address(argument)  # hf:// is a file of the Hub, as it is
        if named or (isinstance(path, Path) and _is_saved_dataset(path)):
            sources.append(Source(argument.removeprefix("hf:"), "dataset", "auto", field, split))
        else:
            sources += [_source(file, field, separator, split) for file in _files(path)]
    return sources


def read(
    arguments: Sequence[str | Path], limit: int | None = None, separator: Separator = "auto", field: str = "text"
) -> list[str]:
    """The first `limit` documents, or all, of what `discover` takes; at least one."""
    texts = list(islice(documents(discover(arguments, field=field, separator=separator)), limit))
    if not texts:
        raise UserError(
            f"{', '.join(without_secrets(str(each)) for each in arguments)} holds no text: give a file with some."
        )
    return texts


def _files(path: Place) -> Sequence[Place]:
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise UserError(f"{path} does not exist: give a file, a folder, or hf:NAME for a Hugging Face dataset.")
    if isinstance(path, Address):
        every: list[Place] = [*path.rglob("*")]
    else:
        every = [file for file in sorted(path.rglob("*")) if file.is_file()]
    texts = TEXT_SUFFIXES + JSON_SUFFIXES
    for endings in (texts, tables.SUFFIXES):  # beside texts, tables are taken for figures about them
        if files := [file for file in every if _suffix(file) in endings]:
            return files
    raise UserError(
        f"{path} holds no text: expected files ending in {', '.join(texts + tables.SUFFIXES)}, maybe with .xz, .gz or .zst."
    )


def _is_saved_dataset(path: Path) -> bool:
    return (path / "dataset_dict.json").is_file() or (path / "dataset_info.json").is_file()


def _suffix(path: Place) -> str:
    return Path(path.stem).suffix if path.suffix in COMPRESSIONS else path.suffix


def _source(path: Place, field: str, separator: Separator, split: Split) -> Source:
    suffix, name = _suffix(path), path.url if isinstance(path, Address) else str(path)
    size, version = size_of(path), version_of(path)
    if suffix in JSON_SUFFIXES:
        return Source(name, "json", "line", field, split, size, version)
    if suffix in tables.SUFFIXES:
        if suffix == tables.PARQUET != path.suffix:
            raise UserError(f"{path} is compressed, and Parquet is inside already: unpack it.")
        return Source(name, "table", "auto", field, split, size, version)
    refuse_binary(path)
    if separator == "auto":
        separator = "wikitext" if suffix == ".tokens" else "blank-line"
    return Source(name, "text", separator, field, split, size, version)


def batches(sources: Sequence[Source], start: tuple[int, int] = (0, 0)) -> Iterator[RecordBatch]:
    """The records from place `start` = (source, ordinal) on, in batches of about BATCH_BYTES."""
    before = sum(source.size for source in sources[: start[0]])
    for index in range(start[0], len(sources)):
        source, skip = sources[index], start[1] if index == start[0] else 0
        for first, records, position in _file_batches(source, skip):
            yield RecordBatch(index, first, records, before + position)
        before += source.size


def _file_batches(source: Source, skip: int) -> Iterator[tuple[int, list[Record], int]]:
    batch: list[Record] = []
    first, size, position = skip, 0, 0
    for record, position in _records(source, skip):
        batch.append(record)
        size += len(record.raw)
        if size >= BATCH_BYTES or len(batch) >= BATCH_RECORDS:
            yield first, batch, position
            batch, first, size = [], first + len(batch), 0
    if batch:
        yield first, batch, position


def _records(source: Source, skip: int) -> Iterator[tuple[Record, int]]:
    if source.kind == "dataset":
        for number, row in enumerate(_rows(source, skip), start=skip):
            yield Record(number, row.encode("utf-8", "surrogatepass")), 0
        return
    line = 0
    try:
        if source.kind == "table":
            path = source.place
            for line, (row, position) in enumerate(tables.rows(path, _suffix(path), source.field, LONGEST, skip), skip):
                yield Record(line, row.encode("utf-8", "surrogatepass")), position
            return
        text, raw = open_input(source.place)
        with raw, text:
            for record in islice(_CUTTERS[source.separator](source, text), skip, None):
                line = record.line
                yield record, raw.tell()
    except DAMAGE as error:
        raise UserError(
            f"{source.shown} is damaged or cut short after line {line} ({error}): fetch or compress the file again."
        ) from error


def _lines(source: Source, text: BinaryIO) -> Iterator[Record]:
    """Every line with its end, none longer than a document may be."""
    number = 0
    while line := text.readline(LONGEST + 1):
        number += 1
        _check_length(source, number, len(line))
        yield Record(number, line)


def _check_length(source: Source, line: int, size: int) -> None:
    if size > LONGEST:
        raise UserError(
            f"{source.shown}, line {line}: a document is longer than {LONGEST >> 20} MiB; cut it up, or separate documents by line."
        )


def _whole_lines(source: Source, text: BinaryIO) -> Iterator[Record]:
    return (record for record in _lines(source, text) if not record.raw.isspace())


def _grouped(source: Source, text: BinaryIO, wikitext: bool, whole: bool) -> Iterator[Record]:
    """Lines gathered into documents, which end at blank lines, before WikiText headings, or with the file."""
    document: list[bytes] = []
    start, size, after_blank = 1, 0, True
    for line, raw in _lines(source, text):
        blank = raw.isspace()
        ends = (after_blank and _HEADING.match(raw.rstrip(b"\r\n"))) if wikitext else (blank and not whole)
        if ends and document:
            yield _joined(start, document)
            document, size = [], 0
        if document or not blank:  # a document starts with a line that says something
            start = start if document else line
            document.append(raw)
            size += len(raw)
            _check_length(source, start, size)
        after_blank = blank
    if document:
        yield _joined(start, document)


def _joined(start: int, lines: list[bytes]) -> Record:
    while lines[-1].isspace():  # the first one is not
        lines.pop()
    return Record(start, b"".join(lines))


_CUTTERS: dict[Separator, Callable[[Source, BinaryIO], Iterator[Record]]] = {
    "line": _whole_lines,
    "blank-line": partial(_grouped, wikitext=False, whole=False),
    "wikitext": partial(_grouped, wikitext=True, whole=False),
    "file": partial(_grouped, wikitext=False, whole=True),
}


def parse(source: Source, record: Record) -> str:
    """The document's text; a broken line or broken UTF-8 is refused with its place."""
    if source.kind == "json":
        return _from_json(source, record)
    try:
        # Rows of datasets and tables are already text: only lone surrogates can be wrong with them.
        text = record.raw.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        line = record.line + record.raw[: error.start].count(b"\n")
        raise UserError(f"{source.shown}, line {line}: not valid UTF-8; convert the file to UTF-8.") from error
    return text if source.kind in ("dataset", "table") else text.strip("\r\n").replace("\r\n", "\n")


def _from_json(source: Source, record: Record) -> str:
    place = f"{source.shown}, line {record.line}"
    try:
        value = json.loads(record.raw)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{place}: not a valid JSON line ({error}); mend or remove the line.") from error
    text = value.get(source.field) if isinstance(value, dict) else None
    if not isinstance(text, str):
        has = ", ".join(map(str, value)) if isinstance(value, dict) else type(value).__name__
        raise UserError(f"{place}: {_no_field(source, has)}", "field")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UserError(f"{place}: not valid UTF-8 (half of a surrogate pair); mend or remove the line.") from error
    return text


def _no_field(source: Source, has: str) -> str:
    return f"no text in field '{source.field}' (it has: {has}); name the one that holds it (field)."


def documents(sources: Sequence[Source]) -> Iterator[str]:
    """Every document's text, blank ones left out."""
    for batch in batches(sources):
        for record in batch.records:
            text = parse(sources[batch.source], record)
            if text and not text.isspace():
                yield text


def _rows(source: Source, skip: int) -> Iterator[str]:
    """Rows of a Hugging Face dataset, streamed: from the hub, a folder of its files, or a folder saved to disk."""
    try:
        import datasets
    except ImportError as error:
        raise UserError(missing_extra(f"hf:{source.shown} needs the datasets package", "train")) from error
    name, config, split = [*source.path.split(":"), "", ""][:3]
    try:
        if _is_saved_dataset(Path(name)):
            saved = datasets.load_from_disk(name)
            data: Any = saved[split or "train"] if isinstance(saved, datasets.DatasetDict) else saved
            data = data.to_iterable_dataset()
        else:
            data = datasets.load_dataset(name, config or None, split=split or "train", streaming=True)
        rows = iter(data.skip(skip))
    except Exception as error:
        raise UserError(
            f"hf:{source.shown} cannot be opened ({reason(error)}): check name, config and split (hf:NAME:CONFIG:SPLIT)."
        ) from error
    for number, row in enumerate(rows, start=skip):
        text = row.get(source.field)
        if not isinstance(text, str):
            raise UserError(f"hf:{source.shown}, row {number}: {_no_field(source, ', '.join(row))}", "field")
        yield text
