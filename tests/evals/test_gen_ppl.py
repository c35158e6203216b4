"""Judges: our own, and any of transformers'; the number must not depend on the batch or on windows' places."""

from __future__ import annotations

import json
import math
import os
import shutil
import sys
from pathlib import Path
from random import Random
from typing import Any

import pytest

from scdd.cli.main import main
from scdd.core import UserError
from scdd.data.corpus import discover, documents
from scdd.evals.measure.likelihood import likelihood
from scdd.evals.measure.mauve import mauve
from scdd.evals.measure.model import EvalModel
from scdd.evals.measure.reference_lm import (
    HubReferenceLM,
    OwnReferenceLM,
    TextNats,
    _identity,
    gen_ppl,
    open_reference_lm,
)
from scdd.lm.run import windows
from tests import tiny

TEXTS = ["The river runs to the sea.", "", "a", "The falcon flies over the lazy dog, and the quick brown fox jumps."]


def test_own_judge_is_the_models_likelihood(ar: EvalModel) -> None:
    found = OwnReferenceLM(ar).score(TEXTS)
    tokens = ar.lm.tokenizer.encode(TEXTS[0])
    row = [ar.lm.tokenizer.bos_id, *tokens]
    assert found[0].tokens == len(tokens)
    assert found[0].nats == pytest.approx(likelihood(ar.lm.network, ar.lm.process, [row])[0].nats[0], rel=1e-5)
    assert found[1] == TextNats(0.0, 0)


def test_own_judge_reads_long_texts_in_windows(ar: EvalModel) -> None:
    """Every token is scored once, with half a window of context at least."""
    text = tiny.TEXT * 3
    found = OwnReferenceLM(ar).score([text])[0]
    assert found.tokens == len(ar.lm.tokenizer.encode(text)) > 2 * ar.lm.context
    assert 0 < found.nats / found.tokens < 20


