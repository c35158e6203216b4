"""`scdd train` end to end: every objective learns, and every mistake is refused in a sentence before time is lost."""

from __future__ import annotations

import json
import shutil
import sys
from collections import namedtuple
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from scdd.assemble import training as build
from scdd.bundle import folder as bundle
from scdd.cli.main import main
from scdd.core.errors import UserError
from scdd.data.prepare import Preparation
from scdd.data.prepare import prepare as run_preparation
from scdd.lm.training import train as run_training
from scdd.recipe.load import dumps, load
from scdd.training.optim import learning_rate
from scdd.training.parallel import World

from .conftest import curve, weights


def train(recipe: Path, out: Path, *changes: str) -> int:
    return main(
        ["train", str(recipe), "--out", str(out), "--device", "cpu", *(p for c in changes for p in ("--set", c))]
    )


def newest(out: Path) -> Path:
    return sorted((out / "checkpoints").glob("step-*"))[-1]


def refused(capsys: pytest.CaptureFixture[str], code: int) -> str:
    said = capsys.readouterr().err
    assert code == 2, said
    assert said.startswith("error: ")
    return said


MDLM = ("process.kind=mdlm", "process.schedule.kind=masked")
AR = ("process={kind: ar}", "objective={kind: ar}", "sampling.sampler={kind: ar}")
SYSTEMS = {
    "scdd": (),
    "paper": ("objective={kind: elbo, steps: 1000}",),
    "importance": ("objective.times={kind: importance}", "objective.steps=20"),
    "scdd+": ("objective={kind: elbo, steps: null, weighting: dynamic, times: {kind: low-discrepancy}}",),
    "gidd": ("process.kind=gidd",),
    "gidd+": ("process.kind=gidd", "objective={kind: elbo, steps: null, weighting: dynamic}"),
    "mdlm": MDLM,
    "ar": AR,
    "documents": ("data.documents=true",),
    "ar-documents": (*AR, "data.documents=true"),
    "time": ("model.time_conditioning=true",),
    "bf16": ("training.precision=bf16",),
    "raw": ("training.ema=0.0",),
    "joint": (*MDLM, "objective={kind: prism, freeze: false}"),
    "joint-bf16": (*MDLM, "objective={kind: prism, freeze: false}", "training.precision=bf16"),
}


