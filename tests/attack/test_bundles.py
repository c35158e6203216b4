"""A bundle comes from anywhere: every file of it is read within limits, and what does not fit is a sentence."""

from __future__ import annotations

import hashlib
import json
import random
import shutil
import struct
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import scdd
from scdd.bundle.folder import META, RECIPE, TOKENIZER, WEIGHTS, Bundle, read
from tests.attack.bounds import attacked, bounded, changed, mutated, refused
from tests.tiny import checkpoint


def signed(folder: Path, **facts: Any) -> Path:
    """meta.json with other facts and the right checksums, as whoever makes the folder can write it."""
    meta = json.loads((folder / META).read_text()) | facts
    meta["weights_sha256"] = hashlib.sha256((folder / WEIGHTS).read_bytes()).hexdigest()
    if isinstance(meta.get("vocab"), dict) and "size" in meta["vocab"]:
        with suppress(ValueError):
            text = json.dumps(json.loads((folder / TOKENIZER).read_text()), sort_keys=True)
            ids = f"{meta['vocab']['size']} {meta['vocab'].get('mask_id')}"
            meta["vocab"]["hash"] = hashlib.sha256(f"{ids}\n{text}".encode()).hexdigest()
    (folder / META).write_text(json.dumps(meta))
    return folder


def with_weights(folder: Path, **others: torch.Tensor | None) -> Path:
    weights = {k: v.clone() for k, v in load_file(folder / WEIGHTS).items()} | others
    save_file({k: v for k, v in weights.items() if v is not None}, folder / WEIGHTS)
    return signed(folder)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return checkpoint(tmp_path / "theirs", quality=True)


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("name", ["blocks.1.mlp_in.weight", "quality.last.bias"])
def test_weights_that_are_no_numbers_are_refused(folder: Path, value: float, name: str) -> None:
    tensor = load_file(folder / WEIGHTS)[name].clone()
    tensor.view(-1)[-1] = value
    refused(lambda: scdd.load(with_weights(folder, **{name: tensor})), f"not finite ({name})")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("network", []),
        ("network", "dit"),
        ("network", {"depth": 10**9, "width": 32, "heads": 2}),
        ("network", {"depth": 2, "width": 2**40, "heads": 2}),
        ("network", {"depth": 2, "width": 32, "heads": 2, "causal": "yes"}),
        ("network", {"depth": 2, "width": 32, "heads": 2, "cond_width": 10**12}),
        ("network", {"depth": "2", "width": 32, "heads": 2}),
        ("network", {"depth": 2, "width": 32, "heads": 2, "odd": 1}),
        ("network", {"kind": ["dit"]}),
        ("network", {"kind": "import", "target": 5}),
        ("network", {"kind": "llama", "rotary_scaling": 5}),
        ("extra", []),
        ("extra", None),
        ("extra", {"chat_template": ["a"]}),
        ("extra", {"repair": [1]}),
        ("extra", {"repair": {"steps": "many"}}),
        ("versions", 5),
        ("step", "7"),
        ("tokens", -1),
        ("vocab", {"size": 10**18, "mask_id": 1, "hash": ""}),
        ("vocab", {"size": "300", "mask_id": 1, "hash": ""}),
        ("vocab", {"size": 301, "mask_id": 299}),
        ("vocab", 5),
        ("schema", True),
    ],
)
def test_wrong_facts_are_refused(folder: Path, name: str, value: Any) -> None:
    refused(lambda: scdd.load(signed(folder, **{name: value})))


@pytest.mark.parametrize(
    "others",
    [
        {"quality.first.weight": None},
        {"quality.first.weight": torch.zeros(4)},
        {"quality.first.weight": torch.zeros(4, 32)},
        {"quality.more": torch.zeros(4)},
        {"quality.first.weight": torch.zeros(32, 8), "quality.first.bias": torch.zeros(32)},
        {"quality.first.weight": torch.zeros(1 << 40, 0)},
        {"norm.weight": torch.zeros(1 << 40, 0)},
        {"norm.weight": torch.zeros(32, dtype=torch.complex64)},
        {"norm.weight": None},
    ],
)
def test_weights_that_do_not_fit_are_refused(folder: Path, others: dict[str, torch.Tensor | None]) -> None:
    refused(lambda: scdd.load(with_weights(folder, **others)))


def test_weights_of_other_types_are_computed_with_as_float32(folder: Path) -> None:
    half = torch.ones(32, dtype=torch.float64)
    with bounded():
        model = scdd.load(with_weights(folder, **{"norm.weight": half}))
    assert {each.dtype for each in model.network.parameters()} == {torch.float32}


def test_a_tokenizer_of_another_vocabulary_is_refused(folder: Path) -> None:
    document = json.loads((folder / TOKENIZER).read_text())
    document["added_tokens"].append({**document["added_tokens"][0], "content": "more", "id": 300})
    (folder / TOKENIZER).write_text(json.dumps(document))
    refused(lambda: scdd.load(signed(folder)), "ids with the mask")


def test_files_are_not_read_beyond_their_limits(folder: Path) -> None:
    for name in (META, RECIPE, TOKENIZER):
        kept = (folder / name).read_bytes()
        with open(folder / name, "wb") as handle:
            handle.truncate(1 << 40)  # of zeros, which take no room
        refused(lambda: scdd.load(folder), "larger than")
        (folder / name).write_bytes(b"[" * 100_000)
        refused(lambda: scdd.load(folder))
        (folder / name).write_bytes(kept)
    (folder / WEIGHTS).write_bytes(struct.pack("<Q", 1 << 25) + b" " * 100)
    refused(lambda: scdd.load(signed(folder)), "header is too long")


def inputs(place: Path, dice: random.Random) -> Iterator[Callable[[], Any]]:
    whole, own = checkpoint(place / "whole", quality=True), place / "a"
    meta = json.loads((whole / META).read_text())

    def used() -> None:
        model = scdd.load(own, device="cpu")
        model.generate(length=4, steps=1, seed=0)

    for turn in count():
        shutil.rmtree(own, ignore_errors=True)
        shutil.copytree(whole, own)
        name = (META, META, RECIPE, WEIGHTS)[turn % 4]
        if name == META:
            (own / META).write_text(json.dumps(changed(meta, dice)))
        else:
            head = (own / name).read_bytes()
            (own / name).write_bytes(mutated(head[:2000], dice) + head[2000:])
        with suppress(ValueError, TypeError):
            signed(own)
        yield used


def test_any_mutation_of_a_bundle_is_read_or_refused(tmp_path: Path) -> None:
    attacked(inputs, tmp_path, 80)


def test_the_reader_alone_gives_a_bundle(folder: Path) -> None:
    assert isinstance(read(folder), Bundle)
