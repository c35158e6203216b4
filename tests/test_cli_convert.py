"""`scdd convert` on the authors' checkpoints: the same logits, their own process, and nothing pickled is run."""

from __future__ import annotations

import json
import os
import sys
import zipfile
import zlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

import scdd
from scdd.bundle.folder import ASSETS, Identity, read, write
from scdd.cli.main import import_verb, main
from scdd.core.errors import UserError
from scdd.core.types import padded
from scdd.data.tokenizer import TextTokenizer
from scdd.evals.measure.model import open_model
from scdd.evals.measure.store import read_measurements
from scdd.models.llama import Llama
from scdd.models.options import LlamaConfig
from scdd.processes.gidd import GIDD
from scdd.processes.mdlm import MDLM
from scdd.processes.scdd import SCDD
from scdd.recipe.load import load
from tests import tiny
from tests.evals.conftest import AR
from tests.reference_network import State, logits, random_state
from tests.test_bundle_convert import Payload, node, prefixed

HEADS = 2
# as the configuration of the authors' SCDD says it
AUTHORS = {
    "diffusion": "absorbing_state",
    "parameterization": "scdd",
    "forward": {"name": "mix", "ratio": 0.1, "gamma": 1, "t_peak": 0.5},
    "noise": {"type": "loglinear"},
    "model": {"length": 24},
}
T = torch.tensor([0.05, 0.97], dtype=torch.float64)
Convert = Callable[..., tuple[int, str, str]]


@pytest.fixture
def convert(capsys: pytest.CaptureFixture[str]) -> Convert:
    def call(*args: str | Path) -> tuple[int, str, str]:
        code = main(["convert", *map(str, args)])
        return code, *capsys.readouterr()

    return call


