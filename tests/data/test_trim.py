"""Tokenizers cut down to what a text uses: proper ones, which give the same text back."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from scdd.bundle.folder import read
from scdd.cli.main import main
from scdd.core.errors import UserError
from scdd.data.tokenizer import TextTokenizer
from scdd.data.trim import trimmed
from tests import tiny

USED = "The falcon flies over the river. "
OTHER = "Übermut, naïve 中文 🙂; a quick brown fox"


def test_the_tokens_that_a_text_uses_stay_and_any_text_comes_back() -> None:
    whole = tiny.tokenizer()
    small, kept = trimmed(whole, [USED * 3], 280)
    assert small.size == len(kept) == 280
    assert kept == sorted(kept)
    assert [whole.token(i) for i in kept] == [small.token(i) for i in range(280)]
    assert (small.mask_id, small.bos_id, small.eos_id) == tuple(
        kept.index(i) for i in (whole.mask_id, whole.bos_id, whole.eos_id)
    )
    # all of its tokens are there, so nothing changes
    assert [kept[i] for i in small.encode(USED)] == whole.encode(USED)
    for text in (USED, OTHER, tiny.TEXT):
        assert small.decode(small.encode(text)) == text
    assert len(small.encode(tiny.TEXT)) > len(whole.encode(tiny.TEXT))


def test_what_is_kept_is_closed_and_grows_with_its_size() -> None:
    whole, before = tiny.tokenizer(), set[int]()
    for size in (259, 265, 280, 300):
        small, kept = trimmed(whole, [tiny.TEXT], size)
        model = json.loads(small.to_str())["model"]
        assert all({a, b, a + b} <= model["vocab"].keys() for a, b in model["merges"])
        made = {a + b for a, b in model["merges"]}
        assert len(made) == size - 259
        assert before <= set(kept)
        before = set(kept)
    assert trimmed(whole, [tiny.TEXT], 300)[0].hash == whole.hash


def test_sizes_and_tokenizers_that_cannot_be_are_refused() -> None:
    for size in (258, 301):
        with pytest.raises(UserError, match=f"vocab_size is {size}: choose from 259 to 300"):
            trimmed(tiny.tokenizer(), [USED], size)
    document = json.loads(tiny.tokenizer().to_str())
    words = {"type": "WordLevel", "unk_token": "[BOS]", "vocab": document["model"]["vocab"]}
    other = TextTokenizer(json.dumps({**document, "model": words}))
    with pytest.raises(UserError, match="only a byte-pair tokenizer"):
        trimmed(other, [USED], 280)


def test_convert_keeps_the_ids_that_a_text_uses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, text, out = tiny.checkpoint(tmp_path / "model"), tmp_path / "text.txt", tmp_path / "small"
    text.write_text(USED * 3)
    assert main(["convert", str(model), "--out", str(out), "--vocab-size", "280"]) == 2
    assert "--vocab-size and --vocab-text go together" in capsys.readouterr().err
    command = ["convert", str(model), "--out", str(out), "--vocab-text", str(text), "--vocab-size"]
    assert main([*command, "1000"]) == 2
    assert "choose from 259 to 300" in capsys.readouterr().err
    assert not out.exists()
    assert main([*command, "280"]) == 0
    assert "280 ids, mask [MASK] (279)" in capsys.readouterr().out
    found, before = read(out), read(model)
    assert found.vocab.size == 280
    kept = trimmed(tiny.tokenizer(), [USED * 3], 280)[1]
    assert torch.equal(found.weights["embedding.weight"][:280], before.weights["embedding.weight"][kept])
    assert main(["sample", "--model", str(out), "--steps", "2", "--length", "8"]) == 0
