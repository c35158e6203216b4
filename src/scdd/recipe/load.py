"""Read, check and write recipes.

YAML is read as people expect it, by the rules of 1.2 for numbers and booleans, and no key twice: PyYAML follows 1.1, where
5e-4 is a string, `no` is false, 1:30 is ninety and a repeated key silently wins. Recipes come along with other people's
models, so size, depth and what aliases repeat are bounded, and no tag makes anything.
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
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import yaml
from annotated_types import Interval
from pydantic import TypeAdapter, ValidationError

from scdd.core.errors import UserError, reason
from scdd.core.options import Options
from scdd.processes.options import ProcessOptions
from scdd.samplers.options import SamplingOptions

T = TypeVar("T")
SHIPPED = Path(__file__).resolve().parent.parent / "recipes"
LARGEST = 1 << 18  # bytes of a recipe, of which PyYAML reads about 200,000 a second
DEEPEST = 32  # levels of sections and lists
MOST_NODES = 10_000  # keys and values, those that an alias repeats counted again
MOST_ALIASES = 16
LONGEST = 1 << 20  # tokens of a trained model's rows


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
    length: Annotated[int, Interval(ge=1, le=LONGEST)]
    sampling: SamplingOptions = SamplingOptions()


def load(name: str | Path, overrides: Iterable[str] = ()) -> Recipe:
    """The recipe in a file, in a run folder, or shipped under that name ("nano", "paper/owt-scdd-0.1")."""
    path = find(name)
    try:
        with open(path, "rb") as file:
            text = file.read(LARGEST + 1).decode("utf-8")  # `parse` refuses what is longer
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
    data = {**wanted, "length": _section(changed, "data").get("length")}
    return _checked(TypeAdapter(ModelRecipe), data, source, paths)


def row_length(text: str, source: str = "recipe") -> int | None:
    """How long the rows of a converted checkpoint were, if its recipe says so."""
    length = _section(_tree(text, source), "data").get("length")
    return length if isinstance(length, int) and 0 < length <= LONGEST else None


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
        problem = getattr(error, "problem", None) or reason(error)
        raise UserError(f"{source}: it is not YAML{line}: {problem}.") from error
    if not isinstance(tree, dict):
        raise UserError(f"{source}: it should hold keys and values such as name, data, process and training.")
    return tree


def _section(tree: Mapping[str, Any], name: str) -> dict[str, Any]:
    found = tree.get(name)
    return found if isinstance(found, dict) else {}


def _overridden(tree: Mapping[str, Any], overrides: Iterable[str]) -> tuple[dict[str, Any], dict[str, str]]:
    """(The tree with `a.b=c` carried out, which override set which path)."""
    changed: dict[str, Any] = deepcopy(dict(tree))
    paths: dict[str, str] = {}
    for assignment in (overrides,) if isinstance(overrides, str) else overrides:
        from scdd.recipe.overrides import override

        paths[override(changed, assignment)] = assignment
    return changed, paths


def options_from(kind: type[T], text: str, source: str) -> T:
    """Options of any kind from a YAML text, read and checked as recipes are; `source` is what errors call it."""
    return _checked(TypeAdapter(kind), _tree(text, source), source, {}, kind)


def _checked(
    adapter: TypeAdapter[T], tree: dict[str, Any], source: str, overrides: dict[str, str], root: type | None = None
) -> T:
    # Through JSON, where strict checking (no "5" for 5, no 1 for true) still takes a list for a tuple.
    try:
        return adapter.validate_json(json.dumps(tree, default=str), strict=True)
    except ValidationError as error:
        from scdd.recipe.errors import explain

        raise explain(error, tree, source, overrides, *([] if root is None else [root])) from error


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
    """Safe loading under the rules above, of bounded size."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012 (PyYAML's own attribute)

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._nodes = self._depth = self._aliases = 0
        self._sizes: dict[str, int] = {}  # of what an anchor names, once it is complete

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """Count as nodes are made, before anything is built from them."""
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        anchor, tag, before = event.anchor, getattr(event, "tag", None), self._nodes
        if tag not in (None, "!", _STR):
            raise _refusal(f"the tag {tag.rpartition(':')[2][:60]} is not read here, write the value without it", event)
        if isinstance(event, yaml.AliasEvent):
            self._aliases += 1
            if anchor in self.anchors and anchor not in self._sizes:
                raise _refusal(f"*{anchor[:60]} is a part of itself", event)
            if self._aliases > MOST_ALIASES:
                raise _refusal(f"it has more than {MOST_ALIASES} aliases such as *{anchor[:60]}, write them out", event)
        value: str = getattr(event, "value", "")
        if any("\ud800" <= letter <= "\udfff" for letter in value):
            raise _refusal("a text has half of a character, write its code as \\U and eight digits", event)
        # A long text counts for several: aliases may repeat it.
        self._nodes += self._sizes.get(anchor, 0) + 1 + len(value) // 64
        if self._nodes > MOST_NODES:
            raise _refusal(f"it has more than {MOST_NODES:,} keys and values", event)
        if self._depth == DEEPEST:
            raise _refusal(f"it is nested more than {DEEPEST} levels deep", event)
        self._depth += 1
        node: yaml.Node | None = super().compose_node(parent, index)
        self._depth -= 1
        if anchor is not None:
            self._sizes.setdefault(anchor, self._nodes - before)
        return node

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Refuse a repeated key, and one that is no word."""
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise _refusal("a key is a list or a section, write a word", key)
            if key.value in seen:
                raise _refusal(f"the key {key.value[:60]!r} is there twice", key)
            seen.add(key.value)
        return super().construct_mapping(node, deep=deep)

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        """Python refuses to read thousands of digits."""
        if len(node.value) > 100:
            raise _refusal(f"a number has {len(node.value)} digits", node)
        return int(super().construct_yaml_int(node))


_STR = "tag:yaml.org,2002:str"
_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_yaml_int)


def _refusal(problem: str, at: Any) -> yaml.constructor.ConstructorError:
    return yaml.constructor.ConstructorError(None, None, problem, at.start_mark)


class _Dumper(yaml.SafeDumper):
    """Quotes whatever either set of rules would read as something else, so that any YAML reader agrees."""


for _name, _pattern, _first in _RULES:
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_name}", _pattern, list(_first or "") or None)
_Loader.add_implicit_resolver("tag:yaml.org,2002:null", re.compile("$"), [""])
_Dumper.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, list("-+0123456789."))


def parse(text: str) -> Any:
    """Plain data from YAML; raises yaml.YAMLError."""
    if len(text) > LARGEST:
        raise yaml.YAMLError(f"it is longer than {LARGEST >> 10} KiB")
    return yaml.load(text, Loader=_Loader)


def render(tree: Any) -> str:
    """YAML that `parse` reads back unchanged."""
    return yaml.dump(tree, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=110)
