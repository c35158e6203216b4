"""Models from elsewhere: folders of transformers, GGUF files, configurations, chat templates."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from scdd.bundle.card import parted
from scdd.bundle.folder import read
from scdd.bundle.said import said
from scdd.data.chat import ChatTemplate
from scdd.models.llama import Llama
from scdd.models.options import LlamaConfig
from tests.attack.bounds import attacked, bounded, changed, mutated, refused
from tests.layouts import to_hf
from tests.tiny import tokenizer

BOMB = "a0: &a0 [x]\n" + "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 10))
TEMPLATE = (
    b"{% set ns = namespace(n=0) %}{% for m in messages %}{% if m.role == 'system' %}{{ m.content | trim ~ eos_token }}"
    b"{% elif loop.last and loop.index < 9 %}{% set ns.n = ns.n + 1 %}{{ m['role'] + ': ' + m.content | upper }}{% endif %}"
    b"{% endfor %}{% macro end(x) %}{{ x * 2 }}{% endmacro %}{{ end('ab') }}{% if add_generation_prompt %}{{ messages[-1:]"
    b" | map(attribute='content') | join(', ') | tojson }}{% endif %}"
)
PIECES = (
    *(b"{% for i in range(99999) %}", b"{% endfor %}", b"{{", b"}}", b" * 10**9", b" ~ m", b"| replace('a', 'aaaa')"),
    *(
        b"messages",
        b".__class__",
        b"namespace()",
        b"range(9**9)",
        b"| list",
        b"| sort",
        b"end(end)",
        b"'%s' % 9",
        b"\xee\x80\x80",
    ),
)
SHAPE = LlamaConfig(depth=1, width=16, heads=2, kv_heads=2, head_width=8, mlp_width=16, causal=True, tied=False)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return transformers_folder(tmp_path / "theirs")


def transformers_folder(out: Path) -> Path:
    out.mkdir()
    config, state = to_hf(Llama(SHAPE, tokenizer().vocab, torch.Generator().manual_seed(0)))
    (out / "config.json").write_text(json.dumps(config))
    save_file(state, out / "model.safetensors")
    tokenizer().save(out)
    return out


def gguf_file(folder: Path) -> Path:
    from tests.evals.gguf_file import write_gguf

    config = SimpleNamespace(**json.loads((folder / "config.json").read_text()))
    model = SimpleNamespace(config=config, state_dict=lambda: load_file(folder / "model.safetensors"))
    return write_gguf(folder.parent / "theirs.gguf", model, tokenizer())


@pytest.mark.parametrize("text", [BOMB, "a: &a [*a]", "a: !!int ''", "[" * 1000, "a: " + "x" * 300_000, "\0"])
def test_hostile_yaml_beside_a_checkpoint_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.yaml").write_text(text)
    refused(lambda: said(None, tmp_path, gidd=False), "config.yaml is damaged")
    with bounded():
        assert parted(f"---\n{text}\n---\nwords")[0] == {}


def test_numbers_that_are_none_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model": {"length": Infinity}, "n_heads": 1e400, "noise": {"type": []}}')
    with bounded():
        words = said(None, tmp_path, gidd=False)
    assert (words.length, words.heads) == (None, None)


def test_weights_of_others_must_be_finite(folder: Path) -> None:
    _, state = to_hf(Llama(SHAPE, tokenizer().vocab, torch.Generator().manual_seed(0)))
    state["model.norm.weight"][3] = torch.nan
    save_file(state, folder / "model.safetensors")
    refused(lambda: read(folder), "not finite (norm.weight)")


def folder_inputs(place: Path, dice: random.Random) -> Iterator[Callable[[], Any]]:
    whole, own = transformers_folder(place / "theirs"), place / "a"
    config = json.loads((whole / "config.json").read_text())
    weights = (whole / "model.safetensors").read_bytes()
    for turn in count():
        shutil.rmtree(own, ignore_errors=True)
        shutil.copytree(whole, own)
        if turn % 3:
            (own / "config.json").write_text(json.dumps(changed(config, dice)))
        else:
            (own / "model.safetensors").write_bytes(mutated(weights[:900], dice) + weights[900:])
        yield lambda: read(own)


def gguf_inputs(place: Path, dice: random.Random) -> Iterator[Callable[[], Any]]:
    whole, own = gguf_file(transformers_folder(place / "theirs")).read_bytes(), place / "a.gguf"
    for turn in count():
        head = 700 if turn % 2 else 20_000
        own.write_bytes(mutated(whole[:head], dice) + whole[head:])
        yield lambda: read(own)


def template_inputs(place: Path, dice: random.Random) -> Iterator[Callable[[], Any]]:
    chat = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}]
    while True:
        text = mutated(TEMPLATE, dice, PIECES).decode("utf-8", "replace")
        yield lambda text=text: ChatTemplate(text, tokenizer()).render(chat, answer=True)  # type: ignore[misc]


def test_any_mutation_of_a_folder_of_transformers_is_read_or_refused(tmp_path: Path) -> None:
    attacked(folder_inputs, tmp_path, 90)


def test_any_mutation_of_a_gguf_file_is_read_or_refused(tmp_path: Path) -> None:
    pytest.importorskip("gguf")
    attacked(gguf_inputs, tmp_path, 150)


def test_any_mutation_of_a_chat_template_is_rendered_or_refused(tmp_path: Path) -> None:
    attacked(template_inputs, tmp_path, 150)


@pytest.mark.parametrize(
    "text",
    [
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{{ 'a' * 10**10 }}",
        "{{ [0] * 10**10 }}",
        "{{ '%0999999999d' % 1 }}",
        "{{ 'a'.ljust(10**10) }}",
        "{{ 'a'|center(10**10) }}",
        "{% set ns = namespace(x='a') %}{% for i in range(50) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
        "{% set ns = namespace(x='a') %}{% for i in range(50) %}{% set ns.x %}{{ ns.x }}{{ ns.x }}{% endset %}{% endfor %}",
        "{% macro f(n) %}{{ f(n) }}{% endmacro %}{{ f(1) }}",
    ],
)
def test_a_template_that_runs_or_grows_on_is_refused(text: str) -> None:
    refused(lambda: ChatTemplate(text, tokenizer()).render([{"role": "user", "content": "hi"}]), "chat_template")


def test_a_template_may_still_compute() -> None:
    text = "{{ 7 % 4 * 2 + 1 }}{{ 'a' + 'b' ~ 1 }}{% for m in messages %}{{ m.content | trim }}{% endfor %}"
    assert ChatTemplate(text, tokenizer()).render([{"role": "user", "content": " hi "}]) == "7ab1hi"
