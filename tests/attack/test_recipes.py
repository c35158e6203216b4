"""Recipes come from strangers, beside their models: whatever they hold, they are read or refused, soon and in little memory."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from scdd.recipe.load import DEEPEST, LARGEST, load, loads, model_recipe, parse
from tests.attack.bounds import attacked, mutated, refused
from tests.tiny import RECIPE

ALIASES = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 10)
)
TWICE = "a0: &a0 [" + "x, " * 300 + "]\n" + "".join(f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]\n" for i in range(1, 8))
MERGES = "a0: &a0 {k: 1}\n" + "".join(
    f"a{i}: &a{i}\n  ? !!merge <<\n  : [*a{i - 1}, *a{i - 1}]\n" for i in range(1, 30)
)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (ALIASES, "more than 16 aliases"),
        (TWICE, "more than 10,000 keys and values"),
        (MERGES, "the tag merge is not read"),
        ("a: &a [*a]", "*a is a part of itself"),
        ("a: &a {b: *a}", "*a is a part of itself"),
        ("? [a, b]\n: x", "a key is a list or a section"),
        ("? {a: b}\n: x", "a key is a list or a section"),
        ("? !!timestamp 2001-01-01\n: x", "the tag timestamp is not read"),
        ("seed: !!int ''", "the tag int is not read"),
        ("a: !!binary x", "the tag binary is not read"),
        ("a: !!python/object/apply:os.system [ls]", "is not read"),
        (f"seed: {'9' * 5000}", "a number has 5000 digits"),
        ("a: " + "[" * 100_000, f"more than {DEEPEST} levels deep"),
        ("".join(" " * i + "a:\n" for i in range(600)), f"more than {DEEPEST} levels deep"),
        ("".join(f"k{i}: 1\n" for i in range(60_000)), "longer than 256 KiB"),
        ("".join(f"k{i}: 1\n" for i in range(6_000)), "more than 10,000 keys and values"),
        ('name: "\\ud800"', "half of a character"),
        ("a: \0", "special characters"),
    ],
)
def test_a_hostile_recipe_is_refused_in_a_sentence(text: str, words: str) -> None:
    for read in (loads, model_recipe):
        assert "\n" not in refused(lambda read=read: read(text, "theirs.yaml"), words)  # type: ignore[misc]


def test_thousands_of_unknown_keys_are_not_all_told() -> None:
    said = refused(lambda: loads(RECIPE + "".join(f"k{i}: 1\n" for i in range(2000))), "1,980 more mistakes")
    assert len(said.splitlines()) == 21


def test_a_file_is_not_read_beyond_the_limit(tmp_path: Path) -> None:
    file = tmp_path / "endless.yaml"
    with open(file, "wb") as handle:
        handle.truncate(1 << 40)  # of zeros, which take no room
    refused(lambda: load(file), "longer than")


def test_a_few_aliases_are_read_as_ever() -> None:
    assert parse("a: &a {x: [1, 2]}\nb: *a\nc: *a\n") == {name: {"x": [1, 2]} for name in "abc"}
    assert len(parse("a: " + "x" * (LARGEST - 3))["a"]) == LARGEST - 3


def inputs(place: Path, dice: random.Random) -> Iterator[Callable[[], Any]]:
    tokens = (b"&a ", b"*a", b"!!int ", b"<<: ", b"? ", b": ", b"- ", b"[", b"{", b"'", b'"', b".nan", b".inf", b"|\n")
    while True:
        text = mutated(RECIPE.encode(), dice, tokens).decode("utf-8", "surrogateescape")
        yield lambda text=text: loads(text)  # type: ignore[misc]


def test_any_mutation_of_a_recipe_is_read_or_refused(tmp_path: Path) -> None:
    attacked(inputs, tmp_path, 300)
