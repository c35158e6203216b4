"""`--json FILE` of every benchmark. Nothing here imports torch: some benchmarks measure processes, and stay small themselves."""

from __future__ import annotations

import argparse
import json


def json_flag(parser: argparse.ArgumentParser) -> None:
    """`--json FILE`, for `write_json`."""
    parser.add_argument("--json", metavar="FILE", help="write the results there as JSON, too")


def write_json(path: str | None, found: object) -> None:
    """As JSON to the file, if one was asked for."""
    if path:
        with open(path, "w", encoding="utf-8") as file:
            json.dump(found, file, indent=1, ensure_ascii=False)