@pytest.mark.parametrize("name", SYSTEMS)
def test_every_system_learns(name: str, recipe_file: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    assert train(recipe_file, out, *SYSTEMS[name], "training.steps=40", "training.validate_every=20") == 0
    valid = [line["valid_nelbo"] for line in curve(out) if "valid_nelbo" in line]
    assert len(valid) == 2
    spec = load(out)
    data = build.corpus(spec, (out / "tokenizer.json").read_text())
    fresh = build.trainer(spec, tmp_path / "fresh", World(), data)
    assert fresh.validation is not None
    start = fresh.validation()
    assert valid[-1] < start.mean - start.error, "it must be better than it was at the start"
    found = bundle.read(out)  # a run's bundle is its last checkpoint
    assert found.step == 40
    assert found.tokens == 40 * 8 * 16
    assert {"resume", "recipe.yaml", "tokenizer.json", "meta.json", "model.safetensors"} == {
        path.name for path in newest(out).iterdir()
    }


def test_the_bundle_holds_the_averaged_weights(recipe_file: Path, tmp_path: Path) -> None:
    assert train(recipe_file, tmp_path / "run", "training.steps=6") == 0
    state = load_file(newest(tmp_path / "run") / "resume" / "state.safetensors")
    for name, value in bundle.read(newest(tmp_path / "run")).weights.items():
        assert torch.equal(value, state[f"ema.network.{name}"])
    assert not torch.equal(state["ema.network.output.bias"], state["model.network.output.bias"])


def test_a_masked_model_becomes_a_self_correcting_one(recipe_file: Path, tmp_path: Path) -> None:
    assert train(recipe_file, tmp_path / "mdlm", *MDLM, "training.steps=10") == 0
    source = newest(tmp_path / "mdlm")
    again = f"training.start_from={source}"
    spec = load(recipe_file, [again])
    data = build.corpus(spec, (source / "tokenizer.json").read_text())
    started = build.trainer(spec, tmp_path / "unused", World(), data)
    for name, value in bundle.read(source).weights.items():
        assert torch.equal(started.module.network.state_dict()[name], value)
    # No tokenizer is named: it is the other model's, whatever the data would have given.
    assert train(recipe_file, tmp_path / "scdd", again, "training.steps=4", "data.vocab_size=280") == 0
    assert bundle.read(tmp_path / "scdd").vocab_hash == bundle.read(source).vocab_hash


def test_a_model_without_a_tokenizer_wants_one_named(
    recipe_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train(recipe_file, tmp_path / "first", "training.steps=1") == 0
    source = bundle.read(tmp_path / "first")
    bundle.write(tmp_path / "mute", replace(source, tokenizer=None), source.weights)
    again = f"training.start_from={tmp_path / 'mute'}"
    said = refused(capsys, train(recipe_file, tmp_path / "second", again))
    assert f"data.tokenizer is null, and {tmp_path / 'mute'} has none: name one." in said
    named = f"data.tokenizer={tmp_path / 'first' / 'tokenizer.json'}"
    assert train(recipe_file, tmp_path / "second", again, named, "training.steps=1") == 0


def test_prism_trains_a_head_on_a_frozen_model(
    recipe_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train(recipe_file, tmp_path / "mdlm", *MDLM, "training.steps=10") == 0
    prism = (*MDLM, "objective={kind: prism}", "training.steps=10")
    assert "training.start_from" in refused(capsys, train(recipe_file, tmp_path / "no", *prism))
    source = newest(tmp_path / "mdlm")
    assert train(recipe_file, tmp_path / "prism", *prism, f"training.start_from={source}") == 0
    before, after = bundle.read(source).weights, bundle.read(newest(tmp_path / "prism")).weights
    assert {name for name in after if name not in before} == {
        f"quality.{layer}.{part}" for layer in ("first", "last") for part in ("weight", "bias")
    }
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert after["quality.last.weight"].abs().max() > 0


def test_no_sample_is_seen_twice_or_skipped_across_a_resume(recipe_file: Path, tmp_path: Path) -> None:
    """The blocks that a resumed run takes are the ones that an uninterrupted run takes, an epoch a permutation."""
    spec = load(recipe_file)
    data = build.corpus(spec)
    seen: list[int] = []

    def spied(steps: int, out: Path) -> None:
        trainer = build.trainer(load(recipe_file, [f"training.steps={steps}"]), out, World(), data)
        trainer.resume()
        blocks, take = trainer.loader.blocks, trainer.loader.samples
        trainer.loader.prefetch = 0
        trainer.loader.samples = lambda a, b: (seen.extend(take(a, b).tolist()), take(a, b))[1]  # type: ignore[method-assign]
        trainer.run()
        assert len(blocks) > 0

    epoch = len(build.trainer(spec, tmp_path / "x", World(), data).loader.blocks)
    steps = -(-epoch // 8)
    for until in (3, 4, steps):
        spied(until, tmp_path / "parts")
    parts, seen = seen, []
    spied(steps, tmp_path / "whole")
    assert parts == seen
    assert sorted(parts[:epoch]) == list(range(epoch))


def test_recipe_mistakes_are_named(recipe_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "training.stepz" in refused(capsys, train(recipe_file, tmp_path / "a", "training.stepz=3"))
    assert "no such recipe" in refused(capsys, train(Path("wiki-tinny"), tmp_path / "a"))
    dynamic = "objective={kind: elbo, steps: 100, weighting: dynamic}"
    assert "set steps to null" in refused(capsys, train(recipe_file, tmp_path / "a", dynamic))
    assert not (tmp_path / "a" / "checkpoints").exists()


def test_an_out_that_is_a_file_is_refused(
    recipe_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "taken").write_text("mine")
    assert "taken cannot be made a folder" in refused(capsys, train(recipe_file, tmp_path / "taken"))
    assert (tmp_path / "taken").read_text() == "mine"


def test_an_out_that_is_an_address_is_refused_and_no_folder_of_that_name(
    recipe_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert "is an address" in refused(capsys, train(recipe_file, Path("s3://bucket/run")))
    assert not (tmp_path / "s3:").exists()


@pytest.mark.parametrize("device", ["gpu", "meta", "cuda:99"])
def test_a_device_that_is_not_there_is_refused(
    device: str, recipe_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = main(["train", str(recipe_file), "--out", str(tmp_path / "run"), "--device", device])
    assert f"--device {device}" in refused(capsys, code)
    assert not (tmp_path / "run").exists()


def test_a_refused_start_leaves_no_tokenizer_for_the_next_text(
    recipe_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "not enough" in refused(capsys, train(recipe_file, tmp_path / "run", "data.length=10000000"))
    assert not (tmp_path / "run").exists()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("kept")
    refused(capsys, train(recipe_file, tmp_path / "mine", "data.length=10000000"))
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["notes.txt"]


def test_another_recipe_in_the_folder_is_refused_by_its_keys(
    recipe_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    assert train(recipe_file, out, "training.steps=4") == 0
    said = refused(capsys, train(recipe_file, out, "training.learning_rate=0.5", "seed=8"))
    assert "training.learning_rate (0.01 → 0.5)" in said
    assert "seed (3 → 8)" in said
    assert "steps" not in said
    assert train(recipe_file, out, "training.steps=6", "training.save_every=2", "training.log_every=1") == 0
    assert newest(out).name == "step-00000006"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("training.steps=3", "training.steps is 3, and the run in {out} is at step 4 already"),
        ("training.wandb=mine", "training.wandb needs the package"),
    ],
)
def test_a_refused_resume_leaves_the_recipe_as_it_was(
    recipe_file: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    change: str,
    says: str,
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    out = tmp_path / "run"
    assert train(recipe_file, out, "training.steps=4") == 0
    before = (out / "recipe.yaml").read_bytes()
    assert says.format(out=out) in refused(capsys, train(recipe_file, out, "training.steps=4", change))
    assert (out / "recipe.yaml").read_bytes() == before
    assert train(recipe_file, out, "training.steps=4") == 0, "it is as finished as before"


def test_a_checkpoint_of_another_vocabulary_is_refused(
    recipe_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    assert train(recipe_file, out, "training.steps=4") == 0
    assert train(recipe_file, tmp_path / "c", "data.vocab_size=290", "training.steps=4") == 0
    other = f"data.tokenizer={tmp_path / 'c' / 'tokenizer.json'}"
    said = refused(capsys, train(recipe_file, tmp_path / "b", other, f"training.start_from={newest(out)}"))
    assert "tokenizer" in said
    shutil.rmtree(out / "checkpoints")
    shutil.copytree(tmp_path / "c" / "checkpoints", out / "checkpoints")
    assert "another vocabulary" in refused(capsys, train(recipe_file, out, "training.steps=8"))


def test_a_checkpoint_of_another_size_is_refused(
    recipe_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train(recipe_file, tmp_path / "run", "training.steps=4") == 0
    start = f"training.start_from={newest(tmp_path / 'run')}"
    assert "does not fit the network" in refused(capsys, train(recipe_file, tmp_path / "b", start, "model.depth=3"))


@pytest.fixture
def shards(text: Path, tmp_path: Path) -> Path:
    out = tmp_path / "shards"
    for _ in run_preparation(Preparation([str(text)], out, train_tokenizer=300, valid_fraction=0.3, workers=1)):
        pass
    return out


def test_shards_train_and_damaged_ones_are_refused(
    shards: Path, recipe_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = f"data={{kind: shards, path: {shards}, length: 16}}"
    assert train(recipe_file, tmp_path / "run", data, "training.steps=4") == 0
    file = next(iter(sorted(path for path in shards.rglob("*train*") if path.is_file())))
    whole = file.read_bytes()
    file.write_bytes(whole[:-9] + bytes([whole[-9] ^ 1]) + whole[-8:])
    assert "checksum" in refused(capsys, train(recipe_file, tmp_path / "run", data, "training.steps=8"))
    file.unlink()
    assert "missing" in refused(capsys, train(recipe_file, tmp_path / "run", data, "training.steps=8"))
    file.write_bytes(whole)
    assert train(recipe_file, tmp_path / "run", data, "training.steps=8") == 0


def test_shards_of_another_tokenizer_are_refused(
    shards: Path, text: Path, recipe_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = f"data={{kind: shards, path: {shards}, length: 16}}"
    assert train(recipe_file, tmp_path / "run", data, "training.steps=4") == 0
    shutil.rmtree(shards)
    for _ in run_preparation(Preparation([str(text)], shards, train_tokenizer=280, valid_fraction=0.3, workers=1)):
        pass
    assert "tokenizer" in refused(capsys, train(recipe_file, tmp_path / "run", data, "training.steps=8"))


def test_a_full_disk_is_refused_before_training(
    recipe_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(1 << 30, 1 << 30, 1000))
    assert "GiB free" in refused(capsys, train(recipe_file, tmp_path / "run"))
    assert not list((tmp_path / "run").glob("checkpoints/*"))


def test_a_loss_that_is_not_finite_stops_the_run_and_names_batch_and_checkpoint(
    recipe_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changes = ["training.save_every=2", "training.log_every=6", "training.guard.rollbacks=0"]
    out, spec = tmp_path / "run", load(recipe_file, changes)
    data = build.corpus(spec)
    trainer = build.trainer(spec, out, World(), data)
    advance = trainer.advance

    def spoil(batch: object) -> None:
        if trainer.step == 4:  # the fifth step is not finite; nobody looks before step 6
            with torch.no_grad():
                trainer.module.network.output.bias.fill_(torch.nan)
        advance(batch)  # type: ignore[arg-type]

    trainer.advance = spoil  # type: ignore[method-assign]
    with pytest.raises(Exception, match="the weights were not finite from step 5 on") as caught:
        trainer.run()
    assert "step-00000004" in str(caught.value)
    assert newest(out).name == "step-00000004", "bad weights are never saved"
    assert all(torch.isfinite(value).all() for value in weights(out).values())
    blamed = load_file(out / "not-finite-step-4.safetensors")
    expected = trainer.loader.samples(4 * 8, 5 * 8)
    assert blamed["blocks"].tolist() == expected.tolist()
    assert torch.equal(blamed["tokens"], torch.from_numpy(trainer.loader.blocks.take(expected)[0]))


def test_an_exploding_run_exits_with_a_sentence(
    recipe_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = refused(
        capsys, train(recipe_file, tmp_path / "run", "training.learning_rate=1e30", "training.warmup_steps=0")
    )
    assert "NaN or infinite 10 times from step 2 on, and there is no checkpoint to go back to" in said
    assert "training.learning_rate" in said


def test_a_damaged_checkpoint_is_named(recipe_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert train(recipe_file, tmp_path / "run", "training.steps=4") == 0
    file = newest(tmp_path / "run") / "resume" / "state.safetensors"
    file.write_bytes(file.read_bytes()[:1000])
    assert "damaged" in refused(capsys, train(recipe_file, tmp_path / "run", "training.steps=8"))


def test_tensorboard_and_jsonl_hold_the_curves(recipe_file: Path, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    out = tmp_path / "run"
    assert train(recipe_file, out, "training.tensorboard=true", "training.steps=6") == 0
    assert list((out / "tensorboard").iterdir())
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if "loss" in line] == [3, 6]
    assert lines[0].keys() >= {"loss", "error", "learning_rate", "gradient_norm", "tokens_per_second", "eta", "epoch"}


@pytest.mark.parametrize("name", ["scdd", "ar", "bf16"])
def test_samples_are_logged_and_change_nothing(
    name: str, recipe_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    short = (*SYSTEMS[name], "training.steps=6", "sampling.steps=3", "training.validate_every=100")
    assert train(recipe_file, tmp_path / "watched", *short, "training.sample_every=3") == 0
    assert capsys.readouterr().out.count("sample:") == 4, "two texts after step 3 and after step 6"
    assert train(recipe_file, tmp_path / "plain", *short) == 0
    watched, plain = (weights(tmp_path / run) for run in ("watched", "plain"))
    assert all(torch.equal(watched[key], plain[key]) for key in plain)


def test_from_python_it_is_the_command(recipe_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The same bits and metrics, resumed by a recipe at hand; silent if asked to be."""
    assert train(recipe_file, tmp_path / "command", "training.steps=6") == 0
    capsys.readouterr()
    python = tmp_path / "python"
    half = run_training(recipe_file, python, overrides=["training.steps=3"], device="cpu", progress=False)
    assert (half.reason, half.step, half.checkpoint) == ("finished", 3, newest(python))
    spec = load(recipe_file, ["training.steps=6"])
    assert run_training(spec, python, device="cpu", progress=False).step == 6
    assert capsys.readouterr().out == ""
    assert [line for line in curve(python) if line["step"] == 6] == curve(tmp_path / "command")[-2:]
    with pytest.raises(UserError, match=r"differs in seed \(3 → 4\).*another folder"):
        run_training(spec, python, overrides=["seed=4"])
    with pytest.raises(UserError, match=r"^device gpu is not known"):
        run_training(spec, tmp_path / "other", device="gpu")


def test_python_shows_progress_and_writes_metrics_with_no_log_attached(
    recipe_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_training(recipe_file, tmp_path / "shown", overrides=["training.steps=6"], device="cpu")
    assert "step 6/6  train loss" in capsys.readouterr().out.replace("  6/", " 6/")
    spec = load(recipe_file, ["training.steps=6"])
    trainer = build.trainer(spec, tmp_path / "bare", World(), build.corpus(spec))
    trainer.run()
    assert curve(tmp_path / "bare") == curve(tmp_path / "shown")


def test_numbers_that_cannot_be_compared_and_other_learning_rates_are_told(
    recipe_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dynamic = "objective={kind: elbo, steps: null, weighting: dynamic}"
    assert train(recipe_file, tmp_path / "a", dynamic, "training.steps=8") == 0
    said = capsys.readouterr().out
    assert "valid NELBO is the bound itself: the two cannot be compared" in said
    assert "valid NELBO " in said
    assert "training.steps was" not in said
    for before, now in ((8, 12), (24, 12)):  # more steps, or fewer
        out = tmp_path / f"{before}-{now}"
        assert train(recipe_file, out, "training.steps=8") == 0
        assert "cannot be compared" not in capsys.readouterr().out
        (out / "recipe.yaml").write_text(dumps(load(recipe_file, [f"training.steps={before}"])))  # as if stopped at 8
        assert train(recipe_file, out, f"training.steps={now}") == 0
        was, is_now = (learning_rate(load(recipe_file, [f"training.steps={n}"]).training, 8) for n in (before, now))
        said = capsys.readouterr().out
        assert said.count("training.steps was") == 1
        assert f"was {before} and is {now}: the learning rate now reaches its lowest at step {now} " in said
        assert f"(at step 9 it is {is_now:.2e}, before it was {was:.2e})" in said
