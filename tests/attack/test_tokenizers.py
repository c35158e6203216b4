"""A tokenizer.json comes along with somebody's model: no part of it may panic, abort, grow or hang unnoticed."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from scdd.core.errors import UserError
from scdd.data.tokenizer import TextTokenizer
from tests.attack.bounds import attacked, bounded, changed, mutated, refused
from tests.tiny import TEXT, tokenizer

BASE: dict[str, Any] = json.loads(tokenizer().to_str())
DOUBLE = {"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}
BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
BPE = {"type": "BPE", "vocab": {"é": 0, "a": 1, "éa": 2}, "merges": [["a", "é"]], "continuing_subword_prefix": "x"}


def split(pattern: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("normalizer", {"type": "Sequence", "normalizers": [DOUBLE] * 30}),
        ("normalizer", {"type": "Replace", "pattern": {"String": "a"}, "content": "b" * 10**6}),
        ("normalizer", {"type": "Replace", "pattern": {"String": ""}, "content": "a"}),
        ("normalizer", {"type": "Replace", "pattern": {"Regex": "x*"}, "content": "aaaa"}),
        ("normalizer", {"type": "Sequence", "normalizers": [{"type": "ByteLevel"}] * 20}),
        ("normalizer", {"type": "Precompiled", "precompiled_charsmap": "AAAA"}),
        ("normalizer", {"type": "Precompiled", "precompiled_charsmap": "BAAAAP////8="}),
        ("pre_tokenizer", {"type": "Sequence", "pretokenizers": [BYTES] * 20}),
        ("pre_tokenizer", {"type": "FixedLength", "length": 0}),
        ("pre_tokenizer", split("(")),
        ("pre_tokenizer", split("(" * 5000)),
        ("decoder", {"type": "Sequence", "decoders": [{**DOUBLE, "content": "a" * 100}] * 5}),
        ("decoder", {"type": "Strip", "content": "e", "start": 0, "stop": 10**9}),
        ("model", BPE),
        ("model", {"type": "BPE", "vocab": {"a": 2**32 - 1}, "merges": []}),
        ("model", {"type": "Unigram", "unk_id": 5, "vocab": [["a", 0.0]]}),
        ("model", []),
        ("added_tokens", {}),
        ("post_processor", {"type": "TemplateProcessing", "single": 1, "pair": [], "special_tokens": {}}),
    ],
)
def test_a_hostile_part_is_refused(part: str, value: Any) -> None:
    refused(lambda: TextTokenizer(json.dumps({**BASE, part: value})), seconds=5)


def test_a_document_must_be_json_of_bounded_size() -> None:
    refused(lambda: TextTokenizer("[" * 100_000))
    refused(lambda: TextTokenizer("[" + "[]," * (1 << 22) + "[]]"), "more than 8,388,608 values")
    refused(lambda: TextTokenizer('{"model": ' + "9" * 5000 + "}"))


def test_padding_and_truncation_of_others_are_left_out() -> None:
    wrong = {"max_length": 1, "strategy": "LongestFirst", "stride": 1, "direction": "Right"}
    with bounded():
        read = TextTokenizer(json.dumps({**BASE, "truncation": wrong}))
    assert read.encode(TEXT) == tokenizer().encode(TEXT)


def test_a_regular_expression_that_explodes_is_a_mistake_of_the_tokenizer() -> None:
    made = TextTokenizer(json.dumps({**BASE, "pre_tokenizer": split("(a+)+$")}))
    with bounded(5), pytest.raises(UserError, match="retry-limit"):
        made.encode("a" * 40 + "!")


def used(document: str) -> None:
    made = TextTokenizer.completed(document)
    made.decode(made.encode(TEXT))
    assert all(0 <= i < made.size for i in made.special_tokens.values())


def inputs(place: Path, dice: random.Random) -> Iterator[Callable[[], Any]]:
    """Four of five have an odd value, the others odd bytes."""
    small = {**BASE, "model": {**BASE["model"], "merges": BASE["model"]["merges"][:5]}}
    whole = json.dumps(BASE).encode()
    for turn in count():
        text = json.dumps(changed(small, dice)) if turn % 5 else mutated(whole, dice).decode("utf-8", "replace")
        yield lambda text=text: used(text)  # type: ignore[misc]


def test_any_mutation_of_a_tokenizer_is_read_or_refused(tmp_path: Path) -> None:
    attacked(inputs, tmp_path, 500)
