"""Read, check and write recipes.

YAML is read as people expect it, by the rules of 1.2 for numbers and booleans, and no key twice: PyYAML follows 1.1, where
5e-4 is a string, `no` is false, 1:30 is ninety and a repeated key silently wins.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import yaml
from pydantic import TypeAdapter, ValidationError

from scdd.core.errors import UserError
from scdd.core.options import Count, Options
from scdd.processes.options import ProcessOptions
from scdd.samplers.options import SamplingOptions

T = TypeVar("T")
SHIPPED = Path(__file__).resolve().parent.parent / "recipes"


if TYPE_CHECKING:
    from scdd.recipe.sections import Recipe


@cache
def _adapter() -> TypeAdapter[Recipe]:
    from scdd.recipe.sections import Recipe

    return TypeAdapter(Recipe)


@dataclass(frozen=True, kw_only=True)
class ModelRecipe(Options):
    """What a trained model needs of its recipe; the rest was for training it."""

    process: ProcessOptions
    length: Count
    sampling: SamplingOptions = SamplingOptions()


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
    return from_dict(_tree(text, source), source, overrides)


def model_recipe(text: str, source: str = "recipe", overrides: Iterable[str] = ()) -> ModelRecipe | None:
    """How a trained model noises and samples; None for a converted checkpoint, whose recipe is its network's section only."""
    tree = _tree(text, source)
    if "process" not in tree:
        return None
    changed, paths = _overridden(tree, overrides)
    wanted: dict[str, Any] = {name: changed[name] for name in ("process", "sampling") if name in changed}
    data = {**wanted, "length": (changed.get("data") or {}).get("length")}
    return _checked(TypeAdapter(ModelRecipe), data, source, paths)


def row_length(text: str, source: str = "recipe") -> int | None:
    """How long the rows of a converted checkpoint were, if its recipe says so."""
    length = (_tree(text, source).get("data") or {}).get("length")
    return length if isinstance(length, int) and length > 0 else None


def from_dict(tree: Mapping[str, Any], source: str = "recipe", overrides: Iterable[str] = ()) -> Recipe:
    """The recipe that plain data describes, with `a.b=c` overrides applied first; every mistake is named."""
    if isinstance(tree.get("model"), dict):
        tree = {**tree, "model": {"kind": "dit", **tree["model"]}}  # there was no other kind once
    changed, paths = _overridden(tree, overrides)
    return _checked(_adapter(), changed, source, paths)


def _tree(text: str, source: str) -> dict[str, Any]:
    try:
        tree = parse(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f" in line {mark.line + 1}" if mark is not None else ""
        problem = getattr(error, "problem", None) or str(error)
        raise UserError(f"{source}: it is not YAML{line}: {problem}.") from error
    if not isinstance(tree, dict):
        raise UserError(f"{source}: it should hold keys and values such as name, data, process and training.")
    return tree


def _overridden(tree: Mapping[str, Any], overrides: Iterable[str]) -> tuple[dict[str, Any], dict[str, str]]:
    """(The tree with `a.b=c` carried out, which override set which path)."""
    changed: dict[str, Any] = deepcopy(dict(tree))
    paths: dict[str, str] = {}
    for assignment in (overrides,) if isinstance(overrides, str) else overrides:
        from scdd.recipe.overrides import override

        paths[override(changed, assignment)] = assignment
    return changed, paths


def _checked(adapter: TypeAdapter[T], tree: dict[str, Any], source: str, overrides: dict[str, str]) -> T:
    # Through JSON, where strict checking (no "5" for 5, no 1 for true) still takes a list for a tuple.
    try:
        return adapter.validate_json(json.dumps(tree, default=str), strict=True)
    except ValidationError as error:
        from scdd.recipe.errors import explain

        raise explain(error, tree, source, overrides) from error


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


# -- YAML ---------------------------------------------------------------------------------------------------------------

_FLOAT = re.compile(r"[-+]?(?:(?:[0-9][0-9_]*\.[0-9_]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?|[0-9][0-9_]*[eE][-+]?[0-9]+)$")
_RULES: tuple[tuple[str, re.Pattern[str], str | None], ...] = (
    ("bool", re.compile(r"(?:true|True|TRUE|false|False|FALSE)$"), "tTfF"),
    ("int", re.compile(r"[-+]?(?:0|[1-9][0-9_]*)$"), "-+0123456789"),
    ("float", _FLOAT, "-+0123456789."),
    ("float", re.compile(r"(?:[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$"), "-+."),
    ("null", re.compile(r"(?:~|null|Null|NULL|)$"), "~nN"),
)


class _Loader(yaml.SafeLoader):
    """Safe loading under the rules above."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012 (PyYAML's own attribute)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Refuse a repeated key."""
        seen: set[str] = set()
        for key, _ in node.value:
            if key.value in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key.value!r} is there twice", key.start_mark
                )
            if isinstance(key.value, str):
                seen.add(key.value)
        return super().construct_mapping(node, deep=deep)


class _Dumper(yaml.SafeDumper):
    """Quotes whatever either set of rules would read as something else, so that any YAML reader agrees."""


for _name, _pattern, _first in _RULES:
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_name}", _pattern, list(_first or "") or None)
_Loader.add_implicit_resolver("tag:yaml.org,2002:null", re.compile("$"), [""])
_Dumper.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, list("-+0123456789."))


def parse(text: str) -> Any:
    """Plain data from YAML; raises yaml.YAMLError."""
    return yaml.load(text, Loader=_Loader)


def render(tree: Any) -> str:
    """YAML that `parse` reads back unchanged."""
    return yaml.dump(tree, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=110)
