"""The shape of a recipe, read off its dataclasses: which section sits where, and what may be set in it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from typing import Any, get_args, get_type_hints

from pydantic import TypeAdapter

from scdd.recipe.sections import Recipe


@cache
def hints(section: type) -> dict[str, Any]:
    """Field name → type hint."""
    found = get_type_hints(section, include_extras=True)
    return {field.name: found[field.name] for field in fields(section)}


def members(hint: Any) -> tuple[type, ...]:
    """The sections that a hint allows: itself, or the parts of a union."""
    if isinstance(hint, type) and is_dataclass(hint):
        return (hint,)
    return tuple(section for part in get_args(hint) for section in members(part))


def kinds(section: type) -> tuple[str, ...]:
    """The values of `kind` that mean this section."""
    return get_args(hints(section).get("kind"))


def section_of(hint: Any, node: Any) -> type | None:
    """The section that a node of the tree is meant to be, by its `kind` where there is a choice."""
    allowed = members(hint)
    if len(allowed) < 2:
        return allowed[0] if allowed else None
    kind = node.get("kind") if isinstance(node, Mapping) else None
    return next((section for section in allowed if kind in kinds(section)), None)


def default_of(section: type | None, key: str) -> dict[str, Any]:
    """A section's default for a subsection, as plain data; empty where it has none."""
    for field in fields(section) if section is not None else ():
        if field.name == key and field.default is not MISSING and is_dataclass(field.default):
            plain: dict[str, Any] = TypeAdapter(type(field.default)).dump_python(field.default, mode="json")
            return plain
    return {}


def settings(hint: Any = Recipe, prefix: str = "") -> Iterator[str]:
    """Every path that some recipe may set."""
    for section in members(hint):
        for key, inner in hints(section).items():
            yield prefix + key
            yield from settings(inner, f"{prefix}{key}.")
