"""The paper's seven multiple-choice tasks as files: one JSON object a line, maybe compressed."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, NamedTuple

from scdd.core.errors import UserError
from scdd.data.files import COMPRESSIONS, DAMAGE, open_input

NAMES = ("arc_easy", "arc_challenge", "boolq", "hellaswag", "openbook_qa", "piqa", "winogrande")
TASKS = Path(__file__).parent / "assets" / "tasks"
PREFIX = "scdd_"  # apart from the harness's own tasks, which come from the hub
VARIABLE = "SCDD_BENCHMARKS"
LONGEST_LINE, MOST_CHOICES = 1 << 20, 64  # far beyond any real question
UNCUED = ("hellaswag", "openbook_qa")  # the answer goes on with the query; the other queries end in "Answer:"
FORM = "an object of query (text), choices (texts) and gold (the right one's number from 0)"
TWO_CONTEXTS = "an object of context_options (texts), continuation (text) and gold (the right one's number from 0)"


class Choice(NamedTuple):
    """Whole texts, question and answer, of which number `gold` is right."""

    texts: tuple[str, ...]
    gold: int


def folder(data: str | None = None) -> Path:
    """Where the files are: `data`, SCDD_BENCHMARKS, or benchmarks/ in SCDD_DATA."""
    named, shared = data or os.environ.get(VARIABLE), os.environ.get("SCDD_DATA")
    place = Path(named) if named else Path(shared) / "benchmarks" if shared else None
    if place is None or not place.is_dir():
        raise UserError(
            f"The seven tasks need their files: name the folder of {NAMES[0]}.jsonl and the others, or set {VARIABLE}."
        )
    return place


def choices(name: str, data: str | None = None) -> list[Choice]:
    """The questions of one task, each with its possible answers, as assets/tasks has the harness put them."""
    found = []
    for document in documents(name, data):
        if name == "winogrande":
            texts = [f"{context} {document['continuation']}" for context in document["context_options"]]
        else:
            query = document["query"].strip() if name == "piqa" else document["query"]
            cue = "" if name in UNCUED else "\nAnswer:"
            texts = [f"{query}{cue} {answer}" for answer in document["choices"]]
        found.append(Choice(tuple(texts), document["gold"]))
    return found


def documents(name: str, data: str | None = None) -> list[dict[str, Any]]:
    """The lines of one task's file: query, choices, gold; for winogrande context_options, continuation, gold."""
    path, found, number = _file(name, folder(data)), [], 0
    text, raw = open_input(path)
    try:
        with raw, text:
            while line := text.readline(LONGEST_LINE + 1):
                number += 1
                if not line.isspace():
                    found.append(_document(name, line, f"{path}, line {number}"))
    except DAMAGE as error:
        raise UserError(f"{path} is damaged after line {number} ({error}): fetch it again.") from error
    if not found:
        raise UserError(f"{path} has no question: fetch it again, or name another folder.")
    return found


def _file(name: str, where: Path) -> Path:
    for suffix in ("", *COMPRESSIONS):
        path = where / f"{name}.jsonl{suffix}"
        if path.is_file():
            return path
    raise UserError(f"{where} has no {name}.jsonl (or .xz, .gz, .zst): name another folder.")


def _document(name: str, line: bytes, where: str) -> dict[str, Any]:
    """One checked line."""
    text, several, form = ("query", "choices", FORM)
    if name == "winogrande":
        text, several, form = ("continuation", "context_options", TWO_CONTEXTS)
    try:
        if len(line) > LONGEST_LINE:
            raise ValueError(f"longer than {LONGEST_LINE} bytes")
        document = json.loads(line)
        if not isinstance(document, dict):
            raise ValueError("no object")
        options, gold = document.get(several), document.get("gold")
        if not isinstance(document.get(text), str):
            raise ValueError(f"{text} is no text")
        if not isinstance(options, list) or not 2 <= len(options) <= MOST_CHOICES:
            raise ValueError(f"{several} is no list of 2 to {MOST_CHOICES}")
        if not all(isinstance(option, str) and option for option in options):
            raise ValueError(f"{several} has something other than texts in it")
        if type(gold) is not int or not 0 <= gold < len(options):  # True is no number here
            raise ValueError(f"gold is not a number from 0 to {len(options) - 1}")
    except (ValueError, RecursionError) as error:
        raise UserError(f"{where}, is no question of {name} ({error}): make it {form}.") from error
    return document
