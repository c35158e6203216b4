"""The checkpoint folder: whole at every moment, and every damage named."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from scdd.bundle.folder import Bundle, Identity, locate, newest_checkpoint, read, staged, write
from scdd.core.errors import UserError
from scdd.core.types import Vocab

VOCAB = Vocab(50, 49)
TOKENIZER = '{"model": {"vocab": {"a": 0, "b": 1}}}'


IDENTITY = Identity(recipe="name: run\n", vocab=VOCAB, tokenizer=TOKENIZER, network={"depth": 2}, extra={"note": "ö"})


def save(
    folder: Path,
    step: int = 3,
    weights: dict[str, Tensor] | None = None,
    tokenizer: str | None = TOKENIZER,
    more: Callable[[Path], None] | None = None,
) -> Path:
    weights = weights or {"layer.weight": torch.full((4, 3), float(step)), "half": torch.ones(2, dtype=torch.bfloat16)}
    identity = replace(IDENTITY, step=step, tokens=100 * step, tokenizer=tokenizer)
    return write(folder, identity, weights, more=more)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    bundle = read(save(tmp_path / "a" / "run"))
    assert bundle.recipe == "name: run\n"
    assert (bundle.vocab, bundle.step, bundle.tokens) == (VOCAB, 3, 300)
    assert (bundle.network, bundle.extra, bundle.tokenizer) == ({"depth": 2}, {"note": "ö"}, TOKENIZER)
    assert set(bundle.versions) == {"scdd", "torch", "python"}
    assert torch.equal(bundle.weights["layer.weight"], torch.full((4, 3), 3.0))
    assert bundle.weights["half"].dtype == torch.bfloat16
    names = {"recipe.yaml", "meta.json", "model.safetensors", "tokenizer.json"}
    assert {each.name for each in bundle.folder.iterdir()} == names
    assert [each.name for each in (tmp_path / "a").iterdir()] == ["run"]  # nothing temporary stays


def test_tied_and_sliced_weights_and_no_tokenizer(tmp_path: Path) -> None:
    base = torch.arange(12.0).view(3, 4)
    bundle = read(save(tmp_path / "run", weights={"a": base, "b": base, "c": base.T[1:]}, tokenizer=None))
    assert torch.equal(bundle.weights["c"], base.T[1:])
    assert torch.equal(bundle.weights["b"], base)
    assert bundle.tokenizer is None


def test_more_files_come_under_the_same_name(tmp_path: Path) -> None:
    def more(folder: Path) -> None:
        (folder / "resume").mkdir()
        (folder / "resume" / "state").write_text("x")

    assert (save(tmp_path / "run", more=more) / "resume" / "state").read_text() == "x"
    save(tmp_path / "run", step=4)  # a later one replaces the folder as a whole
    assert not (tmp_path / "run" / "resume").exists()
    assert read(tmp_path / "run").step == 4


def test_a_failed_write_leaves_the_old_one(tmp_path: Path) -> None:
    save(tmp_path / "run", step=1)
    with pytest.raises(OSError, match="full"), staged(tmp_path / "run") as folder:
        raise OSError(f"no space for {folder}: disk full")
    assert read(tmp_path / "run").step == 1
    assert [each.name for each in tmp_path.iterdir()] == ["run"]


def _killed_at(event: int, folder: Path, step: int) -> bool:
    """Write in a child process that dies without any clean-up at its n-th file operation; whether it did."""
    child = os.fork()
    if child == 0:
        count = 0

        def hook(name: str, _: tuple[Any, ...]) -> None:
            nonlocal count
            if name in ("open", "os.rename", "os.mkdir", "os.remove", "os.rmdir", "shutil.rmtree"):
                count += 1
                if count == event:
                    os._exit(9)

        sys.addaudithook(hook)
        save(folder, step=step)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_killed_at_any_moment_a_loadable_one_is_there(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    save(folder, step=0)
    save(tmp_path / "other", step=0)  # everything lazy is imported before the children count
    last, steps = 0, []
    for event in range(1, 200):
        died = _killed_at(event, folder, step=event)
        bundle = read(folder)
        assert bundle.step in (last, event)
        assert float(bundle.weights["layer.weight"][0, 0]) == bundle.step
        last = bundle.step
        steps.append(last)
        if not died:
            break
    assert not died
    assert last == event
    assert len(set(steps)) > 2  # some deaths came before the rename and some after it
    assert {each.name for each in tmp_path.iterdir()} == {"run", "other"}


def _flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[-1] ^= 255
    file.write_bytes(content)


@pytest.mark.parametrize("name", ["recipe.yaml", "meta.json", "model.safetensors", "tokenizer.json"])
def test_missing_files_are_named(tmp_path: Path, name: str) -> None:
    (save(tmp_path / "run") / name).unlink()
    with pytest.raises(UserError, match=name.replace(".", r"\.")):
        read(tmp_path / "run")


@pytest.mark.parametrize(
    ("name", "harm"),
    [
        ("model.safetensors", _flip),
        ("model.safetensors", lambda file: file.write_bytes(file.read_bytes()[:40])),
        ("model.safetensors", lambda file: file.write_bytes(b"")),
        ("meta.json", lambda file: file.write_text("{")),
        ("meta.json", lambda file: file.write_text("[]")),
        ("meta.json", lambda file: file.write_text('{"schema": 1, "vocab": {"size": 50}}')),
        ("meta.json", lambda file: file.write_bytes(b"\xff\xfe")),
        ("recipe.yaml", lambda file: file.write_bytes(b"\xff\xfe")),
        ("tokenizer.json", lambda file: file.write_text("{")),
        ("tokenizer.json", lambda file: file.write_text('{"model": {"vocab": {"a": 1, "b": 0}}}')),
    ],
)
def test_damaged_files_are_named(tmp_path: Path, name: str, harm: Any) -> None:
    harm(save(tmp_path / "run") / name)
    with pytest.raises(UserError, match=name.replace(".", r"\.")):
        read(tmp_path / "run", verify=name != "model.safetensors" or harm is _flip)


def test_a_newer_format_asks_for_an_upgrade(tmp_path: Path) -> None:
    file = save(tmp_path / "run") / "meta.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"schema": 99}))
    with pytest.raises(UserError, match="upgrade"):
        read(tmp_path / "run")


def test_another_vocabulary_is_refused(tmp_path: Path) -> None:
    bundle: Bundle = read(save(tmp_path / "run"))
    bundle.check(VOCAB, json.dumps(json.loads(TOKENIZER), indent=4))  # formatting is not meaning
    with pytest.raises(UserError, match="50 ids and mask 49, not with 60"):
        bundle.check(Vocab(60, 49))
    with pytest.raises(UserError, match="another tokenizer"):
        bundle.check(VOCAB, TOKENIZER.replace("b", "c"))
    bare = replace(IDENTITY, tokenizer=None)
    assert bare.vocab_hash != replace(bare, vocab=Vocab(50, 0)).vocab_hash


def test_a_run_is_its_newest_complete_checkpoint(tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert newest_checkpoint(run) is None
    for name in ("step-00000009", "step-00000010", "step-100000000"):
        save(run / "checkpoints" / name)
    for name in ("step-00000011.old", "step-200000000", ".step-300000000.writing"):
        (run / "checkpoints" / name).mkdir()  # another name, incomplete, being written
    newest = run / "checkpoints" / "step-100000000"
    assert newest_checkpoint(run) == locate(run) == newest
    assert read(run).folder == newest
    save(run)  # what has a meta.json of its own is itself the model
    assert locate(run) == run


def test_no_such_folder(tmp_path: Path) -> None:
    assert locate(tmp_path / "none") is None
    with pytest.raises(UserError, match="check the path"):
        read(tmp_path / "none")


def test_hub_ids(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    folder, asked = save(tmp_path / "run"), []

    def download(name: str, revision: str | None, allow_patterns: list[str], local_files_only: bool) -> str:
        asked.append((name, revision, "model.safetensors" in allow_patterns))
        return str(folder)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    assert read("someone/model").step == 3
    assert read("someone/model@v1").step == 3
    # what it is before the large files of it
    assert asked == [("someone/model", revision, large) for revision in (None, "v1") for large in (False, True)]

    def fail(*_: Any, **__: Any) -> str:
        raise ConnectionError("no route\nlong story")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)
    for cached, said in ((False, "no route"), (True, "cannot be reached, and the cache does not have it")):
        monkeypatch.setattr("scdd.bundle.hub.cached_only", lambda cached=cached: cached)
        with pytest.raises(UserError, match=rf"someone/model.*{said}"):
            read("someone/model")
