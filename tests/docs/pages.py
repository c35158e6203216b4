"""The pages that people read, and what stands in them: links, headings, blocks of code."""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
CARD = ROOT / "src" / "scdd" / "assets" / "model" / "README.md"
PAGES = (
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")),
    CARD,
    *sorted((ROOT / "docs").rglob("*.md")),
)
FENCE = re.compile(r"(?:^<!-- no-run: (?P<reason>.+?) -->\n+)?^```(?P<language>\w*)\n(?P<code>.*?)^```$", re.M | re.S)


def name_of(page: Path) -> str:
    """A page as tests call it."""
    return page.relative_to(ROOT).as_posix()


class Block(NamedTuple):
    """A fenced block of code: its language, its text, its first line's number, and why it is not run, if it is not."""

    language: str
    code: str
    line: int
    reason: str | None


def blocks(page: Path, *languages: str) -> Iterator[Block]:
    """The page's blocks in these languages, in order."""
    text = page.read_text(encoding="utf-8")
    for match in FENCE.finditer(text):
        if match["language"] in languages:
            line = text.count("\n", 0, match.start("code")) + 1
            yield Block(match["language"], match["code"], line, match["reason"])


def prose(page: Path) -> str:
    """The page without its blocks of code."""
    return FENCE.sub("", page.read_text(encoding="utf-8"))


def tool(name: str, folder: Path = ROOT / "tools") -> ModuleType:
    """A file of tools/, or of another folder, as a module."""
    spec = importlib.util.spec_from_file_location(name, folder / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module
