from __future__ import annotations

import gzip
import json
import lzma
from pathlib import Path

import pytest

from scdd.core.errors import UserError
from scdd.data.corpus import batches, discover, documents
from scdd.data.options import Separator


def texts(*paths: Path | str, separator: Separator = "auto", field: str = "text") -> list[str]:
    return list(documents(discover(paths, separator=separator, field=field)))


def jsonl(rows: list[str]) -> bytes:
    return "".join(json.dumps({"title": "t", "text": row}) + "\n" for row in rows).encode()


ROWS = ["One.", "Zwei\n\nzwei ü", "三", "four" * 100]


@pytest.mark.parametrize("suffix", ["", ".gz", ".xz", ".zst"])
def test_json_lines_in_any_compression(tmp_path: Path, suffix: str) -> None:
    data = jsonl(ROWS)
    if suffix == ".gz":
        data = gzip.compress(data)
    elif suffix == ".xz":
        data = lzma.compress(data)
    elif suffix == ".zst":
        zstandard = pytest.importorskip("zstandard")
        half = len(data) // 2  # two frames, as parallel compressors write them
        data = zstandard.compress(data[:half]) + zstandard.compress(data[half:])
    (tmp_path / f"a.jsonl{suffix}").write_bytes(data)
    assert texts(tmp_path / f"a.jsonl{suffix}") == ROWS


@pytest.mark.parametrize("suffix", [".gz", ".xz", ".zst"])
@pytest.mark.parametrize("harm", ["cut", "garbled"])
def test_damaged_compression_is_refused(tmp_path: Path, suffix: str, harm: str) -> None:
    data = jsonl([str(i) * 50 for i in range(5000)])
    if suffix == ".zst":
        data = pytest.importorskip("zstandard").compress(data)
    else:
        data = gzip.compress(data) if suffix == ".gz" else lzma.compress(data)
    data = data[: len(data) // 2] if harm == "cut" else b"not compressed at all" + data
    path = tmp_path / f"a.jsonl{suffix}"
    path.write_bytes(data)
    with pytest.raises(UserError, match=rf"a\.jsonl\{suffix} is damaged or cut short after line \d+"):
        texts(path)


@pytest.mark.parametrize(
    ("separator", "expected"),
    [
        ("auto", ["first line\nsecond line", "another", " last"]),
        ("blank-line", ["first line\nsecond line", "another", " last"]),
        ("line", ["first line", "second line", "another", " last"]),
        ("file", ["first line\nsecond line\n \nanother\n\n\n last"]),
    ],
)
def test_what_ends_a_document(tmp_path: Path, separator: Separator, expected: list[str]) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"\n\nfirst line\nsecond line\n \nanother\r\n\n\n last")
    assert texts(path, separator=separator) == expected


def test_wikitext_articles_start_at_their_headings(tmp_path: Path) -> None:
    path = tmp_path / "wiki.tiny.tokens"
    path.write_text(
        " \n = Robert Boulter = \n \n He acts . \n \n = = Career = = \n \n a nominal impedance k\n = 1 henry and C = \n"
        " \n = M @-@ 82 ( highway ) = \n \n A road . \n"
    )
    found = texts(path)
    assert [text.split("\n")[0] for text in found] == [" = Robert Boulter = ", " = M @-@ 82 ( highway ) = "]
    assert " = 1 henry and C = " in found[0]


def test_folders_are_searched_in_sorted_order(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "z.txt").write_text("third")
    (tmp_path / "a.jsonl").write_bytes(jsonl(["first", "second"]))
    (tmp_path / "picture.png").write_bytes(b"\x89PNG")
    assert texts(tmp_path) == ["first", "second", "third"]


DEEP = b'{"text": "fine"}\n{"text": "hi", "x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}\n"


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("a.jsonl", b'{"text": "fine"}\n{"text": broken}\n', "line 2: not a valid JSON line"),
        (
            "a.jsonl",
            b'{"text": "fine"}\n\n{"body": "x", "n": 1}\n',
            r"line 3: no text in field 'text' \(it has: body, n\)",
        ),
        ("a.jsonl", b'["text"]\n', "line 1: no text in field"),
        ("a.jsonl", DEEP, "line 2: not a valid JSON line"),
        ("a.jsonl", b'{"text": "\\ud800"}\n', "line 1: not valid UTF-8"),
        ("a.jsonl", b'{"text": "\xff"}\n', "line 1: not"),
        ("a.txt", b"fine\n\nalso\nfine\nbad \xff byte\n", "line 5: not valid UTF-8"),
    ],
)
def test_broken_text_is_refused_with_its_place(tmp_path: Path, name: str, content: bytes, says: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=says):
        texts(tmp_path / name)


def test_other_mistakes_are_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="does not exist"):
        texts(tmp_path / "nowhere.txt")
    with pytest.raises(UserError, match="holds no text"):
        texts(tmp_path)
    (tmp_path / "a.txt").write_text("x" * 100)
    with pytest.raises(UserError, match="choose one of auto, blank-line"):
        texts(tmp_path, separator="page")  # type: ignore[arg-type]


def test_a_document_has_a_longest_length(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scdd.data.corpus.LONGEST", 100)
    (tmp_path / "a.txt").write_text("short\n\n" + "some words\n" * 20)
    assert texts(tmp_path, separator="line")[0] == "short"
    with pytest.raises(UserError, match=r"line 3: a document is longer"):
        texts(tmp_path)


def test_batches_are_bounded_and_start_anywhere(corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scdd.data.corpus.BATCH_BYTES", 2000)
    sources = discover([str(corpus)])
    everything = [(b.source, b.first + i, r) for b in batches(sources) for i, r in enumerate(b.records)]
    assert len(everything) == 600
    assert max(sum(len(r.raw) for r in b.records[:-1]) for b in batches(sources)) < 2000
    positions = [b.position for b in batches(sources)]
    assert positions == sorted(positions)
    assert positions[-1] == sum(s.size for s in sources) - 1  # the last file ends with one more blank line
    for start in (0, 1, 199, 200, 357, 599):
        place = everything[start][:2]
        assert [
            (b.source, b.first + i, r) for b in batches(sources, place) for i, r in enumerate(b.records)
        ] == everything[start:]
    assert list(batches(sources, (len(sources), 0))) == []


def test_saved_hugging_face_datasets(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    rows = datasets.Dataset.from_dict({"text": ROWS, "body": [row.upper() for row in ROWS]})
    rows.save_to_disk(str(tmp_path / "plain"))
    datasets.DatasetDict({"train": rows, "test": rows.select([0])}).save_to_disk(str(tmp_path / "dict"))
    assert texts(tmp_path / "plain") == ROWS
    assert texts(tmp_path / "plain", field="body") == [row.upper() for row in ROWS]
    assert texts(f"hf:{tmp_path / 'dict'}::test") == ROWS[:1]
    [source] = discover([tmp_path / "plain"])
    assert [r.raw.decode() for b in batches([source], (0, 2)) for r in b.records] == ROWS[2:]
    with pytest.raises(UserError, match="row 0: no text in field 'nope'"):
        texts(tmp_path / "plain", field="nope")
    with pytest.raises(UserError, match="cannot be opened"):
        texts(f"hf:{tmp_path / 'dict'}::nosuch")


@pytest.mark.data
@pytest.mark.parametrize("split", ["valid", "test"])
def test_wikitext_103_has_sixty_articles(data_folder: Path, split: str) -> None:
    found = texts(data_folder / "wikitext-103" / f"wiki.{split}.tokens.xz")
    assert len(found) == 60
    assert all(text.startswith(" = ") and not text.startswith(" = = ") for text in found)
