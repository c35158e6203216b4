"""Run folders that a disk, a quota or another process has harmed: the run goes on, or one sentence says why it cannot."""

from __future__ import annotations

import os
import random
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from scdd.cli.main import main
from scdd.core.errors import UserError
from scdd.data.files import locked
from scdd.evals.measure.store import FOLDER
from scdd.evals.report.sections import training_curves
from scdd.training.log import METRICS, Lines, read_metrics
from scdd.training.parallel import World
from scdd.training.verify import sound_checkpoint

from ..training.conftest import RECIPE, curve, weights
from ..training.conftest import written as texts

OLD, NEW = "step-00000005", "step-00000010"


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written_recipe(tmp_path_factory.mktemp("recipe"))


def written_recipe(folder: Path) -> Path:
    text = RECIPE.format(text=texts(folder)) + "  final_fraction: 1.0\n"  # other steps, the same learning rates
    (folder / "small.yaml").write_text(text, encoding="utf-8")
    return folder / "small.yaml"


def train(recipe: Path, out: Path, steps: int, *changes: str) -> int:
    sets = [part for each in (f"training.steps={steps}", *changes) for part in ("--set", each)]
    return main(["train", str(recipe), "--out", str(out), "--device", "cpu", *sets])


@pytest.fixture(scope="module")
def trained(recipe: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with the checkpoints of steps 5 and 10."""
    out = tmp_path_factory.mktemp("trained") / "run"
    assert train(recipe, out, 10) == 0
    return out


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "run"))


@pytest.fixture(scope="module")
def calm(recipe: Path, trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the run becomes at step 12 if nothing happens."""
    out = Path(shutil.copytree(trained, tmp_path_factory.mktemp("calm") / "run"))
    assert train(recipe, out, 12) == 0
    return out


def same(a: Path, b: Path) -> bool:
    one, two = weights(a), weights(b)
    return one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)


def flip(file: Path, chance: random.Random) -> None:
    content = bytearray(file.read_bytes())
    content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
    file.write_bytes(content)


def names(run: Path) -> set[str]:
    return {path.name for path in (run / "checkpoints").iterdir()}


# -- bit rot --------------------------------------------------------------------------------------------------------


def noticed(run: Path, file: Path, chance: random.Random) -> None:
    """Flip a bit of the newest checkpoint; it is noticed, and made good again."""
    newest, whole = run / "checkpoints" / NEW, file.read_bytes()
    flip(file, chance)
    found, notices = sound_checkpoint(run, World())
    assert found == run / "checkpoints" / OLD, file.name
    assert len(notices) == 1
    (run / "checkpoints" / f"{NEW}.damaged").rename(newest)
    file.write_bytes(whole)


def inputs(place: Path, dice: random.Random) -> Iterator[Callable[[], None]]:
    (place / "recipe").mkdir()
    assert train(written_recipe(place / "recipe"), place / "run", 10) == 0
    files = sorted(path for path in (place / "run" / "checkpoints" / NEW).rglob("*") if path.is_file())
    while True:
        yield lambda: noticed(place / "run", dice.choice(files), dice)


def test_every_flipped_bit_is_noticed(run: Path) -> None:
    chance, newest = random.Random(0), run / "checkpoints" / NEW
    files = sorted(path for path in newest.rglob("*") if path.is_file())
    assert len(files) == 7, "each of them is checked, the digests too"
    for number in range(28):
        noticed(run, files[number % len(files)], chance)
    assert sound_checkpoint(run, World()) == (newest, [])


