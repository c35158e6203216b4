"""docs/walks.md names the files that run, in their order, and the walks stay short."""

from __future__ import annotations

import re

import pytest

from tests.docs.pages import ROOT, tool

PAGE = ROOT / "docs" / "walks.md"
CEILINGS = {"sample": (40, 82), "train": (26, None)}
"""Files that run, modules imported."""


def listed(section: int) -> list[str]:
    """The files of the page's n-th table."""
    part = PAGE.read_text(encoding="utf-8").split("\n## ")[section]
    return re.findall(r"^\| `([\w/]+\.py)` \|", part, re.M)


def test_the_rooms_are_those_of_the_import_rules() -> None:
    contributing = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    [drawn] = re.findall(r"```\n(cli → .*?)```", contributing, re.S)
    rooms = tool("walks")._rooms(ROOT / "pyproject.toml")
    told = [re.findall(r"\w+", layer) for layer in drawn.split("→")]
    assert {room: depth for depth, layer in enumerate(told) for room in layer} == rooms
    table = contributing.partition("| room |")[2].partition("\n\n")[0]
    cells = [row.split("|")[1] for row in table.splitlines()[2:]]
    assert {room for cell in cells for room in re.findall(r"`(\w+)`", cell)} == set(rooms)


@pytest.mark.parametrize(("section", "name"), [*enumerate(CEILINGS, start=1)])
def test_the_page_is_the_walk(section: int, name: str) -> None:
    walk = tool("walks").walk(name)
    files, modules = CEILINGS[name]
    assert listed(section) == walk.files, "run python tools/walks.py"
    assert walk.climbs == []
    assert len(walk.files) <= files
    assert modules is None or walk.modules <= modules
