"""`scdd export`: a run in, a small folder out that loads and samples, and nothing overwritten by mistake."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import scdd as package
from scdd.bundle import folder as bundle
from scdd.cli.main import main

from . import tiny

Export = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder with two checkpoints, of which the newer has a quality head, further facts and `resume/`."""
    run = tmp_path_factory.mktemp("export") / "run"
    tiny.checkpoint(run / "checkpoints" / "step-00000001")
    newest = tiny.checkpoint(run / "checkpoints" / "step-00000002", quality=True)
    found = bundle.read(newest)

    def more(folder: Path) -> None:
        (folder / "resume").mkdir()
        (folder / "resume" / "facts.json").write_text("{}")

    identity = replace(found, step=2, tokens=1234, extra={"note": "kept"})
    bundle.write(newest, identity, found.weights, more=more)
    return run


@pytest.fixture
def run(written: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(written, tmp_path / "run"))


@pytest.fixture
def export(capsys: pytest.CaptureFixture[str]) -> Export:
    def call(*args: str | Path) -> tuple[int, str, str]:
        code = main(["export", *map(str, args)])
        return code, *capsys.readouterr()

    return call


def content(folder: Path) -> dict[str, bytes]:
    return {str(each.relative_to(folder)): each.read_bytes() for each in folder.rglob("*") if each.is_file()}


@pytest.mark.parametrize(
    ("options", "kind", "share"),
    [
        ((), "bfloat16", (0.4, 0.6)),
        (("--weights", "int8"), "int8", (0.25, 0.5)),
        (("--weights", "int4"), "int4", (0.15, 0.5)),
        (("--weights", "float32"), "float32", (0.99, 1.01)),
    ],
)
def test_a_run_becomes_a_folder_that_loads_and_samples(
    export: Export, run: Path, tmp_path: Path, options: tuple[str, ...], kind: str, share: tuple[float, float]
) -> None:
    before, out = content(run), tmp_path / "small"
    code, printed, err = export(run, "--out", out, *options)
    assert (code, err) == (0, "")
    assert {each.name for each in out.iterdir()} == set(bundle.FILES)  # no resume/
    assert content(run) == before
    source, found = bundle.read(run), bundle.read(out)
    assert source.step == 2
    assert found.kind == kind
    for name in ("recipe", "vocab", "vocab_hash", "tokenizer", "step", "tokens", "network", "extra"):
        assert getattr(found, name) == getattr(source, name)
    assert found.extra == {"note": "kept"}
    assert found.weights.keys() == source.weights.keys()
    assert any(name.startswith("quality.") for name in found.weights)

    sizes = [(each / "model.safetensors").stat().st_size for each in (source.folder, out)]
    assert share[0] < sizes[1] / sizes[0] < share[1]
    told = re.findall(r"([\d.]+) MB of (\w+)", printed)
    assert told == [(f"{sizes[0] / 1e6:.2f}", "float32"), (f"{sizes[1] / 1e6:.2f}", kind)]
    worst = max(
        float((found.weights[name] - weight).norm() / weight.norm())
        for name, weight in source.weights.items()
        if weight.dim() == 2 and bool(weight.any())
    )
    if kind == "float32":
        assert "no matrix changed" in printed
    else:
        shown = re.search(r"largest change of a matrix: ([\d.]+)% of its norm \((\S+)\)", printed)
        assert shown is not None
        assert float(shown[1]) / 100 == pytest.approx(worst, abs=1e-4)
        assert 0.0005 < worst < (0.1 if kind == "int4" else 0.01)
        assert shown[2] in source.weights

    lm, original = package.load(out, device="cpu", dtype="float32"), package.load(run, device="cpu")
    assert lm.quality is not None
    assert all(parameter.dtype == torch.float32 for parameter in lm.network.parameters())
    text = lm.generate(1, prompt="The river", length=12, seed=3)[0].text
    assert text.startswith("The river")
    if kind == "float32":
        assert text == original.generate(1, prompt="The river", length=12, seed=3)[0].text


@pytest.mark.parametrize(
    ("options", "kind"), [((), "int8"), (("--weights", "float32"), "float32"), (("--hf",), "bfloat16")]
)
def test_what_is_packed_already_stays_so_unless_told(
    export: Export, run: Path, tmp_path: Path, options: tuple[str, ...], kind: str
) -> None:
    """A model in 8 bits is not made twice its size by passing it on; transformers reads no 8 bits of ours."""
    assert export(run, "--weights", "int8", "--out", tmp_path / "small")[0] == 0
    assert export(tmp_path / "small", "--out", tmp_path / "again", *options)[0] == 0
    packed, again = bundle.read(tmp_path / "small"), bundle.read(tmp_path / "again")
    assert (packed.kind, again.kind) == ("int8", kind)
    for name, weight in packed.weights.items():  # scales are found again to the last digit or so
        torch.testing.assert_close(again.weights[name], weight, rtol=2**-8 if kind == "bfloat16" else 1e-6, atol=0.0)


