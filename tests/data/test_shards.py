from __future__ import annotations

import json
import os
import resource
import shutil
from pathlib import Path

import numpy as np
import pytest

from scdd.core.errors import UserError
from scdd.data.pack import Packing, cut
from scdd.data.shards import MemoryTokens, Shards, SplitInfo, token_dtype, write_manifest, write_shard
from scdd.data.tokenizer import TextTokenizer
from tests.data.conftest import article

PACKINGS: tuple[Packing, ...] = ("wrap", "documents")
DOCUMENTS = [[(7 * i + j) % 390 + 3 for j in range(i * 5 % 31)] for i in range(40)]


def write(
    folder: Path, tokenizer: TextTokenizer, documents: list[list[int]], cuts: list[int], dtype: str = "<u2"
) -> Shards:
    """Documents in shards that start at `cuts`."""
    info = SplitInfo()
    for number, (start, stop) in enumerate(zip([0, *cuts], [*cuts, len(documents)], strict=True)):
        ids = [[*document, tokenizer.eos_id] for document in documents[start:stop]]
        tokens = np.array([i for document in ids for i in document], dtype=dtype)
        lengths = np.array([len(document) for document in ids], dtype=np.int64)
        info.shards.append(write_shard(folder / f"train-{number:05d}.bin", tokens, lengths, tokenizer.hash))
        info.documents += len(ids)
        info.tokens += len(tokens)
    tokenizer.save(folder)
    write_manifest(folder, tokenizer, {}, {"train": info, "valid": SplitInfo()})
    return Shards(folder)


@pytest.fixture
def folder(tmp_path: Path, tokenizer: TextTokenizer) -> Path:
    write(tmp_path, tokenizer, DOCUMENTS, [13, 21])
    return tmp_path


@pytest.mark.parametrize("dtype", ["<u2", "<u4"])
@pytest.mark.parametrize("cuts", [[], [13, 21], [1, 2, 3, 39]])
def test_files_make_no_difference(tmp_path: Path, tokenizer: TextTokenizer, cuts: list[int], dtype: str) -> None:
    shards = write(tmp_path, tokenizer, DOCUMENTS, cuts, dtype)
    memory = MemoryTokens(DOCUMENTS, tokenizer.bos_id, tokenizer.eos_id)
    assert (shards.n_tokens, shards.n_documents) == (memory.n_tokens, memory.n_documents)
    assert [document.tolist() for document in shards.documents()] == DOCUMENTS
    assert [shards.end(i) for i in range(40)] == [memory.end(i) for i in range(40)]
    for packing in PACKINGS:
        one, two = cut(shards, 16, packing), cut(memory, 16, packing)
        every = np.arange(len(one))
        assert len(one) == len(two)
        for ours, theirs in zip(one.take(every), two.take(every), strict=True):
            assert np.array_equal(ours, theirs) if ours is not None and theirs is not None else ours is theirs
    shards.verify()
    assert shards.tokenizer().hash == tokenizer.hash


def test_small_vocabularies_take_two_bytes() -> None:
    assert token_dtype(1 << 16).itemsize == 2
    assert token_dtype((1 << 16) + 1).itemsize == 4


@pytest.mark.parametrize("bit", [0, 3, 6])
def test_a_flipped_bit_anywhere_is_found(folder: Path, bit: int) -> None:
    path = folder / "train-00001.bin"
    good = path.read_bytes()
    for place in [*range(0, 256), *range(256, len(good), 29)]:  # every byte of the header, some of the rest
        bad = bytearray(good)
        bad[place] ^= 1 << bit
        path.write_bytes(bad)
        with pytest.raises(UserError, match=r"train-00001\.bin .*prepare the data again"):
            Shards(folder).verify()
    path.write_bytes(good)
    Shards(folder).verify()


@pytest.mark.parametrize(
    ("harm", "says"),
    [
        (lambda p: p.unlink(), "is missing"),
        (lambda p: p.write_bytes(p.read_bytes()[:-8]), r"has \d+ bytes, not the"),
        (lambda p: p.write_bytes(b""), "damaged header"),
        (lambda p: p.write_bytes(b"PK" + p.read_bytes()[2:]), "not an scdd shard"),
        (lambda p: shutil.copy(p.with_name("train-00000.bin"), p), r"has \d+ bytes, not the"),
    ],
)
def test_a_bad_shard_is_refused_when_opened(folder: Path, harm: object, says: str) -> None:
    harm(folder / "train-00001.bin")  # type: ignore[operator]
    with pytest.raises(UserError, match=says) as caught:
        Shards(folder)
    assert "train-00001.bin" in str(caught.value)


def test_more_shards_than_files_may_be_open(tmp_path: Path, tokenizer: TextTokenizer) -> None:
    write(tmp_path, tokenizer, DOCUMENTS * 2, list(range(1, 80)))
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/dev/fd")) + 20, limits[1]))
    try:
        assert [document.tolist() for document in Shards(tmp_path).documents()] == DOCUMENTS * 2
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_another_tokenizer_is_refused(folder: Path, tokenizer: TextTokenizer) -> None:
    other = TextTokenizer.train([article(1)], 300)
    shards = Shards(folder)
    shards.require(tokenizer)
    with pytest.raises(UserError, match=r"prepare the data with the model's tokenizer\.json"):
        shards.require(other)
    other.save(folder)
    with pytest.raises(UserError, match="is not the tokenizer of these shards"):
        shards.tokenizer()
    manifest = json.loads((folder / "index.json").read_text())
    manifest["tokenizer"]["hash"] = other.hash
    (folder / "index.json").write_text(json.dumps(manifest))
    with pytest.raises(UserError, match="made with another tokenizer"):
        Shards(folder)


def test_missing_manifests_and_splits_are_named(tmp_path: Path, folder: Path) -> None:
    with pytest.raises(UserError, match="no 'valid' split"):
        Shards(folder, "valid")
    with pytest.raises(UserError, match="holds no prepared data"):
        Shards(tmp_path / "elsewhere")
    (folder / "index.json").rename(folder / "progress.json")
    with pytest.raises(UserError, match="was interrupted"):
        Shards(folder)
    (folder / "index.json").write_text("{")
    with pytest.raises(UserError, match="not valid JSON"):
        Shards(folder)
    (folder / "index.json").write_text('{"format": "scdd-shards", "schema": 99}')
    with pytest.raises(UserError, match="schema 1"):
        Shards(folder)
