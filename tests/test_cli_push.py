"""`scdd push` and loading by a Hub id, against a Hub on this machine: what arrives is what was written, and loads."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import scdd as package
from scdd.cli.main import main

from . import hub_stand_in, tiny
from .hub_stand_in import Hub

# huggingface_hub reads its endpoint when it is imported, hence a process of its own. It runs the commands that it is
# handed, each with its token, and prints what each printed and returned.
SCRIPT = """
import contextlib, io, json, os, sys
from scdd.cli.main import main
ran = []
for token, *argv in json.load(sys.stdin):
    os.environ.pop("HF_TOKEN", None)
    if token:
        os.environ["HF_TOKEN"] = token
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(argv)
    ran.append([code, out.getvalue(), err.getvalue()])
print(json.dumps(ran))
"""


def run(commands: list[list[str | None]], endpoint: str, home: Path) -> list[tuple[int, str, str]]:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("HF_")}
    environment |= {"HF_ENDPOINT": endpoint, "HF_HOME": str(home), "HF_HUB_DISABLE_XET": "1", "OMP_NUM_THREADS": "1"}
    environment |= {"PYTHONPATH": os.pathsep.join(sys.path), "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
    ended = subprocess.run(
        [sys.executable, "-c", SCRIPT], env=environment, input=json.dumps(commands), capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    return [tuple(each) for each in json.loads(ended.stdout.splitlines()[-1])]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("push")
    tiny.checkpoint(place / "run" / "checkpoints" / "step-00000002")
    (place / "run" / "README.md").write_text("---\nlicense: mit\n---\n\n# Ours\n")
    return place


@pytest.fixture(scope="module")
def hub() -> Iterator[Hub]:
    with hub_stand_in.running() as hub:
        yield hub


@pytest.fixture(scope="module")
def ran(place: Path, hub: Hub) -> dict[str, tuple[int, str, str]]:
    source, token = str(place / "run"), hub_stand_in.TOKEN
    push = ["push", source]
    draw = ["sample", "--length", "8", "--seed", "5", "--device", "cpu", "--model"]
    commands: dict[str, list[Any]] = {
        "push": [token, *push, "someone/model", "--weights", "float32"],
        "again": [
            token,
            *push,
            "someone/model",
            "--bundle",
            "--weights",
            "int8",
            "--revision",
            "small",
            "--message",
            "8 bits",
        ],
        "private": [token, *push, "someone/secret", "--private"],
        "anonymous": [None, *push, "someone/other"],
        "unknown": ["hf_wrong", *push, "someone/other"],
        "foreign": [token, *push, "somebody/other"],
        "name": [token, *push, "a/b/c"],
        "int8": [token, *push, "someone/other", "--weights", "int8"],
        "sample": [None, *draw, "someone/model"],
        "revision": [None, *draw, "someone/model@small"],
        "hidden": [None, *draw, "someone/secret"],
        "shown": [token, *draw, "someone/secret"],
    }
    return dict(zip(commands, run(list(commands.values()), hub.address, place / "home"), strict=True))


def test_what_arrives_is_what_export_writes(place: Path, hub: Hub, ran: dict[str, tuple[int, str, str]]) -> None:
    code, out, err = ran["push"]
    assert (code, err) == (0, "")
    assert f"{hub.address}/someone/model" in out
    assert "scdd sample --model someone/model" in out
    repository = hub.repositories["someone/model"]
    assert not repository.private
    files = repository.commits[repository.branches["main"]]
    assert main(["export", str(place / "run"), "--out", str(place / "model"), "--hf", "--weights", "float32"]) == 0
    written = {each.name: each.read_bytes() for each in (place / "model").iterdir()}
    assert {name: content for name, content in files.items() if name not in (".gitattributes", "README.md")} == {
        name: content for name, content in written.items() if name != "README.md"
    }
    card, own = files["README.md"].decode(), written["README.md"].decode()
    assert card == own.replace('"model"', '"someone/model"').replace("--model model", "--model someone/model")
    assert "license: mit" in card
    assert any(asked.startswith("PUT /lfs/") for asked in hub.asked)


def test_push_then_load(place: Path, hub: Hub, ran: dict[str, tuple[int, str, str]]) -> None:
    code, text, err = ran["sample"]
    assert (code, err) == (0, "")
    assert text.strip() == package.load(place / "run", device="cpu").generate(1, length=8, seed=5)[0].text.strip()
    assert ran["shown"][0] == 0
    code, _, err = ran["hidden"]
    assert code == 2
    [line] = err.splitlines()
    assert "someone/secret" in line


def test_a_branch_and_a_bundle_for_scdd_alone(hub: Hub, ran: dict[str, tuple[int, str, str]]) -> None:
    assert ran["again"][0] == 0, ran["again"]
    assert "someone/model@small" in ran["again"][1]
    repository = hub.repositories["someone/model"]
    files = repository.commits[repository.branches["small"]]
    assert json.loads(files["meta.json"])["weights"] == "int8"
    assert json.loads(repository.commits[repository.branches["main"]]["meta.json"])["weights"] == "float32"
    assert "8 bits" in repository.messages
    assert ran["revision"][0] == 0
    assert hub.repositories["someone/secret"].private


def test_refusals_are_one_sentence(hub: Hub, ran: dict[str, tuple[int, str, str]]) -> None:
    for name, said in (
        ("anonymous", "hf auth login"),
        ("unknown", "does not know the token"),
        ("foreign", "may not write there"),
        ("name", "OWNER/NAME"),
        ("int8", "--weights int8"),
    ):
        code, out, err = ran[name]
        assert (code, out) == (2, "")
        [line] = err.splitlines()
        assert line.startswith("error: ")
        assert said in line
    assert set(hub.repositories) == {"someone/model", "someone/secret"}


def test_no_connection(place: Path) -> None:
    [(code, _, err)] = run(
        [[hub_stand_in.TOKEN, "push", str(place / "run"), "someone/model"]], "http://127.0.0.1:9", place / "home"
    )
    assert code == 2
    [line] = err.splitlines()
    assert "check the connection" in line
