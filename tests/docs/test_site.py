"""The site builds without a warning, without a network, and asks nobody else for anything."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import ROOT, tool

ASKED = re.compile(r"<(?:script|link|img|iframe|source)\b[^>]*?\b(?:src|href)=[\"']?((?:https?:)?//[^\"'\s>]+)")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    for package in ("mkdocs", "material", "mkdocstrings"):
        pytest.importorskip(package)
    folder = tmp_path_factory.mktemp("site")
    tool("docs_site").write(folder / "docs")
    settings = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").replace("build/docs", "docs")
    (folder / "mkdocs.yml").write_text(settings.replace("paths: [src]", f"paths: [{ROOT / 'src'}]"), encoding="utf-8")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "site"


def test_the_pages_ask_nobody_else(site: Path) -> None:
    pages = [*site.rglob("*.html")]
    assert len(pages) > 20
    asked = {f"{page.name}: {url}" for page in pages for url in ASKED.findall(page.read_text(encoding="utf-8"))}
    assert asked == set()
    start = (site / "index.html").read_text(encoding="utf-8")
    assert "images/demo.gif" in start
    assert "Two commands" in start
    reference = (site / "reference" / "python.html").read_text(encoding="utf-8")
    for name in ("load", "train", "evaluate", "LM.generate", "LM.correct", "Sample", "Correction", "SamplingPlan"):
        assert f'id="scdd.{name}"' in reference, name


def test_notebooks_are_pages_with_their_views(site: Path) -> None:
    watch, first = (
        (site / "notebooks" / f"{name}.html").read_text(encoding="utf-8")
        for name in ("watch-it-correct-itself", "first-steps")
    )
    assert '<div class="view"><iframe srcdoc="' in watch
    assert re.search(r'<div class="view"><div style="[^"]*">She was elected [^<]*<del ', first)
    assert 'href="watch-it-correct-itself.html"' in first
    assert (site / "notebooks" / "first-steps.ipynb").is_file()


def test_every_key_and_every_flag_has_a_row() -> None:
    pages = tool("docs_site")
    recipes, commands = pages.recipe_page(), pages.command_page()
    row = "| `patience` | whole number ≥ 1 | `8` | A text ends when its agreement with the model has not risen for so"
    assert row in recipes
    assert "| `learning_rate` | number > 0 | `0.0005` | Peak learning rate of AdamW. |" in recipes
    assert "| `p_u` | number in [0, 1) | `0.2` |" in recipes
    assert (
        "| `data` | [shards](#ShardsOptions); [text](#TextOptions); [pairs](#PairsOptions) | required | What to train on. |"
        in recipes
    )
    assert "| `targets` | list of text or `null` | `null` |" in recipes
    assert "## scdd eval\n" in commands
    assert re.search(r"### scdd eval recovery\n(?:(?!##).)*\| `--threshold` \| `T,T…` \|", commands, re.S)
    assert re.search(r"\| `--num, --samples` \| `int` \|", commands)
    for name in ("RECIPE", "--out"):
        assert re.search(rf"## scdd train\n(?:(?!##).)*\| `{name}` \| `\w+` \| required \|", commands, re.S)
