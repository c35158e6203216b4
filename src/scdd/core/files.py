"""Small files from outside: read whole, and only if they are small."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from scdd.core.errors import UserError

CONFIG_LIMIT = 16 << 20  # bytes of a configuration or an index of shards
TOKENIZER_LIMIT = 64 << 20
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


def read_json(file: str | Path, limit: int = CONFIG_LIMIT) -> dict[str, Any]:
    """The object in a JSON file of at most `limit` bytes."""
    try:
        found = json.loads(read_text(file, limit))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{file} is damaged ({error}): fetch it again.") from error
    if not isinstance(found, dict):
        raise UserError(f"{file} is damaged (it holds no object): fetch it again.")
    return found