def test_a_run_goes_on_from_the_checkpoint_before(
    recipe: Path, run: Path, calm: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flip(run / "checkpoints" / NEW / "resume" / "state.safetensors", random.Random(1))
    assert train(recipe, run, 12) == 0
    said = capsys.readouterr().out
    assert f"{NEW} is damaged (resume/state.safetensors has another checksum than when it was written)" in said
    assert f"resuming from {run / 'checkpoints' / OLD}" in said
    assert same(run, calm)
    assert [line["step"] for line in curve(run)] == sorted(line["step"] for line in curve(run)), "no step twice"
    assert names(run) == {NEW, f"{NEW}.damaged", "step-00000012"}
    assert train(recipe, run, 12) == 0
    assert "damaged" not in capsys.readouterr().out


# -- damaged newest checkpoints -------------------------------------------------------------------------------------


def written(name: str, content: bytes | None) -> Callable[[Path], None]:
    """Replaces a file of the newest checkpoint, as one of an older version, which has no digests; None removes it."""

    def harm(run: Path) -> None:
        (run / "checkpoints" / NEW / "resume" / "digests.json").unlink()
        file = run / "checkpoints" / NEW / name
        file.unlink() if content is None else file.write_bytes(content)

    return harm


def cut(run: Path) -> None:
    written(
        "resume/state.safetensors", (run / "checkpoints" / NEW / "resume" / "state.safetensors").read_bytes()[:900]
    )(run)


def stray(run: Path) -> None:
    (run / "checkpoints" / "step-00000099").mkdir()


def copied(run: Path) -> None:
    shutil.copytree(run / "checkpoints" / NEW, run / "checkpoints" / "step-00000099")


HARMS: dict[str, Callable[[Path], None]] = {
    "meta: no JSON": written("meta.json", b"{"),
    "meta: not UTF-8": written("meta.json", b"\xff\xfe{"),
    "meta: a list": written("meta.json", b"[]"),
    "meta: empty": written("meta.json", b"{}"),
    "meta: other types": written("meta.json", b'{"schema": 1, "vocab": 3, "network": null}'),
    "meta: deep": written("meta.json", b"[" * 100_000),
    "meta: missing": written("meta.json", None),
    "facts: no JSON": written("resume/facts.json", b'{"step": 10, '),
    "facts: empty": written("resume/facts.json", b"{}"),
    "facts: other types": written("resume/facts.json", b'{"step": 10, "tokens": [], "ema_updates": 1, "seconds": 0}'),
    "facts: missing": written("resume/facts.json", None),
    "state: missing": written("resume/state.safetensors", None),
    "state: cut": cut,
    "weights: missing": written("model.safetensors", None),
    "weights: others": written("model.safetensors", b"x"),
    "recipe: missing": written("recipe.yaml", None),
    "a stray folder": stray,
    "a copy under another step": copied,
}


@pytest.mark.parametrize("name", HARMS)
def test_a_damaged_newest_checkpoint_is_set_aside(name: str, run: Path) -> None:
    HARMS[name](run)
    found, notices = sound_checkpoint(run, World())
    newer = "step-00000099" in f"{notices}"
    assert found == run / "checkpoints" / (NEW if newer else OLD)
    assert len(notices) == 1
    assert "\n" not in notices[0]
    assert f"going on from {found}" in notices[0]
    assert sound_checkpoint(run, World()) == (found, [])


@pytest.mark.parametrize("name", ["meta: empty", "a copy under another step"])
def test_the_command_goes_on_behind_a_damaged_checkpoint(name: str, recipe: Path, run: Path, calm: Path) -> None:
    HARMS[name](run)
    assert train(recipe, run, 12) == 0
    for aside in (run / "checkpoints").glob("*.damaged"):
        shutil.rmtree(aside)
    assert same(run, calm)


def test_a_run_with_no_other_checkpoint_is_refused_and_left_as_it_is(
    recipe: Path, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in (OLD, NEW):
        (run / "checkpoints" / name / "resume" / "facts.json").write_text("{}")
    assert train(recipe, run, 12) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert f"{NEW} is damaged (resume/facts.json has another checksum" in said
    assert "restore it from a copy" in said
    assert names(run) == {OLD, NEW}


def test_checkpoints_of_older_versions_have_no_digests_and_go_on(recipe: Path, run: Path, calm: Path) -> None:
    for name in (OLD, NEW):
        (run / "checkpoints" / name / "resume" / "digests.json").unlink()
    assert train(recipe, run, 12) == 0
    assert same(run, calm)


def test_a_run_that_started_from_another_model_finds_its_network_again(
    recipe: Path, trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changes = (f"training.start_from={trained}", "model={kind: pretrained}", "training.save_every=2")
    assert train(recipe, tmp_path / "run", 4, *changes) == 0
    meta = tmp_path / "run" / "checkpoints" / "step-00000004" / "meta.json"
    meta.write_text(meta.read_text().replace('"depth": 2', '"depth": 3'))
    assert train(recipe, tmp_path / "run", 5, *changes) == 0
    assert "step-00000004 is damaged (meta.json has another checksum" in capsys.readouterr().out


def test_a_run_killed_before_its_recipe_was_written_begins_anew(recipe: Path, tmp_path: Path) -> None:
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    assert train(recipe, tmp_path / "run", 1) == 0


# -- a full disk ----------------------------------------------------------------------------------------------------


@contextmanager
def quota(size: int) -> Iterator[None]:
    """No file may grow beyond `size` bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("file", ["model.safetensors", "resume/state.safetensors"])
def test_a_checkpoint_that_cannot_be_written_leaves_the_last_good_one(
    file: str, recipe: Path, run: Path, calm: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    size = (run / "checkpoints" / NEW / file).stat().st_size
    with quota(size - 1000):
        assert train(recipe, run, 12) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "step-00000012 could not be written (File too large): make room" in said
    assert f"goes on from {run / 'checkpoints' / NEW}" in said
    assert names(run) == {OLD, NEW}
    assert train(recipe, run, 12) == 0
    assert same(run, calm)


def test_an_export_that_cannot_be_written_is_a_sentence(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with quota(1000):
        assert main(["export", str(run), "--out", str(tmp_path / "small")]) == 2
    assert "File too large" in capsys.readouterr().err
    assert not list(tmp_path.glob("*small*"))


@pytest.mark.parametrize("content", [b"\xff\xfe", b"{}", b""])
def test_a_damaged_tokenizer_of_the_run_is_a_sentence(
    content: bytes, recipe: Path, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (run / "tokenizer.json").write_bytes(content)
    capsys.readouterr()
    assert train(recipe, run, 12) == 2
    assert "tokenizer.json" in capsys.readouterr().err


def test_digests_that_leave_a_file_out_are_damage(run: Path) -> None:
    (run / "checkpoints" / NEW / "resume" / "digests.json").write_text("{}")
    checkpoint, notices = sound_checkpoint(run, World())
    assert checkpoint is not None
    assert checkpoint.name == OLD
    assert "does not list" in notices[0]


def test_a_damaged_measurement_is_a_sentence(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (run / FOLDER).mkdir(exist_ok=True)
    for content in (
        b"\xff",
        b"[]",
        b'{"kind": "likelihood"}',
        b'{"kind": 1, "label": 2, "settings": 3, "result": 4, "made": 5}',
    ):
        (run / FOLDER / "likelihood-0.json").write_bytes(content)
        assert main(["report", str(run), "--out", str(tmp_path / "page.html")]) == 2
        assert "likelihood-0.json is damaged" in capsys.readouterr().err


def test_a_metrics_line_cut_inside_a_character_is_dropped(recipe: Path, run: Path, calm: Path) -> None:
    with (run / METRICS).open("ab") as file:
        file.write('{"step": 9, "sample": "né'.encode()[:-1])
    assert train(recipe, run, 12) == 0
    assert same(run, calm)
    assert curve(run) == curve(calm)


def test_texts_with_other_line_separators_survive_a_resume(tmp_path: Path) -> None:
    text = "one\u2028two\u0085three\x0bfour\rfive"
    first = Lines(tmp_path)
    first.text(10, "sample", text)
    first.close()
    with (tmp_path / METRICS).open("ab") as file:
        file.write(b'{"step": 10, "loss": 1.0}')  # complete, but for its end
    again = Lines(tmp_path, step=10)
    again.numbers(20, {"loss": 2.0})
    again.close()
    assert read_metrics(tmp_path) == [
        {"step": 10, "sample": text},
        {"step": 10, "loss": 1.0},
        {"step": 20, "loss": 2.0},
    ]


def test_a_report_reads_a_curve_whose_last_line_is_cut(run: Path, tmp_path: Path) -> None:
    whole = training_curves([run])
    with (run / METRICS).open("ab") as file:
        file.write(b'{"step": 11, "valid_nelbo": 3.')
    assert training_curves([run]) == whole != {}
    with (run / METRICS).open("ab") as file:
        file.write(b'"\xc3\n[1]\n{"valid_nelbo": 1}\n{"step": 1, "valid_nelbo": "x"}\n')
    assert training_curves([run]) == whole
    assert main(["report", str(run), "--out", str(tmp_path / "report.html")]) == 0


def test_a_metrics_file_that_cannot_grow_is_named(tmp_path: Path) -> None:
    lines = Lines(tmp_path)
    with quota(10), pytest.raises(OSError, match=r"File too large.*metrics\.jsonl"):
        lines.numbers(1, {"loss": 1.0})
    lines.close()
    Lines(tmp_path).close()
    assert (tmp_path / METRICS).read_bytes() == b""


# -- two at once ----------------------------------------------------------------------------------------------------


def test_a_folder_is_trained_in_by_one_process(recipe: Path, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*")}
    with locked(run):
        assert train(recipe, run, 12) == 2
    assert f"--out {run} is in use by another process: wait for it" in capsys.readouterr().err
    assert {path: path.stat().st_mtime_ns for path in run.rglob("*")} == before
    assert train(recipe, run, 12) == 0


def test_a_refused_second_start_takes_nothing_from_the_first(
    recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first has just begun: there is a tokenizer, and no recipe yet."""
    (tmp_path / "run").mkdir()
    with locked(tmp_path / "run"):
        (tmp_path / "run" / "tokenizer.json").write_text("{}")
        assert train(recipe, tmp_path / "run", 1) == 2
    assert (tmp_path / "run" / "tokenizer.json").exists()
    assert train(recipe, tmp_path / "a" / "b" / "c", 1, "data.length=10000000") == 2
    assert not (tmp_path / "a").exists(), "nor does a refused start leave folders"


def test_the_lock_dies_with_its_process(tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from scdd.data.files import locked\n"
        "with locked(Path(sys.argv[1])): print('held', flush=True); time.sleep(60)"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(UserError, match="in use by another process"), locked(tmp_path):
            pass
        os.kill(holder.pid, signal.SIGKILL)
        holder.wait(20)
    with locked(tmp_path):
        assert list(tmp_path.iterdir()) == []
