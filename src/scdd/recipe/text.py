"""YAML as people expect it: 1.2's rules for numbers and booleans, and no key twice.

PyYAML follows YAML 1.1, where 5e-4 is a string, `no` is false, 1:30 is ninety and a repeated key silently wins.
"""

from __future__ import annotations

import re
from typing import Any

import yaml

_FLOAT = re.compile(
    r"[-+]?(?:(?:[0-9][0-9_]*\.[0-9_]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?|[0-9][0-9_]*[eE][-+]?[0-9]+)$"
)
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