def test_own_judge_does_not_mind_the_batch(ar: EvalModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """Texts together, alone, and each window's prefix subtracted from the whole: one number."""
    texts, seen = [*TEXTS, tiny.TEXT * 3, TEXTS[0]], [0]
    together = OwnReferenceLM(ar).score(texts, lambda done: seen.__setitem__(0, seen[0] + done))
    assert seen == [len(texts)]
    monkeypatch.setattr("scdd.evals.measure.likelihood.POSITIONS_CPU", 1)

    def nats(row: list[int]) -> float:
        return likelihood(ar.lm.network, ar.lm.process, [row])[0].mean if len(row) > 1 else 0.0

    for text, found in zip(texts, together, strict=True):
        alone = OwnReferenceLM(ar).score([text])[0]
        tokens = ar.lm.tokenizer.encode(text) if text else []
        rows = [(ar.engine.framed(tokens[w.start : w.stop]), w) for w in windows(len(tokens), ar.engine.room)]
        expected = sum(nats(row) - nats(row[: 1 + w.fresh - w.start]) for row, w in rows)
        assert found.tokens == alone.tokens == len(tokens)
        assert found.nats == pytest.approx(alone.nats, rel=1e-5)
        assert found.nats == pytest.approx(expected, rel=1e-5)


def test_a_diffusion_model_is_no_judge(checkpoints: dict[str, Path]) -> None:
    with pytest.raises(UserError, match="must be autoregressive"):
        open_reference_lm(str(checkpoints["scdd"]))
    assert isinstance(open_reference_lm(str(checkpoints["ar"])), OwnReferenceLM)


def test_perplexity_is_over_tokens_not_texts() -> None:
    found = gen_ppl([TextNats(10.0, 10), TextNats(60.0, 30), TextNats(0.0, 0)])
    assert found["ppl"] == pytest.approx(math.exp(70 / 40))
    assert found["low"] <= found["ppl"] <= found["high"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A GPT-2 of random weights with our tokenizer, as transformers stores one."""
    transformers = pytest.importorskip("transformers")
    import torch

    where = tmp_path_factory.mktemp("judge")
    torch.manual_seed(0)
    tokenizer = tiny.tokenizer()
    config = transformers.GPT2Config(vocab_size=tokenizer.size, n_positions=32, n_embd=32, n_layer=2, n_head=2)
    model = transformers.GPT2LMHeadModel(config)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    model.save_pretrained(where)
    tokenizer.save(where / "tokenizer.json")
    (where / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))
    return where


def test_hub_judge_does_not_mind_the_batch(folder: Path) -> None:
    texts = [*TEXTS, tiny.TEXT * 2]
    alone, together = (HubReferenceLM(str(folder), batch_size=size).score(texts) for size in (1, 5))
    for a, b in zip(alone, together, strict=True):
        assert a.tokens == b.tokens
        assert a.nats == pytest.approx(b.nats, rel=1e-4)
    assert alone[1] == alone[2] == TextNats(0.0, 0), "the first token is given"


def test_hub_judge_is_the_chain_rule(folder: Path) -> None:
    """Against the model asked token by token, within one window."""
    import torch

    judge = HubReferenceLM(str(folder))
    ids = judge.tokenizer(TEXTS[0], add_special_tokens=False)["input_ids"]
    expected = 0.0
    with torch.no_grad():
        for i in range(1, len(ids)):
            logits = judge.model(input_ids=torch.tensor([ids[:i]])).logits[0, -1]
            expected -= float(torch.log_softmax(logits, -1)[ids[i]])
    found = judge.score([TEXTS[0]])[0]
    assert found.nats == pytest.approx(expected, rel=1e-4)
    assert found.tokens == len(ids) - 1


def test_a_gguf_file_judges_as_the_same_model_in_a_folder(tmp_path: Path) -> None:
    """A Llama, as the judge of docs/results.md is."""
    transformers = pytest.importorskip("transformers")
    for needed in ("gguf", "accelerate"):
        pytest.importorskip(needed)
    import torch

    from tests.evals.gguf_file import write_gguf

    tokenizer = tiny.tokenizer()
    config = transformers.LlamaConfig(
        vocab_size=tokenizer.size,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=32,
    )
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(config)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    model.save_pretrained(tmp_path)
    tokenizer.save(tmp_path / "tokenizer.json")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))
    texts = [*TEXTS, tiny.TEXT * 2]
    folder = HubReferenceLM(str(tmp_path))
    beside = tmp_path / "beside"
    beside.mkdir()
    (beside / "tokenizer.json").write_text((tmp_path / "tokenizer.json").read_text().replace('"a"', '"á"'))
    file = open_reference_lm(str(write_gguf(beside / "llama.gguf", model, tokenizer)))  # whose own tokenizer counts
    assert isinstance(file, HubReferenceLM)
    assert file.context == folder.context == 32
    for a, b in zip(file.score(texts), folder.score(texts), strict=True):
        assert a.tokens == b.tokens
        assert a.nats == pytest.approx(b.nats, rel=1e-4)


def test_hub_judge_scores_every_token_of_a_long_text_once(folder: Path) -> None:
    judge = HubReferenceLM(str(folder))
    text = tiny.TEXT * 2
    count = len(judge.tokenizer(text, add_special_tokens=False)["input_ids"])
    assert count > 2 * judge.context
    assert judge.score([text])[0].tokens == count - 1
    assert judge.features([text, "a"]).shape == (2, 32)


def test_generation_is_measured_by_a_hub_judge(
    folder: Path, checkpoints: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`scdd eval generation --judge FOLDER`: the number is the judge's of the texts that it lists."""
    command = ["eval", "generation", "--model", str(checkpoints["scdd"]), "--judge", str(folder)]
    command += ["--num", "3", "--steps", "4", "--out", str(tmp_path), "--json"]
    assert main(command) == 0, capsys.readouterr().err
    result = json.loads(capsys.readouterr().out)["result"]
    assert len(result["samples"]) == 3
    assert result["judge"] == folder.name
    assert result["ppl"] == pytest.approx(gen_ppl(HubReferenceLM(str(folder)).score(result["samples"]))["ppl"])


def test_folders_of_one_name_are_judges_of_their_own(
    folder: Path, checkpoints: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two runs' folders called `checkpoint` shared one measurement; one folder that was moved does not need two."""
    import torch
    from safetensors.torch import load_file, save_file

    first, second, moved = (tmp_path / name / "checkpoint" for name in ("a", "b", "c"))
    for place in (first, second):
        shutil.copytree(folder, place)
    weights = load_file(second / "model.safetensors")
    torch.manual_seed(1)
    changed = {name: torch.randn_like(value) * 0.3 for name, value in weights.items()}
    save_file(changed, second / "model.safetensors", metadata={"format": "pt"})
    command = ["eval", "generation", "--model", str(checkpoints["scdd"]), "--num", "2", "--steps", "2"]
    command += ["--out", str(tmp_path / "out"), "--json"]

    def measured(judge: Path) -> dict[str, Any]:
        assert main([*command, "--judge", str(judge)]) == 0
        found: dict[str, Any] = json.loads(capsys.readouterr().out)
        return found

    one, other = measured(first), measured(second)
    assert one["result"]["judge"] == other["result"]["judge"] == "checkpoint"
    assert one["hash"] != other["hash"]
    assert one["result"]["ppl"] != other["result"]["ppl"]
    page = tmp_path / "page.html"
    assert main(["report", str(tmp_path / "out"), "--out", str(page)]) == 0
    titles = [line for line in page.with_suffix(".md").read_text().splitlines() if line.startswith("### Generative")]
    assert len(set(titles)) == 2, titles
    capsys.readouterr()
    moved.parent.mkdir()
    first.rename(moved)
    (moved / "README.md").write_text("moved")
    assert measured(moved) == one


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.json"])
def test_whatever_decides_the_scores_is_in_the_identity(folder: Path, tmp_path: Path, name: str) -> None:
    copy = tmp_path / folder.name
    shutil.copytree(folder, copy)
    before = _identity(str(copy))
    assert before == _identity(str(folder))
    with (copy / name).open("ab") as file:
        file.write(b" ")
    assert _identity(str(copy)) != before
    assert _identity("gpt2-large") == "gpt2-large"


def test_gguf_files_are_told_by_what_they_hold(tmp_path: Path) -> None:
    """Equal names and sizes, as files of one network trained twice have."""
    files = [tmp_path / name / "model.gguf" for name in "ab"]
    for file, content in zip(files, (b"GGUF one", b"GGUF two"), strict=True):
        file.parent.mkdir()
        file.write_bytes(content)
    assert _identity(str(files[0])) != _identity(str(files[1]))
    same = tmp_path / "renamed.gguf"
    same.write_bytes(b"GGUF one")
    assert _identity(str(same)) == _identity(str(files[0]))


def test_mauve_tells_other_texts_from_the_same(folder: Path) -> None:
    pytest.importorskip("mauve")
    judge = HubReferenceLM(str(folder))
    words = tiny.TEXT.split()
    rng = Random(0)
    real = [" ".join(words[i % 20 : i % 20 + 6]) for i in range(60)]
    other = [" ".join(rng.choice("xyzq") * 3 for _ in range(8)) for _ in range(60)]
    same, apart = mauve(real[::2], real[1::2], judge, seeds=(0, 1)), mauve(other, real, judge, seeds=(0, 1))
    assert len(same["scores"]) == 2
    assert 0 < apart["value"] < same["value"] <= 1
    assert mauve(real, real, judge, seeds=range(6))["scores"] == [1.0] * 6, "whatever rounding does to the area"


def test_mauve_is_refused_before_anything_is_drawn(
    ar: EvalModel,
    checkpoints: dict[str, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    command = ["eval", "generation", "--model", str(checkpoints["scdd"]), "--judge", str(checkpoints["ar"])]
    command += ["--mauve", str(tmp_path / "human.txt"), "--out", str(tmp_path), "--num", "2", "--steps", "2"]
    monkeypatch.setitem(sys.modules, "mauve", None)
    assert main(command) == 2
    assert "pip install -e '.[mauve]'" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "mauve", sys)  # any module: it is not asked for anything
    assert main(command) == 2
    assert "hidden states" in capsys.readouterr().err
    assert not list(tmp_path.rglob("*.json"))


def test_an_unknown_judge_names_the_cure() -> None:
    pytest.importorskip("transformers")
    with pytest.raises(UserError, match="hub name, folder or"):
        HubReferenceLM("/nowhere/at/all")
    with pytest.raises(UserError, match="does not exist"):
        HubReferenceLM("/nowhere/at/all.gguf")


@pytest.mark.data
@pytest.mark.slow
@pytest.mark.skipif("SCDD_JUDGE" not in os.environ, reason="SCDD_JUDGE names no .gguf file or folder of a judge")
def test_a_real_judge_tells_text_from_shuffled_words(data_folder: Path) -> None:
    """SmolLM2-135M finds Wikipedia plausible (PPL about 20) and the same words shuffled not (about 450)."""
    judge = HubReferenceLM(os.environ["SCDD_JUDGE"], batch_size=4)
    sources = discover([str(data_folder / "wiki-en" / "valid.jsonl.xz")])
    texts = [text[:800] for text, _ in zip(documents(sources), range(16), strict=False)]
    rng = Random(0)
    shuffled = [" ".join(rng.sample(words, len(words))) for words in (text.split() for text in texts)]
    real, mixed = gen_ppl(judge.score(texts)), gen_ppl(judge.score(shuffled))
    assert 12 < real["ppl"] < 32
    assert 300 < mixed["ppl"] < 800
    few = gen_ppl(HubReferenceLM(os.environ["SCDD_JUDGE"], batch_size=1).score(texts[:3]))
    assert few["nats"] == pytest.approx(real["nats"][:3], rel=1e-3)
