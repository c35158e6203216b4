"""The paper's seven multiple-choice tasks as files: one JSON object a line, maybe compressed."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from scdd.core.errors import UserError
from scdd.data.files import COMPRESSIONS, open_input

NAMES = ("arc_easy", "arc_challenge", "boolq", "hellaswag", "openbook_qa", "piqa", "winogrande")
TASKS = Path(__file__).parent / "assets" / "tasks"
PREFIX = "scdd_"  # apart from the harness's own tasks, which come from the hub
VARIABLE = "SCDD_BENCHMARKS"


def folder() -> Path:
    """Where the files are: SCDD_BENCHMARKS, or benchmarks/ in SCDD_DATA."""
    named = os.environ.get(VARIABLE)
    data = os.environ.get("SCDD_DATA")
    place = Path(named) if named else Path(data) / "benchmarks" if data else None
    if place is None or not place.is_dir():
        raise UserError(
            f"The seven tasks need their files: name the folder of {NAMES[0]}.jsonl and the others, or set {VARIABLE}."
        )
    return place


@contextmanager
def at(data: str | None) -> Iterator[None]:
    """`data` as the folder while it lasts; the task files ask for it where no argument reaches."""
    before = os.environ.get(VARIABLE)
    if data is not None:
        os.environ[VARIABLE] = data
    try:
        yield
    finally:
        if before is not None:
            os.environ[VARIABLE] = before
        elif data is not None:
            del os.environ[VARIABLE]


def documents(name: str) -> list[dict[str, Any]]:
    """The questions of one task: query, choices, gold; for winogrande context_options, continuation, gold."""
    where = folder()
    for suffix in ("", *COMPRESSIONS):
        path = where / f"{name}.jsonl{suffix}"
        if path.is_file():
            text, raw = open_input(path)
            with raw, text:
                return [json.loads(line) for line in text]
    raise UserError(f"{where} has no {name}.jsonl (or .xz, .gz, .zst): name another folder.")
