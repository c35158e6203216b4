"""The notebooks run, show what they are said to show, and hold nothing of the machine that made them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.docs.pages import ROOT, tool

NOTEBOOKS = tool("notebooks")
PATHS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
FOLDERS = re.compile(r"/(?:home|root|tmp|work|usr|Users|mnt|var)/|[A-Z]:\\\\")


def name_of(path: Path) -> str:
    return path.stem


def shown(outputs: list[dict[str, Any]]) -> list[Any]:
    """What is compared: printed text and values; of views, that there is one (their probabilities are rounded numbers)."""
    return [
        "".join(output.get("text") or output["data"].get("text/plain") or sorted(output["data"])) for output in outputs
    ]


LONG = ("train-your-own",)  # it trains


@pytest.mark.parametrize(
    "path", [pytest.param(path, marks=[pytest.mark.slow] * (path.stem in LONG)) for path in PATHS], ids=name_of
)
def test_notebooks_show_what_their_code_gives(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)  # what is stored is a CPU's
    stored = NOTEBOOKS.read(path)
    for before, after in zip(stored["cells"], NOTEBOOKS.execute(stored)["cells"], strict=True):
        if before["cell_type"] != "code":
            continue
        cure = f"python tools/notebooks.py {path.stem}"
        assert before["outputs"], f"a cell shows nothing: {cure}"
        if NOTEBOOKS.VARIES in before["metadata"].get("tags", ()):
            assert [each["output_type"] for each in after["outputs"]] == ["stream"]
        else:
            assert shown(before["outputs"]) == shown(after["outputs"]), cure


@pytest.mark.parametrize("path", PATHS, ids=name_of)
def test_notebooks_are_whole_and_of_no_machine(path: Path) -> None:
    notebook = NOTEBOOKS.read(path)
    text = path.read_text(encoding="utf-8")
    assert text == NOTEBOOKS.dumps(notebook)  # a diff shows what changed, and nothing else
    assert FOLDERS.search(text) is None
    assert len(text) < 100_000
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    assert len({cell["id"] for cell in notebook["cells"]}) == len(notebook["cells"])
    assert notebook["cells"][0]["source"][0].startswith("# ")


def test_each_kind_of_view_is_in_a_notebook() -> None:
    views = "".join(path.read_text(encoding="utf-8") for path in PATHS)
    for mark in ("<iframe srcdoc=", "<del style=", "noise level"):  # the player, a diff, a heat map
        assert mark in views


def test_what_is_not_so_is_found() -> None:
    outputs = NOTEBOOKS.run("print('a')\n1 + 1", {}, 1)
    assert shown(outputs) == ["a\n", "2"]
    assert NOTEBOOKS.run("x = 1", {}, 1) == []
