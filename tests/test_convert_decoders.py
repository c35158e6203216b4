"""Pretrained causal language models: Hugging Face folders and GGUF files give the same logits and ids as elsewhere."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

import scdd
from scdd.assemble import training as build
from scdd.bundle.folder import read
from scdd.cli.main import main
from scdd.core.errors import UserError
from scdd.data.tokenizer import TextTokenizer
from scdd.recipe import load as recipe
from scdd.training.parallel import World
from tests import tiny
from tests.evals.gguf_file import TENSORS
from tests.test_bundle_convert import Payload

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
CHAT = "{% for m in messages %}<|im_start|>{{ m.content }}<|im_end|>{% endfor %}"
TEXT = "The river 12345 runs\n\n8 of 10 don't  jump, naïve café 日本."


def bpe(digits: bool = True) -> Tokenizer:
    """A small tokenizer of SmolLM2's kind."""
    tokenizer = Tokenizer(models.BPE())
    level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    split = pre_tokenizers.Digits(individual_digits=True)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, level]) if digits else level
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator([tiny.TEXT * 20 + "\n\n" * 50], trainer)
    return tokenizer


TOKENIZER = bpe()
ROWS = TOKENIZER.get_vocab_size() + 20  # an embedding with spare rows


def model_of(family: str, **more: Any) -> Any:
    """A small model of transformers' with random weights, all of them in use."""
    import transformers

    shape = {
        "vocab_size": ROWS, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "max_position_embeddings": 64, "tie_word_embeddings": family != "mistral", **more,
    }  # fmt: skip
    if family == "qwen3":
        shape["head_dim"] = 16
    name = {"llama": "Llama", "mistral": "Mistral", "qwen2": "Qwen2", "qwen3": "Qwen3"}[family]
    config = getattr(transformers, f"{name}Config")(**shape)
    torch.manual_seed(1)
    model = getattr(transformers, f"{name}ForCausalLM")(config).eval()
    with torch.no_grad():
        for tensor in model.parameters():
            tensor.copy_(torch.randn(tensor.shape) * 0.3 + (1.0 if tensor.dim() == 1 else 0.0))
    return model


def folder_of(path: Path, model: Any, **options: Any) -> Path:
    model.save_pretrained(path, **options)
    (path / "tokenizer.json").write_text(TOKENIZER.to_str())
    ends = {"bos_token": "<|im_start|>", "eos_token": {"content": "<|im_end|>"}, "chat_template": CHAT}
    (path / "tokenizer_config.json").write_text(json.dumps(ends))
    return path


