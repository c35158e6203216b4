"""Documents from tables: CSV and TSV, which may be compressed, and Parquet. One column holds the text, a row is a document."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from typing import Any

from scdd.core.errors import UserError, missing_extra, reason
from scdd.data.address import Address, Place, size_of
from scdd.data.files import open_input

DELIMITERS = {".csv": ",", ".tsv": "\t"}
PARQUET = ".parquet"
SUFFIXES = (*DELIMITERS, PARQUET)
ROWS = 256  # of a Parquet file at a time


def rows(path: Place, suffix: str, field: str, longest: int, skip: int = 0) -> Iterator[tuple[str, int]]:
    """(The text of each row from number `skip` on, bytes of the file read so far); no text is longer than `longest`."""
    found = _parquet(path, field, skip) if suffix == PARQUET else _separated(path, suffix, field, longest, skip)
    for number, (text, position) in enumerate(found, start=skip + 1):
        if len(text) > longest:
            raise UserError(f"{path}, row {number}: a text is longer than {longest >> 20} MiB; cut it up.")
        yield text, position


def no_column(path: Place, field: str, has: list[str]) -> UserError:
    """The mistake that people make with tables."""
    columns = ", ".join(name[:40] for name in has[:20]) or "none"
    return UserError(f"{path} has no column '{field}' (it has: {columns}): name the one that holds the text.", "field")


def _separated(path: Place, suffix: str, field: str, longest: int, skip: int) -> Iterator[tuple[str, int]]:
    data, raw = open_input(path)
    before = csv.field_size_limit(longest)
    with raw, data:
        text = io.TextIOWrapper(data, encoding="utf-8-sig", newline="")
        reader = csv.reader(text, delimiter=DELIMITERS[suffix], strict=True)
        try:
            head = next(reader, [])
            if head.count(field) != 1:
                raise no_column(path, field, head)
            column = head.index(field)
            for number, row in enumerate(reader):
                if number >= skip and row:
                    if len(row) != len(head):
                        raise UserError(
                            f"{path}, line {reader.line_num}: {len(row)} columns where the header has {len(head)}; mend the line."
                        )
                    yield row[column], raw.tell()
                elif number >= skip:
                    yield "", raw.tell()  # a blank line: no document, but it is counted
        except csv.Error as error:
            raise UserError(
                f"{path}, line {reader.line_num}: no valid {suffix[1:].upper()} ({error}); mend it."
            ) from error
        except UnicodeDecodeError as error:
            raise UserError(
                f"{path}, after line {reader.line_num}: not valid UTF-8; convert the file to UTF-8."
            ) from error
        finally:
            csv.field_size_limit(before)
            text.detach()  # or it would be closed twice


def _parquet(path: Place, field: str, skip: int) -> Iterator[tuple[str, int]]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise UserError(missing_extra(f"{path} needs the pyarrow package", "train")) from error
    try:
        far = isinstance(path, Address)
        file: Any = pyarrow.parquet.ParquetFile(path.open() if isinstance(path, Address) else path, memory_map=not far)
        columns = list(file.schema_arrow.names)
        if field not in columns:
            raise no_column(path, field, columns)
        size, total, number = size_of(path), max(1, file.metadata.num_rows), 0
        for batch in file.iter_batches(batch_size=ROWS, columns=[field]):
            for text in batch.column(0).to_pylist():
                if number >= skip:
                    if not isinstance(text, str):
                        raise UserError(
                            f"{path}, row {number + 1}: column '{field}' holds no text; name another.", "field"
                        )
                    yield text, size * number // total
                number += 1
    except (pyarrow.ArrowException, OSError) as error:
        raise UserError(f"{path} is no readable Parquet file ({reason(error)}): fetch it again.") from error
