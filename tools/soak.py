"""The attacks of tests/attack for as long as you like: `make soak SECONDS=3600`, or `python tools/soak.py --help`.

Every part works in rounds, each repeatable by its number, and keeps its counts below `build/soak` after each: a soak that
was stopped goes on where it was, and parts may run at the same time. Counts of another commit are dropped. The last lines
are one table; a fault of any kind ends in status 1.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import asdict
from importlib import import_module
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]
for name, value in (("OMP_NUM_THREADS", "1"), ("TOKENIZERS_PARALLELISM", "false"), ("HF_HUB_OFFLINE", "1")):
    os.environ.setdefault(name, value)
os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")])

from tests.attack.fuzz import fuzzing  # noqa: E402
from tests.attack.tally import Part, Tally  # noqa: E402


def fuzzer(module: str, size: int, name: str = "inputs") -> Callable[[], Part]:
    """The part that a test module's inputs make, imported when it is wanted."""
    return lambda: fuzzing(getattr(import_module(f"tests.attack.{module}"), name), size)


def part(module: str, name: str) -> Callable[[], Part]:
    """A part that counts for itself."""
    return lambda: getattr(import_module(f"tests.attack.{module}"), name)  # type: ignore[no-any-return]


PARTS: dict[str, tuple[float, str, Callable[[], Part]]] = {
    "kills": (0.4, "training on 1, 2 and 4 ranks, prepare and export, killed", part("kills", "rounds")),
    "recipes": (0.03, "", fuzzer("test_recipes", 500)),
    "bundles": (0.06, "checkpoint folders, loaded and sampled from", fuzzer("test_bundles", 100)),
    "tokenizers": (0.04, "", fuzzer("test_tokenizers", 500)),
    "shards": (0.04, "shards and their manifests", fuzzer("test_shards", 300)),
    "checkpoints": (0.04, "foreign .ckpt files", fuzzer("test_checkpoints", 1000)),
    "rot": (0.03, "checkpoints of a run with a flipped bit", fuzzer("test_runs", 100)),
    "folders": (0.04, "folders of transformers", fuzzer("test_foreign", 200, "folder_inputs")),
    "gguf": (0.03, "GGUF files", fuzzer("test_foreign", 300, "gguf_inputs")),
    "templates": (0.03, "chat templates", fuzzer("test_foreign", 500, "template_inputs")),
    "commands": (0.08, "command lines", fuzzer("test_cli", 40)),
    "http": (0.04, "HTTP requests, byte by byte", part("clients", "bytes_sent")),
    "openapi": (0.04, "HTTP requests, by the OpenAPI document", part("clients", "documented")),
    "clients": (0.1, "200 and 1,000 clients at once, against serial answers", part("clients", "many")),
}
"""Each part's share of the time, what it attacks, and what makes its rounds."""


def commit() -> str:
    """What is soaked: the commit, and whether there is more."""
    asked = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=10", "--exclude=*"]
    done = subprocess.run(asked, capture_output=True, text=True)
    return done.stdout.strip() or "unknown"


def kept(file: Path, now: str) -> Tally:
    """A part's counts so far."""
    if file.exists():
        state = json.loads(file.read_text(encoding="utf-8"))
        if state["commit"] == now:
            return Tally(**state["tally"])
    return Tally()


def keep(file: Path, now: str, tally: Tally) -> None:
    """Write a part's counts, whole or not at all."""
    beside = file.with_suffix(".writing")
    beside.write_text(json.dumps({"commit": now, "tally": asdict(tally)}, indent=1), encoding="utf-8")
    os.replace(beside, file)


def soak(name: str, seconds: float, folder: Path, now: str) -> None:
    """Rounds of one part until it has had its time, one at least."""
    file = folder / f"{name}.json"
    so_far = kept(file, now)
    if so_far.rounds and so_far.seconds >= seconds:
        return
    try:
        rounds = PARTS[name][2]()
    except BaseException as error:  # pytest's way to skip a module is none of Exception's children
        sys.stderr.write(f"{name} is left out: {error}\n")
        return
    with closing(rounds(folder / "work" / name, so_far.rounds)) as each:  # type: ignore[type-var]
        for tally in each:
            so_far.add(tally)
            keep(file, now, so_far)
            if so_far.seconds >= seconds:
                break
    shutil.rmtree(folder / "work" / name, ignore_errors=True)


def table(tallies: dict[str, Tally]) -> str:
    """One Markdown table of all parts, and a line for all together."""
    whole = Tally()
    for each in tallies.values():
        whole.add(each)
    lines = [
        "| part | inputs or kills | refused | minutes | lost or differing | tracebacks | hangs | over memory | peak, MiB |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for name, one in (*tallies.items(), ("**all**", whole)):
        what = f"{name}: {PARTS[name][1]}" if name in PARTS and PARTS[name][1] else name
        numbers = (f"{one.inputs:,}", f"{one.refused:,}", f"{one.seconds / 60:.1f}", one.differing, one.tracebacks)
        lines.append(f"| {' | '.join(map(str, (what, *numbers, one.hangs, one.memory, one.peak)))} |")
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Soak, print the table, and say with the status whether all held."""
    options = argparse.ArgumentParser(description="Attack for a long time, in parts that can be gone on with.")
    options.add_argument("--seconds", type=float, default=3600, help="for all parts together; one round each at least")
    options.add_argument("--parts", default=",".join(PARTS), help="comma-separated; default: all")
    options.add_argument("--state", type=Path, default=ROOT / "build" / "soak", help="folder of the counts")
    options.add_argument("--fresh", action="store_true", help="forget what was counted before")
    asked = options.parse_args(argv)
    names = asked.parts.split(",")
    if unknown := [name for name in names if name not in PARTS]:
        options.error(f"--parts {', '.join(unknown)}: choose from {', '.join(PARTS)}")
    folder, now = asked.state.resolve(), commit()
    folder.mkdir(parents=True, exist_ok=True)
    if asked.fresh:
        for name in names:
            (folder / f"{name}.json").unlink(missing_ok=True)
    for name in names:
        soak(name, asked.seconds * PARTS[name][0], folder, now)
    tallies = {name: kept(folder / f"{name}.json", now) for name in PARTS}
    sys.stdout.write(table({name: each for name, each in tallies.items() if each.rounds}) + "\n")
    for name, each in tallies.items():
        for note in each.notes[:20]:
            sys.stdout.write(f"\n{name}: {note}\n")
    return 0 if all(each.sound for each in tallies.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
