"""docs/walks.md names the files that run, in their order, and the walks stay short."""

from __future__ import annotations

import re

import pytest

from tests.docs.pages import ROOT, tool

PAGE = ROOT / "docs" / "walks.md"
CEILINGS = {"sample": (32, 75), "train": (26, None)}
"""Files that run, modules imported."""


def listed(section: int) -> list[str]:
    """The files of the page's n-th table."""
    part = PAGE.read_text(encoding="utf-8").split("\n## ")[section]
    return re.findall(r"^\| `([\w/]+\.py)` \|", part, re.M)


@pytest.mark.parametrize(("section", "name"), [*enumerate(CEILINGS, start=1)])
def test_the_page_is_the_walk(section: int, name: str) -> None:
    walk = tool("walks").walk(name)
    files, modules = CEILINGS[name]
    assert listed(section) == walk.files, "run python tools/walks.py"
    assert walk.climbs == []
    assert len(walk.files) <= files
    assert modules is None or walk.modules <= modules
