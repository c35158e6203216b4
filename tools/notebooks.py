"""Run the notebooks of docs/notebooks and write what they show into them: `python tools/notebooks.py [NAME …]`.

Cells are run one after the other in this process, in an empty folder. The notebooks use no magics and no widgets, so this needs no
kernel, no sockets and none of the thirty packages that bring them; what is written is the same format. A cell with the tag
`varies` shows what another machine or torch may round otherwise: tests run it and do not compare its text.
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

NOTEBOOKS = Path(__file__).resolve().parents[1] / "docs" / "notebooks"
VARIES = "varies"


def read(path: Path) -> dict[str, Any]:
    """A notebook, as the plain data that it is."""
    notebook: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return notebook


def dumps(notebook: dict[str, Any]) -> str:
    """As Jupyter writes it: a space deep, keys sorted, a newline at the end."""
    return json.dumps(notebook, indent=1, ensure_ascii=False, sort_keys=True) + "\n"


def execute(notebook: dict[str, Any]) -> dict[str, Any]:
    """The notebook with what its cells show now."""
    names: dict[str, Any] = {"__name__": "__main__"}
    cells, count = [], 0
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            count += 1
            cell = {**cell, "execution_count": count, "outputs": run("".join(cell["source"]), names, count)}
        cells.append(cell)
    return {**notebook, "cells": cells}


def run(code: str, names: dict[str, Any], count: int) -> list[dict[str, Any]]:
    """A cell's outputs: what it prints, and the value of its last line."""
    body, value, printed = ast.parse(code).body, None, io.StringIO()
    last = ast.Expression(body.pop().value) if body and isinstance(body[-1], ast.Expr) else None
    with contextlib.redirect_stdout(printed):
        exec(compile(ast.Module(body, []), f"cell {count}", "exec"), names)
        if last is not None:
            value = eval(compile(last, f"cell {count}", "eval"), names)
    outputs: list[dict[str, Any]] = []
    if printed.getvalue():
        outputs.append({"name": "stdout", "output_type": "stream", "text": lines(printed.getvalue())})
    if value is not None:
        shown = {"execution_count": count, "metadata": {}, "output_type": "execute_result"}
        outputs.append({**shown, "data": views(value)})
    return outputs


def views(value: Any) -> dict[str, list[str]]:
    """A value by type of content: the view that it has for notebooks, or what Python prints of it."""
    html = getattr(value, "_repr_html_", lambda: None)()
    return {"text/html": lines(html)} if html else {"text/plain": lines(repr(value))}


def lines(text: str) -> list[str]:
    """Text as notebooks keep it: a list of lines with their ends."""
    return text.splitlines(keepends=True)


def main(chosen: list[str]) -> None:
    """Refresh the notebooks with these names, or all."""
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # what is shown is a CPU's
    for path in sorted(NOTEBOOKS.glob("*.ipynb")):
        if not chosen or path.stem in chosen:
            with tempfile.TemporaryDirectory() as folder:
                os.chdir(folder)
                done = execute(read(path))
                os.chdir(NOTEBOOKS)
            path.write_text(dumps(done), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
