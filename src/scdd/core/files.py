"""Small files from outside: read whole, and only if they are small."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from scdd.core.errors import UserError, reason

CONFIG_LIMIT = 16 << 20  # bytes of a configuration or an index of shards
TOKENIZER_LIMIT = 64 << 20
YAML_LIMIT, DEEPEST = 1 << 18, 60
HEADER_LIMIT = 16 << 20  # bytes that say which tensors a .safetensors file holds


def read_text(file: str | Path, limit: int = CONFIG_LIMIT) -> str:
    """A text file of at most `limit` bytes."""
    file = Path(file)
    try:
        with open(file, "rb") as handle:
            content = handle.read(limit + 1)
        if len(content) > limit:
            raise UserError(f"{file} is larger than {limit >> 20} MiB, so it is not what its name says: check it.")
        return content.decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{file} cannot be read ({error}): fetch it again.") from error


def plain_yaml(text: str) -> Any:
    """Plain data from somebody's small YAML text; ValueError where it is none, too large, or names its own parts."""
    import yaml

    if len(text) > YAML_LIMIT:
        raise ValueError(f"it is larger than {YAML_LIMIT >> 10} KiB")
    depth = 0
    try:
        for event in yaml.parse(text, Loader=yaml.SafeLoader):
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if isinstance(event, yaml.AliasEvent) or depth > DEEPEST:
                raise ValueError("it is nested too deep, or repeats parts of itself")
        return yaml.safe_load(text)
    # What PyYAML makes of `!!int ''` and its like raises anything.
    except (yaml.YAMLError, LookupError, TypeError, AttributeError, ArithmeticError, ValueError) as error:
        raise ValueError(reason(error)) from error


def check_header(file: Path) -> None:
    """ValueError where a .safetensors file lists more tensors than any model has: each takes far more than its line."""
    with open(file, "rb") as handle:
        if int.from_bytes(handle.read(8), "little") > HEADER_LIMIT:
            raise ValueError("its header is too long")


def read_json(file: str | Path, limit: int = CONFIG_LIMIT) -> dict[str, Any]:
    """The object in a JSON file of at most `limit` bytes."""
    try:
        found = json.loads(read_text(file, limit))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{file} is damaged ({error}): fetch it again.") from error
    if not isinstance(found, dict):
        raise UserError(f"{file} is damaged (it holds no object): fetch it again.")
    return found
