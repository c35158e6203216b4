"""Smaller networks out of larger ones, and what they learn from them."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch

import scdd
from scdd.bundle.folder import Identity, read, sha256_of, write
from scdd.core.errors import UserError
from scdd.models.llama import Llama
from scdd.models.options import LlamaConfig
from scdd.objectives.base import BatchSlice
from scdd.objectives.diffusion import DiffusionObjective
from scdd.objectives.options import ElboOptions, LowDiscrepancyTimesOptions, TeacherOptions
from scdd.objectives.teacher import Distillation
from scdd.processes.scdd import SCDD
from scdd.recipe import load as recipe
from scdd.schedules.peaked import Peaked
from tests import tiny

RECIPE = """
name: student
data: {{kind: text, path: {text}, length: 16, tokenizer: {model}, valid_fraction: 0.2}}
model: {{kind: pretrained, depth: 2}}
process: {{kind: scdd}}
objective: {{kind: elbo, steps: null, weighting: dynamic, teacher: {{source: {model}, weight: 2}}}}
training: {{start_from: {model}, steps: 6, batch_size: 4, learning_rate: 1e-3, warmup_steps: 1, ema: 0.9, precision: float32,
  compile: false, parallel: none, save_every: 2, validate_every: 6, validate_batches: 1, log_every: 2, tensorboard: false}}
