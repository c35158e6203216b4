"""Prepared data from elsewhere: the manifest and every header are checked before anything is read by them."""

from __future__ import annotations

import json
import random
import shutil
import struct
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scdd.data.manifest import SplitInfo, read_manifest, write_manifest
from scdd.data.pack import cut
from scdd.data.shards import INDEX, Shards, write_shard
from tests.attack.bounds import attacked, changed, mutated, refused
from tests.tiny import TEXT, tokenizer

SHARD = "train-00000.bin"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return prepared(tmp_path / "shards")


def prepared(out: Path) -> Path:
    own = tokenizer()
    out.mkdir()
    documents = [[*own.encode(TEXT), own.eos_id] for _ in range(6)]
    lengths = np.array([len(ids) for ids in documents])
    info = write_shard(out / SHARD, np.concatenate(documents).astype("<u2"), lengths, own.hash)
    own.save(out)
    write_manifest(out, own, {"sources": []}, {"train": SplitInfo(6, int(lengths.sum()), 1, 1, [info])})
    return out


def used(folder: Path) -> None:
    shards = Shards(folder)
    for packing in ("wrap", "documents"):
        blocks = cut(shards, 16, packing)  # type: ignore[arg-type]
        tokens = blocks.take(np.arange(len(blocks)))[0]
        assert tokens.max() < shards.vocab_size
    assert sum(len(ids) + 1 for ids in shards.documents()) == shards.n_tokens


def rewritten(folder: Path, content: bytes) -> None:
    """The shard with other bytes and a manifest that agrees with their number."""
    (folder / SHARD).write_bytes(content)
    index = json.loads((folder / INDEX).read_text())
    index["splits"]["train"]["shards"][0]["size"] = len(content)
    (folder / INDEX).write_text(json.dumps(index))


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("tokenizer",), None),
        (("tokenizer", "hash"), 5),
        (("tokenizer", "vocab_size"), "300"),
        (("tokenizer", "vocab_size"), 10**12),
        (("tokenizer", "mask_id"), -1),
        (("tokenizer", "eos_id"), 300),
        (("splits",), []),
        (("splits", "train"), 5),
        (("splits", "train", "shards"), 5),
        (("splits", "train", "shards"), [{}]),
        (("splits", "train", "shards", 0, "file"), "../../etc/passwd"),
        (("splits", "train", "shards", 0, "file"), "/etc/passwd"),
        (("splits", "train", "shards", 0, "tokens"), 2**60),
        (("splits", "train", "shards", 0, "documents"), 1.5),
        (("splits", "train", "shards", 0, "size"), -1),
        (("splits", "train", "odd"), 1),
        (("preparation",), 5),
    ],
)
def test_wrong_fields_of_the_manifest_are_refused(folder: Path, place: tuple[Any, ...], value: Any) -> None:
    index = json.loads((folder / INDEX).read_text())
    node = index
    for key in place[:-1]:
        node = node[key]
    node[place[-1]] = value
    (folder / INDEX).write_text(json.dumps(index))
    refused(lambda: used(folder), INDEX)


def test_a_header_asks_for_no_more_than_a_header(folder: Path) -> None:
    content = (folder / SHARD).read_bytes()
    rewritten(folder, content[:12] + struct.pack("<I", 2**32 - 8) + content[16:])
    with open(folder / SHARD, "r+b") as file:
        file.truncate(1 << 33)
    refused(lambda: used(folder), "damaged header")


def test_ids_beyond_the_vocabulary_are_refused(folder: Path) -> None:
    content = bytearray((folder / SHARD).read_bytes())
    start = 16 + struct.unpack("<I", content[12:16])[0]
    content[start + 40 : start + 42] = b"\xff\xff"
    rewritten(folder, bytes(content))
    refused(lambda: used(folder), "holds the id 65535")


def test_ends_that_go_back_are_refused(folder: Path) -> None:
    content = bytearray((folder / SHARD).read_bytes())
    content[-16:-8], content[-24:-16] = content[-24:-16], content[-16:-8]
    rewritten(folder, bytes(content))
    refused(lambda: used(folder), "one after the other")


def inputs(place: Path, dice: random.Random) -> Iterator[Callable[[], Any]]:
    whole, own = prepared(place / "shards"), place / "a"
    index, content = json.loads((whole / INDEX).read_text()), (whole / SHARD).read_bytes()
    for turn in count():
        shutil.rmtree(own, ignore_errors=True)
        shutil.copytree(whole, own)
        if turn % 2:
            (own / INDEX).write_text(json.dumps(changed(index, dice)))
        else:
            cut_at = dice.choice((150, len(content)))
            rewritten(own, mutated(content[:cut_at], dice) + content[cut_at:])
        yield lambda: used(own)


def test_any_mutation_of_prepared_data_is_read_or_refused(tmp_path: Path) -> None:
    attacked(inputs, tmp_path, 300)


def test_a_manifest_is_not_read_beyond_its_limit(folder: Path) -> None:
    for content in (b"[" * 100_000, b"9" * 5000, b"\xff", b"[]"):
        (folder / INDEX).write_bytes(content)
        refused(lambda: read_manifest(folder), INDEX)
    with open(folder / INDEX, "wb") as file:
        file.truncate(1 << 40)
    refused(lambda: read_manifest(folder), "larger than")
