"""Checkpoints are written in the background and a tensor at a time, and are the same bytes as otherwise."""

from __future__ import annotations

import errno
import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from scdd.assemble import training as build
from scdd.bundle import stream
from scdd.core import UserError
from scdd.recipe.load import load
from scdd.training.parallel import World
from scdd.training.shards import Piece, own_pieces, stored, write_pieces
from scdd.training.trainer import Trainer

from .conftest import Launch, said


def test_a_file_written_by_the_tensor_is_the_usual_one(tmp_path: Path) -> None:
    tensors = {
        f"{name}.{kind}": torch.arange(6).view(2, 3).to(dtype)
        for dtype, kind in stream.KINDS.items()
        for name in ("b", "a.é", 'quote"')
    }
    tensors |= {"number": torch.tensor(3.0), "empty": torch.zeros(0, 4), "turned": torch.arange(6.0).view(2, 3).T}
    save_file(
        {name: each.contiguous() for name, each in tensors.items()}, tmp_path / "usual", metadata={"format": "pt"}
    )
    shapes = {name: (each.dtype, tuple(each.shape)) for name, each in tensors.items()}
    digest = stream.write(tmp_path / "ours", shapes, tensors.__getitem__, {"format": "pt"})
    assert (tmp_path / "ours").read_bytes() == (tmp_path / "usual").read_bytes()
    from scdd.bundle.folder import sha256_of

    assert digest == sha256_of(tmp_path / "usual")
    with pytest.raises(FileExistsError):
        stream.write(tmp_path / "ours", shapes, tensors.__getitem__)
    with pytest.raises(ValueError, match=r"number is .*float64"):
        stream.write(tmp_path / "wrong", shapes, {**tensors, "number": torch.tensor(3.0).double()}.__getitem__)


def parts(folder: Path, matrix: torch.Tensor, cuts: list[tuple[slice, slice]]) -> None:
    for number, (rows, columns) in enumerate(cuts):
        piece = Piece(matrix[rows, columns].contiguous(), (rows.start or 0, columns.start or 0))
        write_pieces(folder / f"{number}.safetensors", {"matrix": piece}, placed=True)


def test_any_box_is_read_from_files_cut_in_any_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scdd.training.shards.AT_ONCE", 7)  # two rows at a time
    matrix = torch.arange(35.0).view(7, 5)
    everything = slice(0, 5)
    for number, cuts in enumerate(
        (
            [(slice(0, 7), everything)],
            [(slice(0, 4), everything), (slice(4, 7), everything)],
            [(slice(0, 4), slice(0, 2)), (slice(0, 4), slice(2, 5)), (slice(4, 7), everything)],
        )
    ):
        folder = tmp_path / str(number)
        folder.mkdir()
        parts(folder, matrix, cuts)
        with stored(folder) as files:
            assert files.names == {"matrix"}
            assert files.shape("matrix") == (7, 5)
            assert torch.equal(files.read("matrix"), matrix)
            for begin in range(7):
                for end in range(begin + 1, 8):
                    box = (begin, 1), (end - begin, 3)
                    assert torch.equal(files.read("matrix", box), matrix[begin:end, 1:4])
            with pytest.raises(ValueError, match="matrix is not all there"):
                files.read("matrix", ((5, 0), (3, 5)))


def test_tensors_of_nothing_and_single_numbers_come_back(tmp_path: Path) -> None:
    tensors = {"none": torch.zeros(0, 3), "one": torch.tensor(2.5), "some": torch.arange(3)}
    assert own_pieces(tensors, is_main=False) == {}
    write_pieces(tmp_path / "a.safetensors", own_pieces(tensors, is_main=True), placed=True)
    with stored(tmp_path) as files:
        for name, each in tensors.items():
            assert torch.equal(files.read(name).view(each.shape), each)


