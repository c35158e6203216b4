"""README's scripts (its `sh` blocks) run from above to below as they are printed, on small data and with small trainings.

The Hub is a stand-in with a small network, and what installs (`make demo`, pip) runs with `pytest -m slow`.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests import hub_stand_in
from tests.docs.pages import ROOT, blocks
from tests.docs.test_readme import articles, on_the_path

SMALL = "--set training.steps=2 --set training.batch_size=4 --set training.validate_batches=1 --set data.length=16"
NETWORK = (
    "--set model.size=custom --set model.depth=1 --set model.heads=2 --set model.width=32 --set model.cond_width=8"
)
ONE_AT_A_TIME = "--set training.micro_batch_size=4 --set training.compile=false --set training.cuda_graphs=false"
ADDED = {
    "scdd train wiki-small": f"{SMALL} {NETWORK}",
    "torchrun": f"{SMALL} {NETWORK} {ONE_AT_A_TIME}",
    "scdd train adapt/": f"{SMALL} {ONE_AT_A_TIME}",
}
"""What makes the trainings small; everything else runs as it stands there."""
SCRIPTS = [block.code for block in blocks(ROOT / "README.md", "sh")]


def lines(script: str) -> list[str]:
    return [re.sub(r"\s+#.*", "", line) for line in script.splitlines() if line.strip()]


def find(command: str) -> list[str]:
    [script] = [script for script in SCRIPTS if command in script]
    return lines(script)


def run(line: str, place: Path, **around: str) -> None:
    [more] = [more for start, more in ADDED.items() if line.startswith(start)] or [""]
    line = line.replace("--nproc-per-node 8", "--nproc-per-node 2")
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    around |= {"PATH": f"{place / 'bin'}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    around |= {"CUDA_VISIBLE_DEVICES": "", "HF_HOME": str(place / "hub")}
    done = subprocess.run(
        ["bash", "-c", f"{line} {more}"], cwd=place, env={**kept, **around}, capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0, f"{line}: {done.stderr[:3000]}"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("scripts")
    on_the_path(folder / "bin" / "scdd", "scdd")
    on_the_path(folder / "bin" / "torchrun", "torch.distributed.run")
    (folder / "articles").mkdir()
    articles(folder / "articles" / "a.jsonl.xz")
    return folder


def test_every_script_is_one_of_these() -> None:
    assert [lines(script)[0] for script in SCRIPTS] == [
        *("make demo", "pip install torch"),
        *(find(start)[0] for start in ("--train-tokenizer", "scdd convert")),
    ]


@pytest.mark.dist
def test_preparing_and_training(place: Path) -> None:
    prepare, *trainings = find("--train-tokenizer")
    run(prepare, place)
    (place / "owt-shards").symlink_to("data/wiki8k")
    for line in trainings:
        run(line, place)
    assert all((place / name / "checkpoints").is_dir() for name in ("run", "owt"))


def test_adapting_a_pretrained_model(place: Path) -> None:
    decoders = pytest.importorskip("tests.test_convert_decoders", exc_type=ImportError)
    source = decoders.folder_of(place / "source", decoders.model_of("llama"))
    with hub_stand_in.running() as hub:
        files = {path.name: path.read_bytes() for path in source.iterdir()}
        repository = hub_stand_in.Repository(private=False)
        repository.commit("main", files, "a small network")
        convert, *others = find("scdd convert")
        hub.repositories[convert.split()[2]] = repository
        run(convert, place, HF_ENDPOINT=hub.address, HF_HUB_DISABLE_XET="1")
    for line in others:
        run(line, place)
    assert (place / "runs" / "smollm2" / "checkpoints").is_dir()


@pytest.mark.slow
def test_setting_up(tmp_path: Path) -> None:
    """Needs a package index."""
    subprocess.run(["git", "clone", "-q", str(ROOT), str(tmp_path / "scdd")], check=True)
    for line in find("make demo"):
        subprocess.run(["bash", "-c", line], cwd=tmp_path / "scdd", check=True)
    assert (tmp_path / "scdd" / "demo.html").exists()
