"""From pydantic's findings to sentences that name the place, the mistake and the cure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any, get_args, get_origin

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from scdd.core.errors import UserError
from scdd.core.options import refusal_of
from scdd.data.address import without_secrets
from scdd.recipe.sections import Recipe
from scdd.recipe.tree import hints, kinds, members, section_of, settings

MOST = 20  # findings that are told
ELSEWHERE = {"bfloat16": "bf16", "fp32": "float32", "f32": "float32", "fp16": "bf16", "float16": "bf16"}
"""What others call a number format."""


def explain(
    error: ValidationError, tree: Mapping[str, Any], source: str, overrides: Mapping[str, str], root: type = Recipe
) -> UserError:
    """One sentence a finding. Findings that an override caused name the override instead of the file.

    `root` is what the tree was to be: a recipe, or other options that are read as recipes are.
    """
    lines = []
    findings = error.errors(include_url=False)
    for finding in findings[:MOST]:
        keys = _path(finding["loc"], tree)
        related = [at for at in overrides if keys and _related(at, ".".join(keys))]
        # A finding about a whole section names the keys that do not agree: the override of one of them is the cause.
        named = [at for at in related if at.rpartition(".")[2] in finding["msg"].split()]
        culprit = overrides[(named or related)[0]] if related else None
        where = source if culprit is None else without_secrets(culprit)
        sentence = _sentence(finding, keys, tree, root)
        # Options refuse in whole sentences, with their full stop; what is made here has none yet.
        lines.append(f"{where}: {sentence}{'' if sentence.endswith(('?', '.')) else '.'}")
    if len(findings) > MOST:
        lines.append(f"{source}: {len(findings) - MOST:,} more mistakes are not shown.")
    return UserError("\n".join(dict.fromkeys(lines)))


def _related(one: str, other: str) -> bool:
    """Whether one path is the other or lies inside it."""
    return f"{one}.".startswith(f"{other}.") or f"{other}.".startswith(f"{one}.")


def _path(location: tuple[int | str, ...], tree: Any) -> list[str]:
    """The keys as the user wrote them: pydantic also lists the `kind` that it chose on the way."""
    keys: list[str] = []
    node = tree
    for part in location:
        if isinstance(node, Mapping):
            if part not in node and part == node.get("kind"):
                continue
            node = node.get(part)
        elif isinstance(node, list) and isinstance(part, int) and part < len(node):
            node = node[part]
        keys.append(str(part))
    return keys


def _sentence(finding: ErrorDetails, keys: list[str], tree: Mapping[str, Any], root: type) -> str:
    path, given, context = ".".join(key[:60] for key in keys), finding["input"], finding.get("ctx", {})
    match finding["type"]:
        case "unexpected_keyword_argument" | "extra_forbidden":
            return f"{path} is not a known key{_nearest_key(keys, tree, root)}"
        case "missing" | "missing_argument" | "missing_keyword_only_argument":
            return f"{path} is missing"
        case "union_tag_not_found":
            return f"{path}.kind is missing; choose one of {_listed(_tags(keys, tree, root))}"
        case "union_tag_invalid":
            return _not_among(f"{path}.kind", context["tag"], _tags(keys, tree, root))
        case "literal_error":
            return _not_among(path, given, _quoted(context["expected"]))
        case "dataclass_type" | "model_attributes_type" | "dict_type":
            return f"{path} is {_shown(given)}: it should be a section with keys of its own"
        case "value_error":
            return f"{path + ': ' if path else ''}{context['error']}"
        case _:
            cure = _cure(keys, tree, given, root) or finding["msg"].replace("Input should", "it should")
            return f"{path} is {_shown(given)}: {cure}"


def _cure(keys: list[str], tree: Mapping[str, Any], given: Any, root: type) -> str | None:
    """What the option's own rule says of the value, so that a recipe and Python are told the same; None if it has none."""
    hint, node = _hint_at(keys[:-1], tree, root)
    section = section_of(hint, node)
    return None if section is None or not keys else refusal_of(section, keys[-1], given)


def _shown(value: Any) -> str:
    """A value as YAML writes it, cut to a readable length."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _listed(names: list[str]) -> str:
    return ", ".join(names)


def _quoted(expected: str) -> list[str]:
    """Pydantic's "'a', 'b' or 'c'" as a list."""
    return expected.split("'")[1::2]


def _not_among(path: str, given: Any, allowed: list[str]) -> str:
    meant = ELSEWHERE.get(str(given))
    near = [meant] if meant in allowed else get_close_matches(str(given), allowed, n=1)
    hint = f"; did you mean {near[0]}?" if near else ""
    return f"{path} is {_shown(given)}: choose one of {_listed(allowed)}{hint}"


def _hint_at(keys: list[str], tree: Mapping[str, Any], root: type) -> tuple[Any, Any]:
    """Type hint and node at a path that exists."""
    hint: Any = root
    node: Any = tree
    for key in keys:
        if (inside := _contents(hint)) is not None:
            hint = inside
        else:
            section = section_of(hint, node)
            hint = hints(section).get(key) if section is not None else None
        node = node[int(key)] if isinstance(node, list) else node.get(key) if isinstance(node, Mapping) else None
    return hint, node


def _contents(hint: Any) -> Any:
    """What a list or a dictionary holds, by its hint; None where it is neither."""
    origin = get_origin(hint)
    return get_args(hint)[-1 if origin is Mapping else 0] if origin in (Mapping, tuple) else None


def _tags(keys: list[str], tree: Mapping[str, Any], root: type) -> list[str]:
    return [kind for section in members(_hint_at(keys, tree, root)[0]) for kind in kinds(section)]


def _nearest_key(keys: list[str], tree: Mapping[str, Any], root: type) -> str:
    """Why a key is not known here, and where it might be: nearby, under another kind, or in another section."""
    hint, node = _hint_at(keys[:-1], tree, root)
    section = section_of(hint, node)
    known = list(hints(section)) if section is not None else []
    near = get_close_matches(keys[-1], known, n=1)
    if near:
        return f"; did you mean {near[0]}?"
    owners = [kind for other in members(hint) if keys[-1] in hints(other) for kind in kinds(other)]
    if owners:
        first = f", so set {'.'.join(keys[:-1])}.kind={owners[0]} before it" if len(owners) == 1 else ""
        return f" of kind {node.get('kind')}; it belongs to kind {' or '.join(owners)}{first}"
    known_paths = settings() if root is Recipe else ()
    elsewhere = [path for path in known_paths if path.rpartition(".")[2] == keys[-1] and path != ".".join(keys)]
    if elsewhere:
        return f" here; did you mean {elsewhere[0]}?"
    return f"; the keys here are {_listed(known)}"