def same(lm: Any, model: Any, tolerance: float = 1e-4) -> bool:
    """Logits of every token that the pretrained model's tokenizer has."""
    size = TOKENIZER.get_vocab_size()
    z = torch.randint(0, size, (2, 12), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        ours, theirs = lm.network.logits(z), model(z).logits
    return bool((ours[..., :size] - theirs[..., :size]).abs().max() <= tolerance)


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3"])
def test_a_hugging_face_folder(tmp_path: Path, family: str) -> None:
    model = model_of(family)
    source = folder_of(tmp_path / "hf", model)
    assert main(["convert", str(source), "--out", str(tmp_path / "m")]) == 0
    for place in (source, tmp_path / "m"):
        lm = scdd.load(place, device="cpu")
        assert same(lm, model)
        assert (lm.context, lm.tokenizer.size) == (64, TOKENIZER.get_vocab_size() + 1)
        assert (lm.tokenizer.mask, lm.tokenizer.bos, lm.tokenizer.eos) == ("[MASK]", "<|endoftext|>", "<|endoftext|>")
        assert lm.tokenizer.encode(TEXT) == TOKENIZER.encode(TEXT, add_special_tokens=False).ids
    assert lm.generate(1, prompt="The river", length=12)[0].text.startswith("The river")
    assert read(tmp_path / "m").extra == {"converted_from": "hf", "chat_template": CHAT}
    assert main(["sample", "--model", str(source), "--length", "8", "--device", "cpu"]) == 0


def test_shards_pickles_and_half_precision(tmp_path: Path) -> None:
    model = model_of("llama")
    sharded = folder_of(tmp_path / "sharded", model, max_shard_size="20KB")
    assert len(list(sharded.glob("*.safetensors"))) > 1
    assert same(scdd.load(sharded, device="cpu"), model)
    pickled = Path(shutil.copytree(sharded, tmp_path / "pickled"))
    for file in pickled.glob("model*safetensors*"):
        file.unlink()
    torch.save(model.state_dict(), pickled / "pytorch_model.bin")
    assert same(scdd.load(pickled, device="cpu"), model)
    marker = tmp_path / "owned"
    torch.save(Payload(os.system, f"touch {marker}"), pickled / "pytorch_model.bin")
    with pytest.raises(UserError, match="holds no weights"):
        read(pickled)
    assert not marker.exists()
    half = folder_of(tmp_path / "half", model.to(torch.bfloat16))
    found = read(half)
    assert {each.dtype for each in found.weights.values()} == {torch.float32}
    assert main(["convert", str(half), "--out", str(tmp_path / "m")]) == 0
    assert read(tmp_path / "m").kind == "bfloat16"  # which loses nothing
    again = read(tmp_path / "m").weights
    assert all(torch.equal(found.weights[name], again[name]) for name in again)


def test_what_does_not_fit_is_refused_in_a_sentence(tmp_path: Path) -> None:
    good = folder_of(tmp_path / "good", model_of("llama"), max_shard_size="20KB")
    index = json.loads((good / "model.safetensors.index.json").read_text())

    def refused(word: str, **files: str | None) -> None:
        bad = Path(shutil.copytree(good, tmp_path / "bad", dirs_exist_ok=True))
        for name, content in files.items():
            place = bad / name.replace("__", ".")
            place.unlink() if content is None else place.write_text(content)
        with pytest.raises(UserError, match=word) as error:
            read(bad)
        assert "\n" not in str(error.value)

    outside = dict.fromkeys(index["weight_map"], "../good/model.safetensors")
    refused("does not lie beside it", model__safetensors__index__json=json.dumps({"weight_map": outside}))
    refused("weight_map", model__safetensors__index__json="{}")
    refused("damaged", model__safetensors__index__json="{")
    refused(
        "promises",
        model__safetensors__index__json=json.dumps({"weight_map": {"x": index["weight_map"]["model.norm.weight"]}}),
    )
    shutil.rmtree(tmp_path / "bad")
    refused("no tokenizer.json", tokenizer__json=None)
    refused("not a tokenizer.json", tokenizer__json="{}")
    shutil.rmtree(tmp_path / "bad")
    config = json.loads((good / "config.json").read_text())
    refused("config says", config__json=json.dumps(config | {"hidden_size": 64, "head_dim": 16}))
    refused("num_hidden_layers", config__json=json.dumps(config | {"num_hidden_layers": 10**9}))
    for shard in good.glob("*.safetensors"):
        shard.write_bytes(b"\xff" * 64)
    refused("damaged", config__json=json.dumps(config))


def test_a_hub_id_fetches_what_is_needed_and_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    source, asked = folder_of(tmp_path / "hf", model_of("qwen2")), []

    def download(name: str, revision: str | None, allow_patterns: list[str], local_files_only: bool) -> str:
        asked.append(allow_patterns)
        return str(source)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    assert read("someone/qwen@main").hub
    assert "model.safetensors" not in asked[0]
    assert "model.safetensors" in asked[-1]
    assert not any("bin" in pattern for patterns in asked for pattern in patterns)
    asked.clear()
    (source / "config.json").write_text('{"model_type": "t5"}')
    (source / "model.safetensors").unlink()
    with pytest.raises(UserError, match="t5: what can be read"):
        read("someone/t5")
    assert len(asked) == 1  # its weights were not asked for


# -- GGUF -----------------------------------------------------------------------------------------------------------


def write_gguf(path: Path, model: Any, state: Mapping[str, torch.Tensor], pre: str = "smollm", **facts: Any) -> Path:
    """As llama.cpp's converter writes it; matrices of an MLP in 8 bits. `state` takes the rounded weights."""
    from gguf import GGMLQuantizationType, GGUFWriter, TokenType
    from gguf.quants import dequantize, quantize

    config, family = model.config, model.config.model_type
    writer = GGUFWriter(str(path), family)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    vocab = sorted(TOKENIZER.get_vocab(), key=TOKENIZER.token_to_id)
    unused = [f"[PAD{i}]" for i in range(len(vocab), ROWS)]
    writer.add_tokenizer_model(facts.get("tokenizer", "gpt2"))
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(vocab + unused)
    types = [TokenType.CONTROL if token in SPECIAL else TokenType.NORMAL for token in vocab]
    writer.add_token_types(types + [TokenType.UNUSED] * len(unused))
    writer.add_token_merges([" ".join(pair) for pair in json.loads(TOKENIZER.to_str())["model"]["merges"]])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_chat_template(CHAT)
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        array = tensor.float().numpy()
        part, _, kind = name.rpartition(".")
        if "proj" in name and "mlp" in name and tensor.shape[1] % 32 == 0:
            codes = quantize(array, GGMLQuantizationType.Q8_0)
            state[name].copy_(torch.from_numpy(np.array(dequantize(codes, GGMLQuantizationType.Q8_0))))
            writer.add_tensor(_renamed(part, kind), codes, raw_dtype=GGMLQuantizationType.Q8_0)
            continue
        if family == "llama" and part.endswith(("q_proj", "k_proj")):
            heads = config.num_attention_heads if part.endswith("q_proj") else config.num_key_value_heads
            array = array.reshape(heads, 2, -1, *array.shape[1:]).swapaxes(1, 2).reshape(array.shape)
        writer.add_tensor(_renamed(part, kind), np.ascontiguousarray(array))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _renamed(part: str, kind: str) -> str:
    if not part.startswith("model.layers."):
        return f"{TENSORS[part]}.{kind}"
    _, _, layer, rest = part.split(".", 3)
    return f"blk.{layer}.{TENSORS[rest]}.{kind}"


@pytest.mark.parametrize("family", ["llama", "qwen2"])
@pytest.mark.parametrize("tied", [True, False])
def test_a_gguf_file(tmp_path: Path, family: str, tied: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of(family, tie_word_embeddings=tied)
    with torch.no_grad():
        file = write_gguf(tmp_path / "small.gguf", model, model.state_dict())
    through = read(folder_of(tmp_path / "hf", model))  # the rounded weights, the other way
    assert main(["convert", str(file), "--out", str(tmp_path / "m"), "--weights", "float32"]) == 0
    found = read(tmp_path / "m")
    assert found.vocab_hash == through.vocab_hash  # the same tokenizer.json, special tokens, mask and all
    assert found.weights.keys() == through.weights.keys()
    assert all(torch.allclose(found.weights[n], through.weights[n], atol=1e-6) for n in found.weights)
    assert found.extra["chat_template"] == CHAT
    import huggingface_hub

    monkeypatch.setattr(
        huggingface_hub, "hf_hub_download", lambda *asked, revision, local_files_only: str(tmp_path / asked[1])
    )
    assert read("someone/model/small.gguf@v2").vocab == found.vocab
    lm = scdd.load(file, device="cpu")
    assert same(lm, model)
    assert lm.tokenizer.encode(TEXT) == TOKENIZER.encode(TEXT, add_special_tokens=False).ids
    assert TextTokenizer.load(file).hash == lm.tokenizer.hash


def test_gguf_files_that_cannot_be_read(tmp_path: Path) -> None:
    model = model_of("llama")
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    for word, options in (("way deepseek", {"pre": "deepseek"}), ("kind llama", {"tokenizer": "llama"})):
        with torch.no_grad(), pytest.raises(UserError, match=f"{word}.*Hugging Face folder"):
            read(write_gguf(tmp_path / "x.gguf", model, state, **options))
    whole = (tmp_path / "x.gguf").read_bytes()
    (tmp_path / "x.gguf").write_bytes(whole[: len(whole) // 3])
    with pytest.raises(UserError, match="cannot be read as a GGUF file"):
        read(tmp_path / "x.gguf")


@pytest.mark.parametrize("seed", range(30))
def test_damage_anywhere_is_a_sentence(small_files: tuple[Path, Path], tmp_path: Path, seed: int) -> None:
    """Bytes changed at random in a header: the file is read or refused, and never breaks anything."""
    random, (file, folder) = Random(seed), small_files
    content = bytearray(file.read_bytes())
    for _ in range(random.randint(1, 6)):
        content[random.choice([random.randrange(600), random.randrange(len(content))])] = random.randrange(256)
    (tmp_path / "x.gguf").write_bytes(content)
    with suppress(UserError):
        read(tmp_path / "x.gguf")
    shutil.copytree(folder, tmp_path / "hf")
    for name in ("config.json", "tokenizer_config.json", "model.safetensors"):
        content = bytearray((folder / name).read_bytes())
        content[random.randrange(min(len(content), 3000))] = random.randrange(256)
        (tmp_path / "hf" / name).write_bytes(content)
        with suppress(UserError):
            read(tmp_path / "hf")
        shutil.copy(folder / name, tmp_path / "hf" / name)


@pytest.fixture(scope="module")
def small_files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    path, model = tmp_path_factory.mktemp("small"), model_of("llama")
    with torch.no_grad():
        return write_gguf(path / "x.gguf", model, model.state_dict()), folder_of(path / "hf", model)


# -- further training -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["folder", "gguf"])
def test_a_foreign_model_trains_on_as_a_diffusion_model(
    small_files: tuple[Path, Path], tmp_path: Path, kind: str
) -> None:
    source = small_files[0 if kind == "gguf" else 1]
    (tmp_path / "text.txt").write_text(tiny.TEXT * 30)
    spec = recipe.from_dict(
        {
            "name": "further",
            "data": {"kind": "text", "path": str(tmp_path / "text.txt"), "length": 16, "separator": "line"},
            "model": {"kind": "pretrained"},
            "process": {"kind": "scdd"},
            "training": {"steps": 1, "batch_size": 2, "validate_batches": 1, "start_from": str(source)},
        }
    )  # fmt: skip
    corpus = build.corpus(spec)
    assert corpus.tokenizer.to_str() == read(source).tokenizer, "its own, though the recipe names none"
    named = recipe.from_dict(recipe.to_dict(spec), overrides=[f"data.tokenizer={source}"])
    assert build.corpus(named).tokenizer.hash == corpus.tokenizer.hash
    trainer = build.trainer(spec, tmp_path / "run", World(), corpus)
    trainer.run()
    found = read(tmp_path / "run")
    assert found.network is not None
    assert found.network["causal"] is False
    before = load_file(small_files[1] / "model.safetensors")["model.norm.weight"]
    assert torch.allclose(found.weights["norm.weight"], before, atol=0.01)


@pytest.mark.parametrize("kind", ["folder", "gguf"])
def test_chats_are_written_with_a_foreign_models_own_template(
    small_files: tuple[Path, Path], tmp_path: Path, kind: str
) -> None:
    source = small_files[0 if kind == "gguf" else 1]
    chat = {"messages": [{"role": "user", "content": "river"}, {"role": "assistant", "content": "the sea"}]}
    (tmp_path / "chats.jsonl").write_text(f"{json.dumps(chat)}\n" * 4)
    spec = recipe.from_dict(
        {
            "name": "chats",
            "data": {"kind": "pairs", "path": str(tmp_path / "chats.jsonl"), "length": 32},
            "model": {"kind": "pretrained"},
            "process": {"kind": "scdd"},
            "training": {"steps": 1, "batch_size": 2, "start_from": str(source)},
        }
    )
    corpus = build.corpus(spec)
    assert corpus.chat_template == CHAT
    assert corpus.tokenizer.to_str() == read(source).tokenizer
    (row,) = corpus.blocks(corpus.train).take(np.array([0]))[0]
    text = corpus.tokenizer.decode(row.tolist(), skip_special=False)
    assert "<|im_start|>river<|im_end|><|im_start|>the sea<|im_end|><|endoftext|>" in text