def test_what_files_say_of_their_places_is_checked(tmp_path: Path) -> None:
    for number, places in enumerate(
        ('{"a": {"saved_offsets": [-1]}}', '{"a": 3}', "[]", '{"a": {"saved_offsets": [0, 0]}}')
    ):
        folder = tmp_path / str(number)
        folder.mkdir()
        save_file({"a": torch.zeros(3)}, folder / "x.safetensors", metadata={"DCP_SHARDING_INFO": places})
        with pytest.raises(ValueError, match="a lies nowhere"), stored(folder):
            pass


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_torch_reads_our_shards_and_we_read_torchs(tmp_path: Path) -> None:
    """Checkpoints of earlier versions were written by torch.distributed.checkpoint."""
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter
    from torch.distributed.checkpoint.state_dict_loader import load as read
    from torch.distributed.checkpoint.state_dict_saver import save

    tensors = {"a": torch.arange(12.0).view(4, 3), "b": torch.arange(3)}
    save(
        tensors, storage_writer=HuggingFaceStorageWriter(str(tmp_path / "theirs"), save_distributed=True), no_dist=True
    )
    with stored(tmp_path / "theirs") as files:
        assert all(torch.equal(files.read(name), each) for name, each in tensors.items())
    (tmp_path / "ours").mkdir()
    write_pieces(tmp_path / "ours" / "1.safetensors", own_pieces(tensors, is_main=True), placed=True)
    empty = {name: torch.zeros_like(each) for name, each in tensors.items()}
    read(empty, storage_reader=HuggingFaceStorageReader(str(tmp_path / "ours")), no_dist=True)
    assert all(torch.equal(empty[name], each) for name, each in tensors.items())


# -- in the background ------------------------------------------------------------------------------------------------


@pytest.fixture
def make(recipe_file: Path, tmp_path: Path) -> Callable[..., Trainer]:
    def made(name: str, *sets: str) -> Trainer:
        spec = load(recipe_file, sets)
        return build.trainer(spec, tmp_path / name, World(), build.corpus(spec))

    return made


def steps(trainer: Trainer, count: int) -> None:
    batches = iter(trainer.loader)
    for _ in range(count):
        trainer.advance(next(batches))


