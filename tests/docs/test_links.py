"""Nothing that the pages point to is missing: links, headings, files, functions."""

from __future__ import annotations

import inspect
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import scdd
from scdd.recipe.load import schema
from tests.docs.pages import FENCE, PAGES, ROOT, name_of, prose

LINK = re.compile(r"!?\[[^\]]*\]\((?P<target>[^)\s]+)\)")
CODE = re.compile(r"`([^`\n]+)`")
FILE = re.compile(r"(?:[\w.-]+/)+[\w.-]+\.(?:py|md|yaml|txt|css|js|html|svg|gif|json)")
PLACES = (ROOT, ROOT / "src" / "scdd", ROOT / "docs", ROOT / "docs" / "results" / "scdd")
"""Where a file that a page names may lie."""
MADE = re.compile(r"(cells|checkpoints|resume|runs?|data|site)/")
"""Files that commands write are not in the repository."""
ROOMS = "core|ops|schedules|processes|models|samplers|objectives|bundle|lm|evals|assemble|recipe|serve|cli|trace"
SECTIONS = "data|model|process|objective|training|sampling"


def slug(heading: str) -> str:
    """A heading's anchor, as GitHub and the site make it."""
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").strip().lower()
    return re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")


def anchors(page: Path) -> set[str]:
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    return {slug(heading) for heading in re.findall(r"^#+ (.+)$", text, re.M)}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    for target in (match["target"] for match in LINK.finditer(prose(page))):
        if target.startswith(("http://", "https://", "mailto:")):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        # two pages are made when the site is built
        if file.parent == ROOT / "docs" / "reference" and file.name in ("recipes.md", "cli.md"):
            continue
        assert file.is_file(), f"{target} is no file"
        assert not anchor or anchor in anchors(file), f"{target}: {name_of(file)} has no such heading"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_files_that_are_named_exist(page: Path) -> None:
    for code in CODE.findall(prose(page)):
        if FILE.fullmatch(code) and not MADE.match(code):
            places = [place / code for place in (page.parent, *PLACES)]
            assert any(place.exists() for place in places), f"there is no {code}"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_names_of_the_package_exist(page: Path) -> None:
    """`scdd.load`, `lm.plan` of a model, and `ops.elbo` for `scdd.ops.elbo`."""
    model = inspect.getsource(scdd.LM)
    for code in CODE.findall(prose(page)):
        if code.endswith((".py", ".yaml", ".json")):
            continue
        if match := re.fullmatch(r"lm\.(\w+)(?:\(.*\))?", code):
            assert re.search(rf"(def |self\.){match[1]}\b", model), f"a model has no {match[1]}"
        elif match := re.fullmatch(rf"(?:scdd\.)?((?:{ROOMS})(?:\.\w+)+)(?:\(.*\))?", code):
            pkgutil.resolve_name(f"scdd.{match[1]}")
        elif match := re.fullmatch(r"(scdd\.\w+(?:\.\w+)*)(?:\(.*\))?", code):
            pkgutil.resolve_name(match[1])


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_recipe_keys_exist(page: Path) -> None:
    keys = {f"{path}.{name}" for path, properties in sections(schema()) for name in properties}
    assert {"training.muon", "sampling.sampler.patience"} < keys, "keys are looked up"
    for code in CODE.findall(prose(page)):
        if re.fullmatch(rf"(?:{SECTIONS})(?:\.[a-z_]+)+", code) and not code.endswith(".safetensors"):
            assert code in keys, f"recipes have no {code}"


def sections(whole: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """(Path, properties) of every section that a recipe may have; one path has several where there is a choice."""
    due: list[tuple[str, dict[str, Any]]] = [("", whole)]
    while due:
        path, section = due.pop()
        yield path, section["properties"]
        for name, node in section["properties"].items():
            for choice in (node, *node.get("oneOf", ()), *node.get("anyOf", ()), *node.get("allOf", ())):
                if "$ref" in choice:
                    inner = whole["$defs"][choice["$ref"].rpartition("/")[2]]
                    due.append((f"{path}.{name}".strip("."), inner))