@pytest.fixture(scope="module")
def foreign_tokenizer() -> str:
    """A byte-level BPE as transformers saves GPT-2's with a mask and padding added."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=270, special_tokens=["<|endoftext|>"], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator([tiny.TEXT * 20], trainer)
    tokenizer.add_special_tokens(["[PAD]", "[MASK]"])
    return str(tokenizer.to_str())


def weights(rows: int, seed: int = 0) -> State:
    return random_state(rows=rows, width=16, depth=2, cond=8, heads=HEADS, seed=seed)


def tokens(size: int) -> torch.Tensor:
    return torch.randint(0, size, (2, 9), generator=torch.Generator().manual_seed(0))


def close(lm: Any, z: torch.Tensor, expected: torch.Tensor) -> bool:
    """The same logits of every token but the mask, which is −inf in ours."""
    ours, size = lm.network.logits(z, T), lm.tokenizer.size
    keep = torch.arange(size) != lm.tokenizer.mask_id
    return bool((ours[..., keep] - expected[..., :size][..., keep]).abs().max() <= 1e-4)


def lightning(file: Path, state: State, config: dict[str, Any] | None, **more: Any) -> Path:
    """A checkpoint of the reference code, its configuration an omegaconf tree of classes that nobody has here."""
    shadow = [value for name, value in state.items() if "rotary" not in name]
    content = {
        "global_step": 77,
        "state_dict": prefixed({name: torch.zeros_like(value) for name, value in state.items() if "rotary" not in name})
        | {f"backbone.{name}": value for name, value in state.items() if "rotary" in name},
        "ema": {"decay": 0.9999, "shadow_params": shadow},
        **({} if config is None else {"hyper_parameters": {"config": node(config)}}),
        **more,
    }
    torch.save(content, file)
    sys.modules.pop("vanishing", None)
    return file


@pytest.mark.parametrize(
    ("config", "kind", "p_u"),
    [
        ({"diffusion": "absorbing_state", "noise": {"type": "loglinear"}, "model": {"length": 24}}, MDLM, None),
        ({"diffusion": "scdd", "noise": {"p_uniform": 0.1}, "model": {"length": 24}}, SCDD, 0.1),
        ({"diffusion": "absorbing_state", "p_u": 0.05, "model": {"length": 24}}, SCDD, 0.05),
        (AUTHORS, SCDD, 0.1),
    ],
)
def test_a_lightning_checkpoint_of_scdd_or_mdlm(
    convert: Convert, tmp_path: Path, config: dict[str, Any], kind: type, p_u: float | None
) -> None:
    own = tiny.tokenizer()
    state = weights(own.size)
    file = lightning(tmp_path / "last.ckpt", state, config)
    own.save(tmp_path / "vocabulary.json")
    code, out, err = convert(file, "--out", tmp_path / "m", "--tokenizer", tmp_path / "vocabulary.json")
    assert (code, err) == (0, "")
    assert "step 77" in out
    lm = scdd.load(tmp_path / "m", device="cpu")
    assert isinstance(lm.process, kind)
    assert p_u is None or lm.process.schedule.p_u == p_u  # type: ignore[attr-defined]
    assert lm.context == 24
    z = tokens(own.size)
    assert close(lm, z, logits(state, z, torch.zeros(2), HEADS))
    [drawn] = lm.generate(1, steps=2)
    assert (drawn.nfe, drawn.text) == (2, own.decode(drawn.tokens))
    assert own.mask_id not in drawn.tokens


def test_every_measurement_takes_a_converted_checkpoint(
    convert: Convert, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Random weights with p_u 0.1 in their configuration: they sample at 0.1, and every verb of `scdd eval` runs on them."""
    own = tiny.tokenizer()
    own.save(tmp_path / "vocabulary.json")
    file = lightning(tmp_path / "last.ckpt", weights(own.size), AUTHORS)
    model = str(tmp_path / "m")
    assert convert(file, "--out", model, "--tokenizer", tmp_path / "vocabulary.json")[0] == 0
    lm = scdd.load(model, device="cpu")
    assert repr(lm.process).endswith("Peaked(p_u=0.1, exponent=1, t_peak=0.5))")
    assert lm.generate(1, steps=2, convention="authors")[0].nfe == 3
    text, judge = tmp_path / "text.txt", str(tiny.checkpoint(tmp_path / "ar", *AR, causal=True))
    text.write_text(tiny.TEXT * 8, encoding="utf-8")
    question = {"query": "Where does the river run?", "choices": ["to the sea", "to the fox"], "gold": 0}
    (tmp_path / "piqa.jsonl").write_text(json.dumps(question) + "\n")
    few = ("--device", "cpu", "--out", str(tmp_path / "out"), "--quiet")
    commands = {
        "likelihood": ("--model", model, "--text", str(text), "--looks", "2", "--convention", "authors"),
        "generation": ("--model", model, "--judge", judge, "--steps", "3", "--num", "2", "--convention", "authors"),
        "correction": ("--model", model, "--steps", "2", "--num", "2"),
        "recovery": ("--model", model, "--text", str(text), "--k", "2", "--num", "2", "--last", "1", "--convention", "authors"),
        "repair": ("--model", model, "--text", str(text), "--num", "2"),
        "zero-shot": ("--model", model, "--tasks", "piqa", "--benchmarks", str(tmp_path), "--looks", "2"),
        "judge": (f"a={model}", f"b={model},top_p=0.5", "--llm", "none", "--base-url", "http://127.0.0.1:9", "--text", str(text),
                  "--num", "2", "--steps", "2", "--estimate"),
        "compare": (f"a={model}", f"b={model},convention=authors", "--judge", judge, "--steps", "2", "--num", "2"),
    }  # fmt: skip
    assert set(commands) == set(import_verb("eval").commands), "a verb is not tried"  # type: ignore[attr-defined]
    for verb, arguments in commands.items():
        assert main(["eval", verb, *arguments, *few]) == 0, (verb, capsys.readouterr().err)
    cells = read_measurements(tmp_path / "out")
    assert {cell.kind for cell in cells} >= {"likelihood", "generation", "correction", "recovery", "typos", "zero-shot"}
    assert {cell.settings["model"]["process"] for cell in cells if "model" in cell.settings} == {repr(lm.process)}
    drawn = [cell for cell in cells if cell.kind == "generation" and cell.settings.get("convention") == "authors"]
    assert drawn
    assert all(cell.result["nfe"]["value"] == cell.settings["nfe"] for cell in drawn), "the last pass is counted"
    walked = [cell for cell in cells if cell.kind == "samples" and cell.settings.get("convention") == "authors"]
    assert all(cell.result["correction"]["steps"] == cell.settings["nfe"] - 1 for cell in walked), "it corrects nothing"


