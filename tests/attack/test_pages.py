"""Texts that want to be part of the page that shows them."""

from __future__ import annotations

import json
import os
import re
import shutil
from html import unescape
from pathlib import Path
from typing import Any, cast

import pytest
import torch

from scdd.data.tokenizer import TextTokenizer
from scdd.lm.results import Moment, Sample, Trajectory
from scdd.trace.page import in_script, page, player

HOSTILE = ["</script>", "<!--<script>", "<!--", "<SCRIPT", "]]>", "\u2028", '"', "&lt;", "<img src=x onerror=alert(1)>"]


class Spelling:
    """A tokenizer all of whose tokens are hostile."""

    mask_id = len(HOSTILE)

    def token(self, i: int) -> str:
        return [*HOSTILE, "[MASK]"][i]


def sample() -> tuple[Sample, TextTokenizer]:
    tokenizer = cast(TextTokenizer, Spelling())
    tokens = torch.arange(len(HOSTILE))
    start = torch.full_like(tokens, tokenizer.mask_id)
    log_p, moved = torch.zeros(1, len(tokens)), torch.ones(1, len(tokens), dtype=torch.int8)
    way = Trajectory(start, tokens[None], moved, log_p, (Moment(1, 1.0, 0.0),), tokenizer)
    counts = (0, 0, 1, 1, len(tokens), 0, 0)
    return Sample("x", tuple(tokens.tolist()), *counts, "ancestral", "greedy", "scdd", True, trajectory=way), tokenizer


def test_no_text_leaves_the_pages_data() -> None:
    one, tokenizer = sample()
    for content in (page([one], tokenizer, "<!--<script>"), unescape(player(one, tokenizer, "<!--<script>"))):
        found = re.search(r"const data = (\{.*\});\n", content)
        assert found is not None
        assert "<" not in found[1]
        data = json.loads(found[1])
        assert [data["tokens"][str(i)] for i in range(len(HOSTILE))] == HOSTILE
        assert data["title"] == "<!--<script>"
    assert json.loads(in_script(HOSTILE)) == HOSTILE


def test_the_page_plays_whatever_the_tokens_spell(tmp_path: Path) -> None:
    sync = pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install playwright")
    chromium = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("needs chromium: install it, or set CHROMIUM to its path")
    one, tokenizer = sample()
    place = tmp_path / "page.html"
    place.write_text(page([one], tokenizer, "<!--<script>"), encoding="utf-8")
    with sync.sync_playwright() as play:
        browser = play.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        shown: Any = browser.new_page()
        complaints: list[str] = []
        shown.on("pageerror", lambda error: complaints.append(str(error)))
        shown.on("dialog", lambda dialog: complaints.append(dialog.message))
        shown.goto(place.as_uri())
        shown.locator("#step").focus()
        shown.keyboard.press("End")
        assert shown.locator(".tok").count() == len(HOSTILE)
        assert "</script>" in "".join(shown.locator(".tok").all_text_contents())
        assert shown.locator("img").count() == 0
        browser.close()
    assert complaints == []


def test_a_recipe_does_not_leave_its_block_in_a_report(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("markdown_it", reason="needs markdown-it-py: pip install 'scdd[eval]'")
    from scdd.evals.report import page as report

    hostile = "name: |\n```\n\n<script>alert(1)</script>\n\n```\n"
    monkeypatch.setattr(report.provenance, "recipes", lambda measurements: {"mine": hostile})
    for name in ("systems", "numbers"):
        monkeypatch.setattr(report.provenance, name, lambda measurements: report.provenance.Table("", [], []))
    monkeypatch.setattr(report.provenance, "environments", lambda measurements: {})
    written = report.html_of("\n".join(report._provenance([], full=True)))
    assert "<script" not in written
    assert "&lt;script&gt;" in written
