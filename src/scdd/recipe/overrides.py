"""`a.b=c`: change one setting of a recipe's tree before it is checked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_origin

import yaml

from scdd.core.errors import UserError
from scdd.recipe.load import parse
from scdd.recipe.sections import Recipe
from scdd.recipe.tree import default_of, hints, kinds, members, section_of


def override(tree: dict[str, Any], assignment: str) -> str:
    """Carry out one assignment in place and return its path; the value is read as YAML.

    A section that the recipe leaves to its default is written out first, so that setting one of its keys keeps the
    others. A new `kind` drops the keys that only the old one knew.
    """
    path, equals, text = assignment.partition("=")
    keys = path.strip().split(".")
    if not equals or not all(keys):
        raise UserError(f"{assignment}: write it as path.to.key=value, such as training.steps=100.")
    try:
        value = parse(text)
    except yaml.YAMLError as error:
        raise UserError(f"{assignment}: {text!r} is not YAML; quote it.") from error
    node: Any = tree
    hint: Any = Recipe
    for depth, key in enumerate(keys[:-1], start=1):
        section = section_of(hint, node)
        known = hints(section) if section is not None else {}
        hint = known.get(key)
        sections = bool(members(hint)) or get_origin(hint) is Mapping  # keys of somebody else's
        if (key in known and not sections) or not isinstance(node.setdefault(key, default_of(section, key)), dict):
            whole = ".".join(keys[:depth])
            raise UserError(f"{assignment}: {whole} is a value, not a section; set {whole} as a whole.")
        node = node[key]
    if keys[-1] == "kind":
        _forget_other_kind(node, hint, value)
    node[keys[-1]] = value
    return ".".join(keys)


def _forget_other_kind(node: dict[str, Any], hint: Any, kind: Any) -> None:
    """Drop what the section held before its kind changed and cannot hold after."""
    before, after = section_of(hint, node), section_of(hint, {"kind": kind})
    if before is None or after is None or before is after:
        return
    for key in set(node) & set(hints(before)):
        inner = members(hints(after).get(key))
        misfit = bool(inner) and isinstance(node[key], dict) and node[key].get("kind") not in _all_kinds(inner)
        if key not in hints(after) or misfit:
            del node[key]


def _all_kinds(sections: tuple[type, ...]) -> set[str]:
    return {kind for section in sections for kind in kinds(section)}