def test_gidds_folder(
    convert: Convert, tmp_path: Path, foreign_tokenizer: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "gidd"
    folder.mkdir()
    size = max(Tokenizer.from_str(foreign_tokenizer).get_vocab(with_added_tokens=True).values()) + 1
    state = weights(padded(size), seed=3)
    del state["rotary_emb.inv_freq"]
    state |= {f"rotary_emb.{name}": torch.zeros(1, 20, 3, 1, 8) for name in ("cos_cached", "sin_cached")}
    save_file(state | {"logit_bias": torch.full((1, 1, 1), 0.7)}, folder / "model.safetensors")
    (folder / "tokenizer.json").write_text(foreign_tokenizer)
    (folder / "config.json").write_text(json.dumps({"model_type": "dit", "p_uniform": 0.1, "max_seq_len": 20}))

    code, out, err = convert(folder, "--out", tmp_path / "m")
    assert (code, err) == (0, "")
    assert "gidd, p_u 0.1" in out
    z = tokens(size)
    expected = logits(state, z, T, HEADS).scatter_add(-1, z[..., None], torch.full((2, 9, 1), 0.7))
    for source in (tmp_path / "m", folder):  # every verb takes the foreign folder, too
        lm = scdd.load(source, device="cpu")
        assert isinstance(lm.process, GIDD)
        assert lm.process.schedule.p_u == 0.1  # type: ignore[attr-defined]
        assert (lm.context, lm.tokenizer.mask, lm.tokenizer.bos) == (20, "[MASK]", "<|endoftext|>")
        assert close(lm, z, expected)

    (tmp_path / "text.txt").write_text(tiny.TEXT * 4)
    (folder / "config.json").write_text("{}")
    assert "do not say" in convert(folder, "--out", tmp_path / "unsaid")[1]
    for model in (tmp_path / "m", folder, f"{tmp_path / 'unsaid'},process=gidd:0.1"):
        arguments = ["--model", model, "--text", tmp_path / "text.txt", "--out", tmp_path / "r", "--looks", 2]
        assert main(["eval", "likelihood", *map(str, arguments), "--device", "cpu"]) == (2 if model == folder else 0)
    assert main(["report", str(tmp_path / "r"), "--out", str(tmp_path / "r.html")]) == 0, capsys.readouterr().err


def test_mdlms_hub_folder(convert: Convert, tmp_path: Path) -> None:
    folder, own = tmp_path / "mdlm", tiny.tokenizer()
    folder.mkdir()
    state = weights(own.size)
    save_file(prefixed({k: v for k, v in state.items() if "rotary" not in k}), folder / "model.safetensors")
    config = {"model_type": "mdlm", "model_length": 24, "n_heads": HEADS, "time_conditioning": True}
    (folder / "config.json").write_text(json.dumps(config))
    own.save(folder)
    code, _, err = convert(folder, "--out", tmp_path / "m")
    assert (code, err) == (0, "")
    lm = scdd.load(tmp_path / "m", device="cpu")
    assert isinstance(lm.process, MDLM)
    assert lm.context == 24
    z = tokens(own.size)
    assert close(lm, z, logits(state, z, -torch.log(1 - (1 - 1e-3) * T), HEADS))


def test_what_the_files_do_not_say_is_asked_for(convert: Convert, tmp_path: Path) -> None:
    own = tiny.tokenizer()
    file = lightning(tmp_path / "last.ckpt", weights(own.size), None)
    own.save(tmp_path)  # beside it
    code, out, err = convert(file, "--out", tmp_path / "m")
    assert (code, err) == (0, "")
    assert "do not say: convert again with --process" in out
    assert "512 tokens" in out
    for wrong, word in (("scdd", "p_u"), ("scdd:3", "p_u"), ("mdlm:0.1", "p_u"), ("cat", "choose one")):
        code, out, err = convert(file, "--out", tmp_path / "n", "--process", wrong)
        assert (code, out) == (2, "")
        assert err.startswith(f"error: --process {wrong}")
        assert word in err
        assert not (tmp_path / "n").exists()
    assert convert(file, "--out", tmp_path / "n", "--process", "scdd:0.3")[0] == 0
    process = scdd.load(tmp_path / "n", device="cpu").process
    assert isinstance(process, SCDD)
    assert process.schedule.p_u == 0.3  # type: ignore[attr-defined]


def test_raw_weights_and_kinds_of_storage(convert: Convert, tmp_path: Path) -> None:
    file = lightning(tmp_path / "last.ckpt", weights(60), {"p_u": 0.2})
    assert convert(file, "--out", tmp_path / "raw", "--no-ema", "--weights", "bfloat16")[0] == 0
    raw = read(tmp_path / "raw")
    assert raw.kind == "bfloat16"
    assert float(raw.weights["embedding.weight"].abs().max()) == 0
    code, _, err = convert(file, "--out", tmp_path / "raw")
    assert code == 2
    assert "--force" in err
    assert convert(file, "--out", tmp_path / "raw", "--force")[0] == 0
    assert float(read(tmp_path / "raw").weights["embedding.weight"].abs().max()) > 0
    assert convert(file, "--out", tmp_path / "x", "--weights", "int2")[0] == 2
    assert "none: convert again with --tokenizer" in convert(file, "--out", tmp_path / "y")[1]


def test_pickled_code_is_refused_or_passed_over(convert: Convert, tmp_path: Path) -> None:
    marker = tmp_path / "owned"
    attack = Payload(os.system, f"touch {marker}")
    torch.save(attack, tmp_path / "evil.ckpt")
    code, out, err = convert(tmp_path / "evil.ckpt", "--out", tmp_path / "m")
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert "holds no weights" in err
    file = lightning(tmp_path / "last.ckpt", weights(60), {"p_u": 0.2}, callbacks=attack)
    assert convert(file, "--out", tmp_path / "m")[0] == 0
    assert not marker.exists()


def test_what_cannot_be_read_is_told_what_can(convert: Convert, tmp_path: Path) -> None:
    folder = tmp_path / "bert"
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "bert"}')
    for prepare in (lambda: None, lambda: save_file({"a": torch.ones(2)}, folder / "model.safetensors")):
        prepare()
        code, out, err = convert(folder, "--out", tmp_path / "m")
        assert (code, out) == (2, "")
        assert "bert" in err
        assert "llama, mistral, qwen2, qwen3" in err
    (tmp_path / "notes.txt").write_text("hello")
    assert "what can be read" in convert(tmp_path / "notes.txt", "--out", tmp_path / "m")[2]
    (folder / "config.json").write_text('{"model_type": ' + " " * (17 << 20))
    assert "larger than 16 MiB" in convert(folder, "--out", tmp_path / "m")[2]
    assert "holds no model: what can be read is our own folders" in convert(tmp_path, "--out", tmp_path / "m")[2]
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "recipe.yaml").write_text("name: nano\n")
    assert "is a run without a checkpoint" in convert(tmp_path, "--out", tmp_path / "m")[2]


