"""Print the two walks a newcomer follows through the package: `scdd sample`, and one step of `scdd train nano`.

`python tools/walks.py` lists the files that run, in the order of their first call; `--edges` lists the calls as well. A
file counts if one of its functions ran, other than because a module was imported. An edge leads from the file of a call to
the file it arrives in, through whatever other libraries lie between. A climb is an edge to a room above its own, in the
order that the import rules of pyproject.toml give. The training step reaches from the second entry into the step function
to the third; threads that work for it count from their start, since how far they run ahead is chance. PYTHONPATH decides
which tree is walked.
"""

from __future__ import annotations

import argparse
import inspect
import json
import os
import pkgutil
import re
import subprocess
import sys
import tempfile
import threading
import traceback
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from importlinter.api import read_configuration

STEP = "scdd.training.trainer:Trainer.advance"  # entered once in each optimiser step
COMMANDS = {
    "sample": "sample --device=cpu --dtype=float32 --steps=4 --length=16",
    "train": "train nano --device=cpu --out=FOLDER/run --set=training.steps=3 --set=training.max_seconds=600",
}


@dataclass(frozen=True)
class Walk:
    """What one command runs; files are named from the package's folder, an edge is "caller's file -> callee's file"."""

    files: list[str]  # in the order of their first call
    edges: list[str]
    climbs: list[str]
    modules: int  # of the package, imported


class Calls:
    """A profiler that keeps which files of the package call which: between two entries into `step`, or always."""

    def __init__(self, root: Path, step: CodeType | None) -> None:
        self.root, self.step, self.entries = f"{root}{os.sep}", step, 0
        self.main = threading.get_ident()
        self.calls: dict[int, dict[tuple[str, str], None]] = {self.main: {}}  # by thread: callee, caller

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        """What the interpreter tells of each call."""
        if event != "call":
            return
        thread = threading.get_ident()
        if frame.f_code is self.step:
            self.entries += 1
            if self.entries == 3:  # threads that have ended by now did not work for the step
                alive = {each.ident for each in threading.enumerate()}
                self.calls = {key: calls for key, calls in list(self.calls.items()) if key in alive}
        outside = self.entries > 2 or (self.entries < 2 and thread == self.main)
        if (self.step and outside) or not frame.f_code.co_filename.startswith(self.root):
            return
        codes = (above.f_code for above, _ in traceback.walk_stack(frame))
        ours = [code for code in codes if code.co_filename.startswith(self.root)]
        if all(code.co_flags & inspect.CO_OPTIMIZED for code in ours):  # no body of a module or a class
            pair = ours[0].co_filename, ours[min(1, len(ours) - 1)].co_filename
            self.calls.setdefault(thread, {})[pair] = None

    def walk(self, rooms: dict[str, int]) -> Walk:
        """What was seen, in the main thread first."""
        names = [
            [Path(file).relative_to(self.root).as_posix() for file in pair]
            for calls in self.calls.values()
            for pair in calls
        ]
        edges = {f"{caller} -> {file}": (caller, file) for file, caller in names if caller != file}
        climbs = [edge for edge, (a, b) in edges.items() if _depth(a, rooms) > _depth(b, rooms) >= 0]
        modules = sum(name.partition(".")[0] == "scdd" for name in sys.modules)
        return Walk(list(dict.fromkeys(file for file, _ in names)), list(edges), climbs, modules)


def _rooms(pyproject: Path) -> dict[str, int]:
    """How far down each room lies, by the first contract on layers."""
    contracts: list[Any] = read_configuration(str(pyproject))["contracts_options"]
    layers = next(contract["layers"] for contract in contracts if contract["type"] == "layers")
    return {room: depth for depth, layer in enumerate(layers) for room in re.findall(r"[\w.]+", layer)}


def _depth(file: str, rooms: dict[str, int]) -> int:
    """How far down the file's room lies; -1 for a file in none."""
    parts = file.removesuffix(".py").split("/")
    names = (".".join(parts[:end]) for end in range(len(parts), 0, -1))
    return next((rooms[name] for name in names if name in rooms), -1)


def _trace(name: str, step: str) -> Walk:
    """The walk, in this process."""
    root = Path(str(import_module("scdd").__file__)).parent
    function = pkgutil.resolve_name(step) if name == "train" else None
    calls = Calls(root, inspect.unwrap(function).__code__ if function else None)
    main = import_module("scdd.cli.main").main
    with tempfile.TemporaryDirectory() as folder:
        threading.setprofile(calls)
        sys.setprofile(calls)
        status = main(COMMANDS[name].replace("FOLDER", folder).split())
        sys.setprofile(None)
    if status != 0 or (function and calls.entries < 3):
        raise SystemExit(f"scdd {name} ended with status {status} after {calls.entries} entries into {step}")
    return calls.walk(_rooms(root.parents[1] / "pyproject.toml"))


def walk(name: str, step: str = STEP) -> Walk:
    """The walk of `scdd sample`, or of one step of `scdd train`, in a process of its own."""
    command = [sys.executable, __file__, f"--step={step}", f"--trace={name}"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stdout + done.stderr)
    return Walk(**json.loads(done.stdout.splitlines()[-1]))


def main() -> None:
    """Print both walks, or be the process that is walked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--step", default=STEP, help="entered in each optimiser step (default: %(default)s)")
    parser.add_argument("--edges", action="store_const", const=None, default=0, help="print every edge")
    parser.add_argument("--trace", choices=COMMANDS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.trace:
        lines = [json.dumps(asdict(_trace(options.trace, options.step)))]
    else:
        walks = {name: walk(name, options.step) for name in COMMANDS}
        lines = [f"{'':12}{'files':>7}{'edges':>7}{'climbs':>8}{'modules':>9}"]
        for name, it in walks.items():
            lines.append(f"scdd {name:7}{len(it.files):7}{len(it.edges):7}{len(it.climbs):8}{it.modules:9}")
        for name, it in walks.items():
            shown = [*it.files, *(f"climbs: {climb}" for climb in it.climbs), *it.edges[: options.edges]]
            lines += ["", f"scdd {name}", *(f"  {line}" for line in shown)]
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
