"""Tables are read by the column that holds the text; what is no text is refused by its name."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from scdd.core.errors import UserError
from scdd.data.corpus import batches, discover, parse, read

TEXTS = ["One, with a comma.", 'Two "quoted"\nlines.', "Three über\tall."]
ROWS = [{"id": i, "text": text} for i, text in enumerate(TEXTS)]


def write_csv(path: Path, delimiter: str = ",") -> Path:
    quoted = ['"' + text.replace('"', '""') + '"' for text in TEXTS]
    lines = [delimiter.join(("id", "text")), *(delimiter.join((str(i), q)) for i, q in enumerate(quoted))]
    data = ("\ufeff" + "\r\n".join(lines) + "\r\n").encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


@pytest.mark.parametrize(("name", "delimiter"), [("a.csv", ","), ("a.tsv", "\t"), ("a.csv.gz", ",")])
def test_a_row_is_a_document(tmp_path: Path, name: str, delimiter: str) -> None:
    path = write_csv(tmp_path / name, delimiter)
    assert read([path]) == TEXTS
    assert read([tmp_path]) == TEXTS, "a folder of nothing but tables"
    sources = discover([path])
    [rest] = batches(sources, (0, 1))
    assert [parse(sources[0], record) for record in rest.records] == TEXTS[1:], "goes on at a place"
    with pytest.raises(UserError, match=r"has no column 'body' \(it has: id, text\)"):
        read([path], field="body")


def test_parquet(tmp_path: Path) -> None:
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "a.parquet"
    parquet.write_table(pyarrow.Table.from_pylist(ROWS), path)
    assert read([path]) == TEXTS
    sources = discover([path])
    [rest] = batches(sources, (0, 2))
    assert [parse(sources[0], record) for record in rest.records] == TEXTS[2:]
    for field, said in (("body", r"no column 'body' \(it has: id, text\)"), ("id", "column 'id' holds no text")):
        with pytest.raises(UserError, match=said):
            read([path], field=field)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(UserError, match="is no readable Parquet file"):
        read([path])


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b'id,text\n1,"never closed', "line 2: no valid CSV"),
        (b"id,text\n1,a,b\n", "line 2: 3 columns where the header has 2"),
        (b"id,text\n1,\xff\n", "not valid UTF-8"),
        (b"", "no column 'text'"),
        (b"text,text\na,b\n", "no column 'text'"),
    ],
)
def test_broken_tables_are_refused_with_their_place(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(content)
    with pytest.raises(UserError, match=said):
        read([path])


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.pdf", b"%PDF-1.7\n", "is a PDF file"),
        ("a.docx", b"PK\x03\x04rest", "is a zip file"),
        ("a.txt", b"a\0b", "is a binary file"),
        ("a.bin", b"PAR1xx", "is a Parquet file"),
        ("a.txt", "text".encode("utf-16"), "is UTF-16: convert"),
        ("a.tar.gz", gzip.compress(b"a\0" * 9, mtime=0), "is a binary file"),
        ("a.parquet.gz", gzip.compress(b"PAR1", mtime=0), "unpack it"),
    ],
)
def test_what_is_no_text_is_refused_by_its_name(tmp_path: Path, name: str, content: bytes, said: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(UserError, match=said):
        discover([path])