def test_paths_are_shown_as_they_were_given(
    export: Export, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    _, printed, _ = export("run", "--out", "small")
    assert printed.startswith("run/checkpoints/step-00000002 → small, step 2\n")


def test_an_existing_model_is_replaced_only_by_force(export: Export, run: Path, tmp_path: Path) -> None:
    out = tmp_path / "small"
    out.mkdir()  # an empty folder has nothing to lose
    assert export(run, "--out", out, "--weights", "int8")[0] == 0
    before = content(out)
    code, _, err = export(run, "--out", out)
    assert code == 2
    assert "--force" in err
    assert content(out) == before
    assert export(run, "--out", out, "--force")[0] == 0
    assert bundle.read(out).kind == "bfloat16"
    assert [each.name for each in tmp_path.iterdir() if each.name.startswith(".")] == []


def test_in_place_and_twice(export: Export, run: Path, tmp_path: Path) -> None:
    out = tmp_path / "small"
    assert export(run, "--out", out, "--weights", "int8")[0] == 0
    codes = bundle.read(out).weights
    code, printed, _ = export(out, "--out", out, "--weights", "int8", "--force")
    assert code == 0
    assert "MB of int8 →" in printed
    assert all(torch.allclose(value, codes[name], rtol=1e-6) for name, value in bundle.read(out).weights.items())


@pytest.mark.parametrize("force", [(), ("--force",)])
def test_what_is_no_model_or_could_be_resumed_stays(
    export: Export, run: Path, tmp_path: Path, force: tuple[str, ...]
) -> None:
    (tmp_path / "papers").mkdir()
    (tmp_path / "papers" / "thesis.txt").write_text("years of work")
    (tmp_path / "file").write_text("x")
    before = content(tmp_path)
    for out, reason in (
        (tmp_path / "papers", "is no model"),
        (tmp_path / "file", "is no model"),
        (run, "is no model"),
        (run / "checkpoints" / "step-00000002", "training resumes from"),
    ):
        code, _, err = export(run, "--out", out, *force)
        assert code == 2
        assert reason in err
    assert content(tmp_path) == before


def test_the_card_comes_along_and_stays(export: Export, run: Path, tmp_path: Path) -> None:
    out = tmp_path / "small"
    (run / "README.md").write_text("of the run")
    assert export(run, "--out", out)[0] == 0
    assert (out / "README.md").read_text() == "of the run"
    (run / "checkpoints" / "step-00000002" / "README.md").write_text("of the checkpoint")
    assert export(run, "--out", tmp_path / "other")[0] == 0
    assert (tmp_path / "other" / "README.md").read_text() == "of the checkpoint"

    (out / "README.md").write_text("edited since")
    (out / "samples").mkdir()
    (out / "samples" / "a.txt").write_text("a")
    assert export(run, "--out", out, "--weights", "int8", "--force")[0] == 0
    assert bundle.read(out).kind == "int8"
    assert (out / "README.md").read_text() == "edited since"
    assert (out / "samples" / "a.txt").read_text() == "a"
    (out / "README.md").unlink()
    assert export(run, "--out", out, "--force")[0] == 0
    assert (out / "README.md").read_text() == "of the checkpoint"
    assert (out / "samples" / "a.txt").read_text() == "a"


def test_mistakes(export: Export, run: Path, tmp_path: Path) -> None:
    code, _, err = export(run, "--out", tmp_path / "a", "--weights", "int2")
    assert code == 2
    [line] = err.splitlines()
    assert line.startswith("error: ")
    for said in ("--weights", "int2", "float32", "bfloat16", "int8", "int4"):
        assert said in line
    code, _, err = export(tmp_path / "none", "--out", tmp_path / "a")
    assert code == 2
    assert "check the path" in err
    (tmp_path / "file").write_text("x")
    code, _, err = export(run, "--out", tmp_path / "file" / "a")
    assert code == 2
    assert "cannot be written" in err
    assert not (tmp_path / "a").exists()


def test_a_hub_id(export: Export, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    snapshot = Path(shutil.copytree(run / "checkpoints" / "step-00000002", tmp_path / "snapshot"))
    (tmp_path / "blob").write_text("of the Hub")
    (snapshot / "README.md").symlink_to(tmp_path / "blob")  # as its cache keeps files
    asked: list[str] = []

    def download(name: str, revision: str | None, allow_patterns: list[str], local_files_only: bool) -> str:
        asked.extend(allow_patterns)
        return str(snapshot)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    monkeypatch.chdir(tmp_path)
    assert export("someone/model", "--out", "small")[0] == 0
    assert "README.md" in asked
    assert (tmp_path / "small" / "README.md").read_text() == "of the Hub"
    assert not (tmp_path / "small" / "README.md").is_symlink()
    assert json.loads((tmp_path / "small" / "meta.json").read_text())["weights"] == "bfloat16"
