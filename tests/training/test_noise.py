"""Noise that is not uniform, from a recipe to a text: counted once, kept with the run and its checkpoints, checked when read."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import scdd
from scdd.assemble import training as build
from scdd.assemble.noise import NOISE, count_tokens, noise_file
from scdd.bundle.folder import META, WEIGHTS
from scdd.core.errors import UserError
from scdd.data.shards import MemoryTokens
from scdd.evals.measure.evaluate import evaluate
from scdd.evals.measure.model import open_model
from scdd.evals.measure.specs import SamplingSpec
from scdd.recipe import load as recipe

FEW = ("training.steps=4", "training.save_every=2", "training.validate_every=4", "training.validate_batches=1")
UNIGRAM = (*FEW, "process.noise=unigram")


def train(file: Path, out: Path, *changes: str) -> Path:
    checkpoint = scdd.train(file, out, overrides=changes, device="cpu", progress=False).checkpoint
    assert checkpoint is not None
    return Path(checkpoint)


def test_unigram_noise_from_recipe_to_text(recipe_file: Path, text: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    checkpoint = train(recipe_file, run, *UNIGRAM)
    data = build.corpus(recipe.load(recipe_file))
    assert isinstance(data.train, MemoryTokens)
    counts = count_tokens(data.train, data.tokenizer.vocab)
    assert int(counts.sum()) == data.train.n_tokens

    # a resumed run is the same run, bit for bit, and counts nothing again
    halves = tmp_path / "halves"
    train(recipe_file, halves, *UNIGRAM, "training.steps=2")
    kept = (halves / NOISE).read_bytes()
    whole, resumed = (load_file(each / WEIGHTS) for each in (checkpoint, train(recipe_file, halves, *UNIGRAM)))
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)
    assert (halves / NOISE).read_bytes() == kept == (run / NOISE).read_bytes()

    # sampling and measuring need no corpus
    alone = Path(shutil.copytree(checkpoint, tmp_path / "alone"))
    lm = scdd.load(alone, device="cpu")
    assert lm.process.noise is not None  # type: ignore[union-attr]
    expected = (counts[data.tokenizer.vocab.ordinary()] + 1).double()
    assert torch.allclose(lm.process.noise.values, expected / expected.sum())  # type: ignore[union-attr]
    assert lm.generate(1, steps=3, length=8)[0].nfe == 3
    assert "unigram" in open_model(alone, device="cpu").identity["process"]
    assert scdd.load(alone, process="gidd", device="cpu").process.noise is not None  # type: ignore[union-attr]
    (tmp_path / "held.txt").write_text((text / "0.txt").read_text()[:400])
    measured = evaluate(
        alone,
        ("likelihood", "correction"),
        text=tmp_path / "held.txt",
        sampling=SamplingSpec(2, 3),
        out=tmp_path / "out",
    )
    assert all(np.isfinite(one.result[key]) for one, key in zip(measured, ("nats", "intrinsic"), strict=True))
    theirs = SamplingSpec(2, 3, changes={"convention": "authors"})
    with pytest.raises(UserError, match="uniform noise"):
        evaluate(alone, "likelihood", text=tmp_path / "held.txt", sampling=theirs, out=tmp_path / "out")

    meta = json.loads((alone / META).read_text())
    for damage in ({"name": "unigram", "float64": "AAAA"}, "unigram", None):
        meta["extra"]["noise"] = damage
        (alone / META).write_text(json.dumps(meta))
        with pytest.raises(UserError, match="noise"):
            scdd.load(alone, device="cpu")
    del meta["extra"]["noise"]
    (alone / META).write_text(json.dumps(meta))
    with pytest.raises(UserError, match="needs a distribution"):
        scdd.load(alone, device="cpu")


def test_noise_from_a_file(recipe_file: Path, tmp_path: Path) -> None:
    """Text or .npy; what is no distribution is refused, and nothing is left of it."""
    K = build.corpus(recipe.load(recipe_file)).tokenizer.vocab.K
    (tmp_path / "slope.txt").write_text("\n".join(f"{2 * (i + 1) / K / (K + 1)!r}" for i in range(K)))
    checkpoint = train(recipe_file, tmp_path / "slope", *FEW, f"process.noise={tmp_path / 'slope.txt'}")
    lm = scdd.load(checkpoint, device="cpu")
    assert float(lm.process.noise.values[-1]) == pytest.approx(2 / (K + 1))  # type: ignore[union-attr]
    np.save(tmp_path / "slope.npy", lm.process.noise.values.numpy())  # type: ignore[union-attr]
    assert torch.equal(noise_file(lm.tokenizer.vocab, str(tmp_path / "slope.npy")).values, lm.process.noise.values)  # type: ignore[union-attr]
    (tmp_path / "short.txt").write_text("0.5 0.5")
    np.save(tmp_path / "pickled.npy", np.array([{}], dtype=object), allow_pickle=True)
    for name, reason in (("short.txt", "ordinary tokens"), ("none.txt", "no such file"), ("pickled.npy", "no numbers")):
        out = tmp_path / f"of-{name}"
        with pytest.raises(UserError, match=reason):
            train(recipe_file, out, *FEW, f"process.noise={tmp_path / name}")
        assert not out.exists(), "a start that is refused leaves nothing behind"
