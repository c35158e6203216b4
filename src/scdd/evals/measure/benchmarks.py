"""The paper's seven multiple-choice tasks as files: one JSON object a line, maybe compressed."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from scdd.core.errors import UserError
from scdd.data.files import COMPRESSIONS, open_input

NAMES = ("arc_easy", "arc_challenge", "boolq", "hellaswag", "openbook_qa", "piqa", "winogrande")
TASKS = Path(__file__).parent / "assets" / "tasks"
PREFIX = "scdd_"  # apart from the harness's own tasks, which come from the hub
VARIABLE = "SCDD_BENCHMARKS"


def folder(data: str | None = None) -> Path:
    """Where the files are: `data`, SCDD_BENCHMARKS, or benchmarks/ in SCDD_DATA."""
    named, shared = data or os.environ.get(VARIABLE), os.environ.get("SCDD_DATA")
    place = Path(named) if named else Path(shared) / "benchmarks" if shared else None
    if place is None or not place.is_dir():
        raise UserError(
            f"The seven tasks need their files: name the folder of {NAMES[0]}.jsonl and the others, or set {VARIABLE}."
        )
    return place


def documents(name: str, data: str | None = None) -> list[dict[str, Any]]:
    """The questions of one task: query, choices, gold; for winogrande context_options, continuation, gold."""
    where = folder(data)
    for suffix in ("", *COMPRESSIONS):
        path = where / f"{name}.jsonl{suffix}"
        if path.is_file():
            text, raw = open_input(path)
            with raw, text:
                return [json.loads(line) for line in text]
    raise UserError(f"{where} has no {name}.jsonl (or .xz, .gz, .zst): name another folder.")
