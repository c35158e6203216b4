"""What pyproject.toml says of the package is so: its dependencies are those that are imported, its source archive is whole."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

tomllib = pytest.importorskip("tomllib", reason="Python 3.10 has none")

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "scdd"
CALLED = {"yaml": "pyyaml", "PIL": "pillow", "markdown_it": "markdown-it-py", "mauve": "mauve-text"}
WITH_ANOTHER = {"pydantic_core": "pydantic", "triton": "torch"}  # which pin or bring the version that fits them
NEEDED = {"serve": "serve", "cluster": "ray", "evals": "eval"}  # the extra that a room's modules may not open without
ELSEWHERE = SOURCE / "assets"  # runs where scdd is not installed


@pytest.fixture(scope="module")
def project() -> dict[str, Any]:
    settings: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    return settings


def declared(project: dict[str, Any], extra: str | None = None) -> set[str]:
    """The distributions that the package, or one of its extras, asks for."""
    own = project["project"]
    found = set()
    for line in own["dependencies"] if extra is None else own["optional-dependencies"][extra]:
        name, extras = re.match(r"([\w-]+)(?:\[([\w,]+)\])?", line).groups()  # type: ignore[union-attr]
        if name == "scdd":
            found |= set().union(*(declared(project, each) for each in extras.split(",")))
        else:
            found.add(name.lower().replace("_", "-"))
    return found


def imported(file: Path) -> Iterator[tuple[str, bool]]:
    """(Distribution, whether it is imported where it is used) of all that a module imports from others."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    inside = {
        id(node)
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for node in ast.walk(function)
    }
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        elif isinstance(node, ast.Call) and "import_module" in ast.unparse(node.func) and node.args:
            names = [node.args[0].value] if isinstance(node.args[0], ast.Constant) else []
        for name in (name.partition(".")[0] for name in names):
            if name != "scdd" and name not in sys.stdlib_module_names:
                package = WITH_ANOTHER.get(name) or CALLED.get(name) or name.lower().replace("_", "-")
                yield package, id(node) in inside


def test_what_is_imported_is_declared(project: dict[str, Any]) -> None:
    base = declared(project)
    anywhere = base.union(*(declared(project, extra) for extra in project["project"]["optional-dependencies"]))
    files = [file for file in SOURCE.rglob("*.py") if ELSEWHERE not in file.parents]
    found = [(file.relative_to(SOURCE), *each) for file in files for each in imported(file)]
    assert {"torch", "jinja2", "pyarrow", "h11", "ray"} <= {package for _, package, _ in found}
    for file, package, where_used in found:
        needed = NEEDED.get(file.parts[0])
        open_to = anywhere if where_used else base | (declared(project, needed) if needed else set())
        assert package in open_to, f"{file} imports {package}"


def test_dev_is_every_extra_but_those_that_readme_excepts(project: dict[str, Any]) -> None:
    for extra in set(project["project"]["optional-dependencies"]) - {"remote", "wandb"}:
        assert declared(project, extra) <= declared(project, "dev"), extra


@pytest.mark.skipif(not (ROOT / ".git").exists() or shutil.which("git") is None, reason="no checkout")
def test_the_source_archive_holds_what_the_repository_holds(project: dict[str, Any]) -> None:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        pytest.skip(f"git does not list this checkout: {listed.stderr.strip()}")
    tracked = {line.partition("/")[0] for line in listed.stdout.splitlines()}
    packed = project["tool"]["hatch"]["build"]["targets"]["sdist"]["only-include"]
    assert tracked == {*packed, "pyproject.toml", "README.md", "LICENSE", ".gitignore"}  # hatch packs these unasked