sampling: {{steps: 4}}
"""
SHAPE = LlamaConfig(depth=4, width=16, heads=2, kv_heads=1, head_width=8, mlp_width=24)


def bundle(folder: Path, **changes: Any) -> Path:
    network = Llama(
        LlamaConfig(**{**asdict(SHAPE), **changes}), tiny.tokenizer().vocab, torch.Generator().manual_seed(0)
    )
    spec = recipe.loads(tiny.RECIPE)
    identity = Identity(
        recipe=recipe.dumps(spec), vocab=tiny.tokenizer().vocab, tokenizer=tiny.tokenizer().to_str(),
        network=network.description(),
    )  # fmt: skip
    return write(folder, identity, network.state_dict())


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return bundle(tmp_path / "model")


def student(tmp_path: Path, model: Path, *overrides: str, name: str = "run") -> Path:
    text, file = tmp_path / "text", tmp_path / "student.yaml"
    text.mkdir(exist_ok=True)
    for number in range(5):
        (text / f"{number}.txt").write_text(tiny.TEXT * 6, encoding="utf-8")
    file.write_text(RECIPE.format(text=text, model=model), encoding="utf-8")
    scdd.train(file, tmp_path / name, overrides=overrides, progress=False)
    return tmp_path / name


def test_a_student_is_made_taught_saved_and_needs_nobody_afterwards(tmp_path: Path, model: Path) -> None:
    whole = read(student(tmp_path, model)).weights
    stopped = student(tmp_path, model, "training.steps=6", "training.max_seconds=1e-9", name="again")  # one step
    assert read(stopped).step == 1
    resumed = read(student(tmp_path, model, name="again"))
    assert resumed.step == 6
    assert all(torch.equal(whole[name], each) for name, each in resumed.weights.items())
    assert resumed.extra["teacher"] == sha256_of(model / "model.safetensors")
    kept = shutil.copytree(model, tmp_path / "kept")
    write(model, read(kept), {name: each + 1 for name, each in read(kept).weights.items()})
    with pytest.raises(UserError, match=r"was trained with \{'teacher': "):
        student(tmp_path, model, "training.steps=8", name="again")
    shutil.rmtree(model)
    kept.rename(model)
    alone = read(student(tmp_path, model, "objective.teacher=null", name="alone")).weights
    assert any(not torch.equal(whole[name], each) for name, each in alone.items())
    assert resumed.network is not None
    assert resumed.network["depth"] == 2
    model.rename(tmp_path / "gone")
    lm = scdd.load(tmp_path / "run")
    [drawn] = lm.generate(steps=2, length=8)
    assert (drawn.nfe, drawn.text) == (2, lm.tokenizer.decode(drawn.tokens))


def test_the_kept_blocks_are_the_parents(tmp_path: Path, model: Path) -> None:
    still = (
        "training.learning_rate=1e-30",
        "training.weight_decay=0",
        "training.steps=1",
        "training.initial_learning_rate=0",
    )
    found = read(student(tmp_path, model, "model={kind: pretrained, layers: [1, 3]}", *still)).weights
    parent = read(model).weights
    for new, old in ((0, 1), (1, 3)):
        assert torch.equal(found[f"blocks.{new}.qkv.weight"], parent[f"blocks.{old}.qkv.weight"])
    assert not any(name.startswith("blocks.2") for name in found)


def test_what_cannot_teach_is_refused_in_a_sentence(tmp_path: Path, model: Path) -> None:
    causal = bundle(tmp_path / "causal", causal=True)
    with pytest.raises(UserError, match=r"^objective\.teacher\.source: .*reads from left to right"):
        student(tmp_path, model, f"objective.teacher.source={causal}")
    other = tiny.TextTokenizer.train([tiny.TEXT], 290)
    identity = Identity(
        recipe=read(model).recipe, vocab=other.vocab, tokenizer=other.to_str(), network={"kind": "llama"}
    )
    write(tmp_path / "other", identity, {})
    with pytest.raises(UserError, match="has another tokenizer than the data"):
        student(tmp_path, model, f"objective.teacher.source={tmp_path / 'other'}")
    facts = json.loads((causal / "meta.json").read_text(encoding="utf-8"))
    facts["network"]["depth"] = 9999  # nothing so large is built to find out
    (causal / "meta.json").write_text(json.dumps(facts), encoding="utf-8")
    with pytest.raises(UserError, match=r"source: \S*causal: it says 9999 blocks and has \d+ weights; "):
        student(tmp_path, model, f"objective.teacher.source={causal}")
    with pytest.raises(UserError, match=r"model\.depth is 9, and the model has 4 blocks"):
        student(tmp_path, model, "model.depth=9")
    with pytest.raises(UserError, match=r"objective\.ar_steps 6 is all of training\.steps 6"):
        student(tmp_path, model, "objective.ar_steps=6")
    assert not (tmp_path / "run").exists()


def test_only_noised_tokens_are_taught_and_reports_are_not_touched() -> None:
    """The difference that the teacher makes is Σ weight·KL at z_t ≠ x over the positions, by dense logits."""
    vocab = tiny.tokenizer().vocab
    networks = [
        Llama(LlamaConfig(**{**asdict(SHAPE), "depth": depth}), vocab, torch.Generator().manual_seed(depth)).eval()
        for depth in (1, 2)
    ]
    own, other = networks
    with torch.no_grad():
        for network in networks:
            network.embedding.weight[: vocab.size] *= 20
    process = SCDD(vocab, Peaked(0.2))
    options = ElboOptions(None, "dynamic", LowDiscrepancyTimesOptions(), teacher=TeacherOptions("x", 1.7))
    assert options.teacher is not None
    plain = DiffusionObjective(process, options)
    guided = DiffusionObjective(process, options, teacher=Distillation(other, options.teacher))
    tokens = torch.randint(0, vocab.size - 1, (3, 10), generator=torch.Generator().manual_seed(1))
    part = BatchSlice(0, 0, 0, 3, 6)
    seen: list[torch.Tensor] = []
    hidden = own.hidden
    own.hidden = lambda z_t, *rest: (seen.append(z_t), hidden(z_t, *rest))[1]  # type: ignore[method-assign, assignment]
    before, after = plain.loss(own, tokens, None, part), guided.loss(own, tokens, None, part)
    z_t = seen[-1]
    p, q = (each.logits(z_t)[..., : vocab.mask_id].double().log_softmax(-1) for each in (other, own))
    kl = (p.exp() * (p - q)).sum(-1) * (z_t != tokens)
    assert float((after.total - before.total).detach()) == pytest.approx(1.7 * float(kl.sum().detach()) / 60, rel=1e-4)
    assert torch.equal(before.nats, after.nats)
    assert torch.equal(plain.evaluate(own, tokens, None, part).total, guided.evaluate(own, tokens, None, part).total)