def test_a_folder_of_ours_passes_through(convert: Convert, tmp_path: Path) -> None:
    ours = tiny.checkpoint(tmp_path / "ours")
    assert convert(ours, "--out", tmp_path / "m")[0] == 0
    before, after = read(ours), read(tmp_path / "m")
    assert (before.recipe, before.vocab_hash) == (after.recipe, after.vocab_hash)
    assert all(torch.equal(before.weights[name], after.weights[name]) for name in before.weights)
    code, _, err = convert(ours, "--out", tmp_path / "n", "--process", "mdlm")
    assert code == 2
    assert "says itself" in err


def test_a_trained_model_may_read_longer_rows(convert: Convert, tmp_path: Path) -> None:
    tokenizer = tiny.tokenizer()
    shape = LlamaConfig(depth=2, width=32, heads=4, kv_heads=2, head_width=8, mlp_width=48)
    network = Llama(shape, tokenizer.vocab, torch.Generator().manual_seed(1))
    facts = {"vocab": tokenizer.vocab, "tokenizer": tokenizer.to_str(), "network": network.description()}
    ours = write(tmp_path / "ours", Identity(recipe=tiny.RECIPE, **facts), network.state_dict())
    length = scdd.load(ours, device="cpu").context
    code, out, _ = convert(ours, "--out", tmp_path / "m", "--attention-window", length - 1, "--context", 4 * length)
    assert code == 0
    assert (
        f"rows: {4 * length} tokens, trained on {length}; a token sees {length - 1} to either side and the first" in out
    )
    assert "note:" not in out
    code, out, _ = convert("bundled", "--out", tmp_path / "far", "--attention-window", 0)
    assert "note: it now sees further than in training" in out
    assert (code, load(tmp_path / "far").model) == (0, replace(load(ASSETS / "model").model, attention_window=0))
    before, after = scdd.load(ours, device="cpu"), scdd.load(tmp_path / "m", device="cpu")
    assert after.context == 4 * length
    z = torch.randint(0, tokenizer.size - 1, (2, 2 * length), generator=torch.Generator().manual_seed(2))
    assert torch.equal(before.network.hidden(z[:, :length]), after.network.hidden(z[:, :length]))
    assert not torch.equal(before.network.hidden(z), after.network.hidden(z))
    text = tiny.TEXT * (1 + 2 * length // len(tokenizer.encode(tiny.TEXT)))
    with pytest.raises(UserError, match="the model's context holds"):
        before.score(text)
    assert len(after.score(text).tokens) == len(tokenizer.encode(text))
    for flags, said in (
        (["--attention-window", -1], "choose 0 or more"),
        (["--context", 2], "--context is 2: choose one in [4"),
    ):
        code, _, err = convert(ours, "--out", tmp_path / "n", *flags)
        assert (code, said in err) == (2, True), err
    assert convert(tmp_path / "m", "--out", tmp_path / "back", "--attention-window", 0)[0] == 0
    back = scdd.load(tmp_path / "back", device="cpu")
    assert (back.network.attention_window, back.context) == (None, 4 * length)
    assert torch.equal(back.network.hidden(z), before.network.hidden(z))
    marks = [open_model(folder).identity for folder in (tmp_path / "m", tmp_path / "back")]
    assert [mark.pop("attention_window", None) for mark in marks] == [length - 1, None]
    assert marks[0] == marks[1]
    dit = tiny.checkpoint(tmp_path / "dit")
    code, _, err = convert(dit, "--out", tmp_path / "n", "--context", 64)
    assert code == 2
    assert "context is for networks of kind llama" in err
    assert not (tmp_path / "n").exists()


def test_a_mask_is_a_known_one_then_a_free_one_then_an_added_one() -> None:
    def made(*special: str, **ends: str) -> TextTokenizer:
        tokenizer = Tokenizer(models.WordLevel({"a": 0, "b": 1, "[UNK]": 2}, unk_token="[UNK]"))
        tokenizer.add_special_tokens(list(special))
        return TextTokenizer.completed(tokenizer.to_str(), **ends)

    reserved = made(
        "<|begin_of_text|>", "<|end_of_text|>", "<|reserved_special_token_1|>", "<|reserved_special_token_0|>"
    )
    assert (reserved.mask, reserved.added) == ("<|reserved_special_token_1|>", 0)  # the lowest id
    assert (reserved.bos, reserved.eos) == ("<|begin_of_text|>", "<|end_of_text|>")
    assert made("<s>", "<mask>", "<unused0>").mask == "<mask>"
    chat = made("<|endoftext|>", "<|im_start|>", "<|im_end|>", bos="<|im_start|>", eos="<|im_end|>")
    assert (chat.bos, chat.eos, chat.mask, chat.mask_id, chat.added) == (*["<|endoftext|>"] * 2, "[MASK]", 6, 1)
    assert made("<a>", "<b>", bos="<a>", eos="<b>").bos == "<a>"


def test_files_that_promise_more_than_they_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(state: dict[str, Any], word: str) -> None:
        torch.save({"state_dict": prefixed(state)}, tmp_path / "x.ckpt")
        with pytest.raises(UserError, match=word):
            read(tmp_path / "x.ckpt")

    state = weights(60)
    refused(state | {"blocks.4000.mlp.0.bias": torch.zeros(3)}, "numbered in a row")
    refused(state | {"vocab_embed.embedding": torch.zeros(60)}, "a matrix of a network")
    refused(state | {"vocab_embed.embedding": torch.zeros(1).expand(60, 1 << 30)}, "a matrix of a network")
    refused(state | {"vocab_embed.embedding": torch.zeros(1).expand(60, 16)}, "4 bytes for a tensor")
    refused(state | {"rotary_emb.inv_freq": torch.zeros(0)}, "attention heads")
    with (
        zipfile.ZipFile(tmp_path / "x.ckpt") as old,
        zipfile.ZipFile(tmp_path / "y.ckpt", "w", zipfile.ZIP_DEFLATED) as new,
    ):
        for name in old.namelist():
            new.writestr(name, old.read(name))
    with pytest.raises(UserError, match="compressed"):
        read(tmp_path / "y.ckpt")

    # a configuration whose parts are named again and again is not read
    laughs = "a0: &a0 [x, x]\n" + "".join(f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]\n" for i in range(1, 60))
    (tmp_path / "config.yaml").write_text(laughs + "model: {p_uniform: 0.1, diffusion_process: scdd}\n")
    torch.save(weights(60), tmp_path / "model.pt")
    with pytest.raises(UserError, match="repeats parts of itself"):
        read(tmp_path / "model.pt")
    (tmp_path / "config.yaml").write_text("model: {p_uniform: 0.1, diffusion_process: scdd}\n")
    assert '"p_u": 0.1' in read(tmp_path / "model.pt").recipe


@pytest.mark.parametrize("seed", range(40))
def test_damage_anywhere_is_a_sentence(tmp_path: Path, seed: int) -> None:
    """Bytes changed at random: the file is read or refused, and never breaks anything."""
    random = Random(seed)
    file = lightning(tmp_path / "last.ckpt", weights(60), {"p_u": 0.1, "model": {"length": 8}})
    content = bytearray(file.read_bytes())
    with zipfile.ZipFile(file) as archive:
        info = next(each for each in archive.infolist() if each.filename.endswith("data.pkl"))
        program = range(info.header_offset, info.header_offset + info.file_size)
    for _ in range(random.randint(1, 8)):
        content[random.choice(program)] = random.randrange(256)
    # the checksum of the archive would refuse them all
    crc = zlib.crc32(content[info.header_offset + 30 + len(info.filename) :][: info.file_size])
    content = content.replace(info.CRC.to_bytes(4, "little"), crc.to_bytes(4, "little"))
    file.write_bytes(content)
    with suppress(UserError):
        read(file)
