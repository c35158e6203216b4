"""A small corpus with everything that goes wrong in big ones: accents, emoji, blank lines, literal special tokens."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from scdd.data.tokenizer import TextTokenizer

WORDS = [
    "the",
    "of",
    "river",
    "[MASK]",
    "naïve",
    "東京",
    "and",
    "<|endoftext|>",
    "3,141",
    "don't\n🙂",
    "in\n\na",
    "",
    "was\t",
]


def article(number: int) -> str:
    rng = random.Random(number)
    return f"Article {number}\n" + " ".join(rng.choice(WORDS) for _ in range(rng.randint(1, 120)))


@pytest.fixture(scope="session")
def tokenizer() -> TextTokenizer:
    return TextTokenizer.train((article(i) for i in range(200)), 400)


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpus")
    for part in range(3):
        lines = [json.dumps({"text": article(i)}) for i in range(part * 200, part * 200 + 200)]
        (folder / f"part-{part}.jsonl").write_text("\n".join(lines) + "\n\n")
    return folder
