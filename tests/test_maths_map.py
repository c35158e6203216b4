"""docs/maths.md cannot rot: its labels are the paper's, its functions cite them, its tests exist, and none is missing."""

from __future__ import annotations

import ast
import inspect
import re
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
LABEL = re.compile(r"`((?:eq|lem|pro):[\w-]+)`")


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


PAPER = _words(
    """
    eq:jointDist eq:marginal eq:forward eq:forwardMatrix eq:forwardMarginal eq:forward_rate eq:backward
    eq:backwardParam eq:p_theta_marginal eq:NELBO eq:loss_zt eq:contLoss eq:Rt-matrix-form
    eq:mdlm_forward_rate_matrix eq:backward_v eq:posCase1 eq:posCase2 eq:backward_m eq:backProc1 eq:backward_rate
    eq:taylor eq:elbo eq:loss_v eq:loss_m eq:loss_continuous eq:marginal_mdm eq:mdlm-forward eq:loss_mdm
    eq:loss_mdm_continuous eq:gidd-marginal eq:gidd-forward eq:gidd-params eq:gidd-rate eq:gidd-backward eq:gidd-loss
    eq:gidd-weight eq:gidd_forward2 eq:gidd-rate2 eq:giddreparam eq:gidd-noise eq:noise-gidd-ours
    lem:forward-rate lem:p_theta_is_probability pro:Rt-matrix pro:mdlm-ours pro:gidd-ours
    """
)
"""Every label of the paper's equations, lemmas and propositions; only in proofs and so not in the map: UNMAPPED."""

UNMAPPED = _words("eq:backward_v eq:posCase1 eq:posCase2 eq:backward_m eq:backProc1 eq:taylor eq:elbo")


def table() -> list[tuple[str, str, str]]:
    """(label, function, test) of every row of the map."""
    rows = []
    for line in (ROOT / "docs" / "maths.md").read_text(encoding="utf-8").splitlines():
        cells = [cell.strip().strip("`") for cell in line.strip("|").split("|")]
        if len(cells) == 4 and re.fullmatch(r"(eq|lem|pro):.*", cells[0]):
            rows.append((cells[0], cells[2], cells[3]))
    return rows


def docstrings(path: str) -> str:
    """The docstrings of a dotted name and of all that hold it: its class, its module."""
    parts, texts = path.split("."), []
    for cut in range(len(parts), 0, -1):
        try:
            found: Any = import_module(".".join(parts[:cut]))
            break
        except ModuleNotFoundError:
            continue
    else:
        raise AssertionError(f"{path} cannot be imported")
    texts.append(inspect.getdoc(found) or "")
    for name in parts[cut:]:
        found = getattr(found, name)
        texts.append(inspect.getdoc(found) or "")
    return "\n".join(texts)


def names_in(file: Path) -> set[str]:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def test_the_map_is_read() -> None:
    assert len(table()) > 40


@pytest.mark.parametrize("row", table(), ids=lambda row: f"{row[0]} {row[1].rsplit('.', 1)[-1]}")
def test_each_row_holds(row: tuple[str, str, str]) -> None:
    label, function, test = row
    assert label in PAPER, f"the paper has no {label}"
    assert f"`{label}`" in docstrings(function), f"{function} does not cite {label}"
    file, name = test.split("::")
    assert name in names_in(ROOT / file), f"{file} has no {name}"


def test_every_formula_of_the_paper_is_mapped() -> None:
    assert UNMAPPED < PAPER
    assert {label for label, _, _ in table()} == PAPER - UNMAPPED


def test_the_code_cites_only_what_the_paper_has() -> None:
    """A label mistyped in any docstring of the package is found here."""
    cited = {
        (label, file.name)
        for file in (ROOT / "src" / "scdd").rglob("*.py")
        for label in LABEL.findall(file.read_text(encoding="utf-8"))
    }
    assert cited, "nothing is cited, so nothing was checked"
    assert {entry for entry in cited if entry[0] not in PAPER} == set()
