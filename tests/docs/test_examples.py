"""The Python that the pages show runs, and prints what they say it prints.

Blocks of a page share their names, in order. A comment `# → …` below a statement is what the statement prints, or its value;
"…" stands for anything. A block below `<!-- no-run: reason -->` is only compiled, and what it imports looked up.
"""

from __future__ import annotations

import ast
import contextlib
import io
import pkgutil
import re
from pathlib import Path
from typing import Any

import pytest

from scdd.recipe.load import loads
from tests.docs.pages import CARD, PAGES, Block, blocks, name_of, prose

ELSEWHERE = {"CONTRIBUTING.md"}
"""Run by tests/test_extension.py, which goes on with what is left."""
EXAMPLES = [page for page in PAGES if any(blocks(page, "python")) and name_of(page) not in ELSEWHERE]
SAYS = "# → "


def said_below(code: str, line: int) -> str | None:
    """What the comment below a statement that ends in this line says, if there is one."""
    below = code.splitlines()[line : line + 1]
    return below[0].removeprefix(SAYS) if below and below[0].startswith(SAYS) else None


def run(block: Block, page: str, names: dict[str, Any]) -> None:
    for statement in ast.parse(block.code).body:
        shifted = ast.increment_lineno(statement, block.line - 1)
        end = (statement.end_lineno or 0) - block.line + 1
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            if isinstance(shifted, ast.Expr):
                value = eval(compile(ast.Expression(shifted.value), page, "eval", dont_inherit=True), names)
            else:
                exec(compile(ast.Module([shifted], []), page, "exec", dont_inherit=True), names)
                value = None
        expected = said_below(block.code, end)
        if expected is not None:
            printed = output.getvalue().rstrip("\n") if value is None else repr(value)
            pattern = ".*".join(re.escape(part) for part in expected.split("…"))
            assert re.fullmatch(pattern, printed, re.S), f"{page}:{block.line + end} gives {printed}"


def look_up(block: Block) -> None:
    """Everything that the block imports from the package exists."""
    for node in ast.walk(ast.parse(block.code)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "scdd":
            for alias in node.names:
                pkgutil.resolve_name(f"{node.module}:{alias.name}")


@pytest.mark.parametrize("page", EXAMPLES, ids=name_of)
def test_examples_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)  # what is said to come out is a CPU's
    (tmp_path / "text.txt").write_text(prose(CARD)[:2000], encoding="utf-8")  # which examples may read
    names: dict[str, Any] = {"__name__": "example"}
    for block in blocks(page, "python"):
        if block.reason is not None:
            look_up(block)
        else:
            run(block, name_of(page), names)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_recipes_are_right(page: Path) -> None:
    for block in blocks(page, "yaml"):
        loads(block.code, name_of(page))


def test_what_is_said_is_compared() -> None:
    block = Block("python", "x = 2\nx + 1\n# → 3\nprint('a')\n# → …\n", 1, None)
    run(block, "here", {})
    with pytest.raises(AssertionError, match="here:3 gives 3"):
        run(block._replace(code="x = 2\nx + 1\n# → 4\n"), "here", {})
