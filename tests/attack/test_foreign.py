"""Models from elsewhere: folders of transformers, GGUF files, configurations, chat templates."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import save_file

from scdd.bundle.card import parted
from scdd.bundle.folder import read
from scdd.bundle.said import said
from scdd.data.chat import ChatTemplate
from scdd.models.llama import Llama
from scdd.models.options import LlamaConfig
from scdd.models.weights.hf import to_hf
from tests.attack.bounds import bounded, changed, mutated, refused, survived
from tests.tiny import tokenizer

BOMB = "a0: &a0 [x]\n" + "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 10))
SHAPE = LlamaConfig(depth=1, width=16, heads=2, kv_heads=2, head_width=8, mlp_width=16, causal=True, tied=False)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    out = tmp_path / "theirs"
    out.mkdir()
    config, state = to_hf(Llama(SHAPE, tokenizer().vocab, torch.Generator().manual_seed(0)))
    (out / "config.json").write_text(json.dumps(config))
    save_file(state, out / "model.safetensors")
    tokenizer().save(out)
    return out


@pytest.fixture
def gguf(folder: Path) -> Path:
    pytest.importorskip("gguf")
    from safetensors.torch import load_file

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


def test_any_mutation_of_a_folder_of_transformers_is_read_or_refused(folder: Path, tmp_path: Path) -> None:
    dice = random.Random(18)
    config = json.loads((folder / "config.json").read_text())
    found = []
    with bounded():
        for turn in range(90):
            shutil.rmtree(tmp_path / "a", ignore_errors=True)
            shutil.copytree(folder, tmp_path / "a")
            if turn % 3:
                (tmp_path / "a/config.json").write_text(json.dumps(changed(config, dice)))
            else:
                whole = (tmp_path / "a/model.safetensors").read_bytes()
                (tmp_path / "a/model.safetensors").write_bytes(mutated(whole[:900], dice) + whole[900:])
            found.append(survived(lambda: read(tmp_path / "a")))
    assert any(found)
    assert not all(found)


def test_any_mutation_of_a_gguf_file_is_read_or_refused(gguf: Path, tmp_path: Path) -> None:
    dice = random.Random(18)
    whole = gguf.read_bytes()
    found = []
    with bounded():
        for turn in range(150):
            head = 700 if turn % 2 else 20_000
            (tmp_path / "a.gguf").write_bytes(mutated(whole[:head], dice) + whole[head:])
            found.append(survived(lambda: read(tmp_path / "a.gguf")))
    assert any(found)
    assert not all(found)


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
