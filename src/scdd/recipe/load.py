"""Read, check and write recipes."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from copy import deepcopy
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from pydantic import TypeAdapter, ValidationError

from scdd.core.errors import UserError
from scdd.recipe.errors import explain
from scdd.recipe.overrides import override
from scdd.recipe.sections import Recipe
from scdd.recipe.text import parse, render

SHIPPED = Path(__file__).resolve().parent.parent / "recipes"


@cache
def _adapter() -> TypeAdapter[Recipe]:
    return TypeAdapter(Recipe)


def load(name: str | Path, overrides: Iterable[str] = ()) -> Recipe:
    """The recipe in a file, in a run folder, or shipped under that name ("nano", "paper/owt-scdd-0.1")."""
    path = find(name)
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: it is not UTF-8 text; save the recipe as UTF-8 YAML.") from error
    except OSError as error:
        raise UserError(f"{path}: it cannot be read ({error.strerror}).") from error
    return loads(text, source=str(name), overrides=overrides)


def loads(text: str, source: str = "recipe", overrides: Iterable[str] = ()) -> Recipe:
    """The recipe in a YAML text; `source` is what errors call it."""
    try:
        tree = parse(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f" in line {mark.line + 1}" if mark is not None else ""
        reason = getattr(error, "problem", None) or str(error)
        raise UserError(f"{source}: it is not YAML{line}: {reason}.") from error
    if not isinstance(tree, dict):
        raise UserError(f"{source}: it should hold keys and values such as name, data, process and training.")
    return from_dict(tree, source, overrides)


def from_dict(tree: Mapping[str, Any], source: str = "recipe", overrides: Iterable[str] = ()) -> Recipe:
    """The recipe that plain data describes, with `a.b=c` overrides applied first; every mistake is named."""
    changed = deepcopy(dict(tree))
    paths = {override(changed, assignment): assignment for assignment in overrides}
    # Through JSON, where strict checking (no "5" for 5, no 1 for true) still takes a list for a tuple.
    try:
        return _adapter().validate_json(json.dumps(changed, default=str), strict=True)
    except ValidationError as error:
        raise explain(error, changed, source, paths) from error


def to_dict(recipe: Recipe) -> dict[str, Any]:
    """Plain data with every default written out."""
    plain: dict[str, Any] = _adapter().dump_python(recipe, mode="json")
    return plain


def dumps(recipe: Recipe) -> str:
    """The resolved recipe as YAML: `loads(dumps(recipe)) == recipe`."""
    return render(to_dict(recipe))


def schema() -> dict[str, Any]:
    """JSON schema of a recipe, with descriptions and defaults."""
    return _adapter().json_schema()


def shipped() -> list[str]:
    """Names of the recipes inside the package."""
    return sorted(path.relative_to(SHIPPED).with_suffix("").as_posix() for path in SHIPPED.rglob("*.yaml"))


def find(name: str | Path) -> Path:
    """The file that a name means."""
    path = Path(name)
    if path.is_dir() and (path / "recipe.yaml").is_file():
        return path / "recipe.yaml"
    if path.is_file():
        return path
    known = shipped()
    bare = str(name).removesuffix(".yaml")
    if bare in known:
        return SHIPPED / f"{bare}.yaml"
    near = get_close_matches(bare, known, n=1)
    cure = f"did you mean {near[0]}" if near else f"give a file, or one of {', '.join(known)}"
    raise UserError(f"{name}: there is no such recipe; {cure}.")