def held(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """From now on files are written when the event is set."""
    go, write = threading.Event(), stream.write

    def patient(*args: Any) -> str:
        assert go.wait(20)
        return write(*args)

    monkeypatch.setattr(stream, "write", patient)
    return go


def test_steps_go_on_while_it_is_written_and_do_not_change_it(
    make: Callable[..., Trainer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = make("plain", "training.background_save=false")
    steps(plain, 2)
    plain.save()
    assert plain.checkpoints.latest() is not None, "it waits for the disk"
    quick = make("quick")
    steps(quick, 2)
    go = held(monkeypatch)
    quick.save()
    before = quick.module.state_dict()["network.output.weight"].clone()
    steps(quick, 1)
    assert not torch.equal(quick.module.state_dict()["network.output.weight"], before)
    assert quick.checkpoints.latest() is None
    go.set()
    quick.checkpoints.wait()
    mine, theirs = (tmp_path / name / "checkpoints" / "step-00000002" for name in ("quick", "plain"))
    for name in ("model.safetensors", "resume/state.safetensors"):
        assert (mine / name).read_bytes() == (theirs / name).read_bytes()
    assert quick.checkpoints.written == [mine]


def test_a_save_waits_for_the_one_before(make: Callable[..., Trainer], monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = make("run")
    steps(trainer, 1)
    go = held(monkeypatch)
    trainer.save()
    steps(trainer, 1)
    threading.Timer(0.2, go.set).start()
    trainer.save()
    latest = trainer.checkpoints.latest()
    assert latest is not None
    assert latest.name == "step-00000001"
    trainer.checkpoints.wait()
    assert [path.name for path in trainer.checkpoints.written] == ["step-00000001", "step-00000002"]


def test_a_disk_that_fills_up_meanwhile_ends_the_run_soon(
    make: Callable[..., Trainer], monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = make("run", "training.save_every=2", "training.steps=100000", "training.log_every=100000")

    def full(*_: Any) -> str:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(stream, "write", full)
    with pytest.raises(
        UserError, match=r"step-0+2 could not be written \(No space left on device\): make room.*from the start"
    ):
        trainer.run()
    assert trainer.step < 1000
    assert list(trainer.checkpoints.folder.iterdir()) == []


def test_shards_of_another_network_are_refused_by_name(make: Callable[..., Trainer]) -> None:
    trainer = make("run")
    steps(trainer, 1)
    trainer.save()
    trainer.checkpoints.wait()
    latest = trainer.checkpoints.latest()
    assert latest is not None
    state, tensors = latest / "resume" / "state.safetensors", trainer.state()
    pieces = own_pieces(load_file(state), is_main=True)
    state.unlink()
    names = sorted(pieces)
    for number, some in enumerate((names[::2], names[1::2])):
        write_pieces(state.with_name(f"{number}.safetensors"), {name: pieces[name] for name in some}, placed=True)
    expected = {name: each.clone() for name, each in tensors.items()}
    for each in tensors.values():
        each.detach().zero_()
    trainer.checkpoints.load(latest, tensors)
    assert all(torch.equal(each, expected[name]) for name, each in tensors.items())
    for change, name in (({"model.more": torch.zeros(2)}, "model.more"), ({"ema.more": torch.zeros(2)}, "ema.more")):
        with pytest.raises(
            UserError, match=rf"is of another network \({name} is in one of the two alone\): resume with"
        ):
            trainer.checkpoints.load(latest, {**tensors, **change})
    fewer = {name: each for name, each in tensors.items() if name != "model.network.output.weight"}
    with pytest.raises(UserError, match=r"another network \(model\.network\.output\.weight is in one"):
        trainer.checkpoints.load(latest, fewer)
    wider = {**tensors, "model.network.output.weight": torch.zeros(3, 3)}
    with pytest.raises(UserError, match=r"output\.weight has shape \(.*, the network \(3, 3\): resume with the recipe"):
        trainer.checkpoints.load(latest, wider)


# -- memory -----------------------------------------------------------------------------------------------------------


@pytest.mark.dist
@pytest.mark.parametrize("kind", ["fsdp", "hsdp"])
def test_saving_takes_a_copy_of_the_shard_and_one_tensor(launch: Launch, tmp_path: Path, kind: str) -> None:
    out, counts = tmp_path / "run", tmp_path / "counts"
    sets = ["training.steps=2", f"training.parallel={kind}", "training.validate_batches=1"]
    assert launch(out, 4, sets, local=2, hook=["hooks:count_memory", str(counts)]) == [0] * 4, said(tmp_path, out)
    for rank in range(4):
        found = json.loads(Path(f"{counts}.{rank}").read_text())
        copies = 2 if kind == "hsdp" else 1  # which take turns, so that each writes a part of its shard
        assert found["most"] > 0.7 * found["shard"] / copies, "it has counted"
        assert found["most"] < 1.2 * found["shard"] / copies + found["largest"]
    files = [load_file(each) for each in sorted(out.rglob("shard-*.safetensors"))]
    assert len(files) == 4
    with stored(next(out.rglob("resume"))) as whole:
        for name in whole.names:
            parts = sum(each[name].numel() for each in files if name in each)
            assert parts == torch.Size(whole.shape(name)).numel(), f"{name} is written once"


@pytest.mark.slow
@pytest.mark.dist
def test_a_network_of_200_mb_is_saved_in_little_more_than_a_shard(launch: Launch, tmp_path: Path) -> None:
    out, counts = tmp_path / "run", tmp_path / "counts"
    sets = ["training.steps=1", "training.parallel=fsdp", "training.validate_batches=1", "training.batch_size=4"]
    sets.append("model={kind: dit, size: custom, depth: 8, width: 704, heads: 8, cond_width: 64}")
    assert launch(out, 4, sets, hook=["hooks:watch_memory", str(counts)]) == [0] * 4, said(tmp_path, out)
    weights = next(out.rglob("model.safetensors")).stat().st_size
    assert weights > 190e6
    for rank in range(4):
        found = json.loads(Path(f"{counts}.{rank}").read_text())
        assert 0.9 * found["shard"] < found["most"] < 1.2 * found["shard"] + found["largest"], found
