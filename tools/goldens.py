"""Prove that a refactor changes nothing: record what the commands do, then compare another tree with it.

    PYTHONPATH=before/src python tools/goldens.py record FOLDER
    PYTHONPATH=after/src  python tools/goldens.py compare FOLDER [--allow CASE]… [--only CASE]…

Only the command line is used (`python -m scdd …`; PYTHONPATH decides which tree), so that everything behind it may change.
The cases are in goldens.yaml. FOLDER then holds the small models that were trained, and one JSON file a case: texts and
tokens of every verb and sampler, the numbers of measurements, and of each training its metrics and a hash of every tensor
that it saved. `compare` trains everything again, but samples from and measures the recorded models, which must therefore
still load; it prints one line a case and exits with 1 if any differs. CASE may have * in it; `--allow` names differences
that are meant, and `--only train-scdd` chooses a training with all its cases. Numbers are compared to the last bit, so
they mean something only on one machine with one torch.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import yaml

PLAN = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
RUNS: dict[str, str] = PLAN["runs"]
CASES: dict[str, str] = PLAN["cases"]
FIXED = {f"{library}_NUM_THREADS": "2" for library in ("OMP", "MKL", "OPENBLAS")}
FIXED |= {"MKL_DYNAMIC": "FALSE", "CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1", "COLUMNS": "100"}
SCDD = ["-m", "scdd"]
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", *SCDD]
UNREPEATABLE = ("made", "seconds", "tokens_per_second", "eta", "memory")  # times, dates and machines
Outputs = dict[str, Any]  # by case


class Failed(Exception):
    """A command that did not end well."""


def scdd(work: Path, arguments: list[str], launcher: list[str] = SCDD) -> str:
    """What the command prints."""
    done = subprocess.run([sys.executable, *launcher, *arguments], cwd=work, capture_output=True, text=True)
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip()).splitlines() or [""]
        raise Failed(f"exit status {done.returncode}: {said[-1]}")
    return done.stdout


def command(name: str) -> str:
    """What follows `scdd` in a case."""
    words = CASES[name]
    for word, meaning in {**PLAN["words"], "CASE": name}.items():
        words = words.replace(f"${word}", meaning)
    return words


def verb(work: Path, name: str) -> Outputs:
    """What one case prints, as JSON where it is; and the hash of the page that it leaves, if it does."""
    printed = scdd(work, shlex.split(command(name))).splitlines()
    outputs: Outputs = {name: [repeatable(json.loads(line)) if line[:1] == "{" else line for line in printed]}
    if "--trace" in command(name):
        outputs[f"{name}.page"] = hashlib.sha256((work / "trace.html").read_bytes()).hexdigest()
    return outputs


def train(work: Path, name: str, place: str) -> Outputs:
    """Train one model into `place`, and say what came out."""
    out = work / place / name
    changes = [f"--set={change}" for change in f"{PLAN['common']} {RUNS[name]}".split()]
    command = ["train", "nano", f"--out={place}/{name}", *changes]
    scdd(work, command, TORCHRUN if name == "ddp" else SCDD)
    outputs = {f"train-{name}.{part}": told for part, told in trained(out).items()}
    if name == "scdd":  # the same in two pieces, of which the first ends while the learning rate still rises
        halves = [*command, f"--out={place}/halves"]
        scdd(work, [*halves, "--set=training.steps=30"])
        scdd(work, halves)
        apart = differences(trained(out), trained(work / place / "halves"))
        outputs["train-scdd.resumed-as-whole"] = list(apart)
    return outputs


def trained(run: Path) -> Outputs:
    """Metrics, published weights, and what resuming needs, of a run's newest checkpoint."""
    newest = max((run / "checkpoints").glob("step-*"))
    metrics = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    states = [tensors(file) for file in sorted(newest.glob("resume/*.safetensors"))]
    return {
        "metrics": [repeatable(json.loads(line)) for line in metrics],
        "weights": tensors(newest / "model.safetensors"),
        "resume": {name: told for state in states for name, told in state.items()},
        "meta": repeatable(json.loads((newest / "meta.json").read_text(encoding="utf-8"))),
    }


def tensors(file: Path) -> dict[str, str]:
    """Each tensor's type, shape and hash."""
    content = file.read_bytes()
    start = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:start])
    header.pop("__metadata__", None)
    told = {}
    for name, entry in sorted(header.items()):
        first, last = entry["data_offsets"]
        digest = hashlib.sha256(content[start + first : start + last]).hexdigest()
        told[name] = f"{entry['dtype']} {entry['shape']} {digest}"
    return told


def repeatable(record: dict[str, Any]) -> dict[str, Any]:
    """Without what differs from run to run."""
    return {key: value for key, value in record.items() if key not in UNREPEATABLE}


def differences(before: Any, after: Any, where: str = "") -> Iterator[str]:
    """Every place where two JSON values differ."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key in {**before, **after}:
            yield from differences(before.get(key, "absent"), after.get(key, "absent"), f"{where}.{key}")
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for index, pair in enumerate(zip(before, after, strict=True)):
            yield from differences(*pair, f"{where}[{index}]")
    elif repr(before) != repr(after):  # every digit, and nan is nan
        yield f"{where or 'all'}: {before!r:.80} became {after!r:.80}"


def everything(work: Path, place: str, only: list[str]) -> Iterator[tuple[str, Any]]:
    """Carry out the chosen tasks, first the trainings and then the verbs, two at a time: their cases and outputs."""

    def outputs(task: str) -> Outputs:
        try:
            return verb(work, task) if task in CASES else train(work, task.removeprefix("train-"), place)
        except (Failed, OSError, ValueError) as error:
            return {task: Failed(error)}

    started = [f"train-{name}" for name, changes in RUNS.items() if "start_from" in changes]
    fresh = [f"train-{name}" for name in RUNS if f"train-{name}" not in started]
    with ThreadPoolExecutor(2) as pool:
        for stage in (fresh, started, CASES):
            for told in pool.map(outputs, [task for task in stage if not only or matches(task, only)]):
                yield from told.items()


def matches(name: str, patterns: list[str]) -> bool:
    """Whether one of the patterns fits."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def difference(file: Path, value: Any, recording: bool) -> str | None:
    """The first difference from the recorded file, which is written first when `recording`."""
    if isinstance(value, Failed):
        return str(value)
    if recording:
        file.parent.mkdir(exist_ok=True)
        file.write_text(json.dumps(value, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    if not file.exists():
        return "not recorded"
    return next(differences(json.loads(file.read_text(encoding="utf-8")), value), None)


def main() -> int:
    """Record or compare; 1 if something differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("action", choices=["record", "compare"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--allow", metavar="CASE", action="append", default=[], help="may differ")
    parser.add_argument("--only", metavar="CASE", action="append", default=[], help="leave out the others")
    options = parser.parse_args()
    recording, folder, began = options.action == "record", options.folder.resolve(), time.monotonic()
    if folder.exists() == recording:
        parser.error(f"{folder} {'is there already' if recording else 'is not there'}")
    (folder / "runs").mkdir(parents=True, exist_ok=True)
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    os.environ.update(FIXED, PYTHONPATH=os.pathsep.join(os.path.abspath(path) for path in paths if path))
    counts = dict.fromkeys(("ok", "allowed", "differs"), 0)
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        where = [sys.executable, "-c", "import scdd; print(scdd.__path__[0])"]
        sys.stdout.write(f"{options.action} {subprocess.check_output(where, cwd=work, text=True)}")
        (work / "runs").symlink_to(folder / "runs")
        (work / "text.txt").write_text(PLAN["text"] * 4, encoding="utf-8")
        (work / "masked.txt").write_text(PLAN["text"].replace("the town", "[MASK:2]") * 4, encoding="utf-8")
        for case, value in everything(work, "runs" if recording else "new", options.only):
            differing = difference(folder / "cases" / f"{case}.json", value, recording)
            standing = "ok" if not differing else "allowed" if matches(case, options.allow) else "differs"
            counts[standing] += 1
            sys.stdout.write(f"{standing:8}{case}{f': {differing}' if differing else ''}\n")
            sys.stdout.flush()
    told = ", ".join(f"{count} {standing}" for standing, count in counts.items())
    sys.stdout.write(f"{told}, in {time.monotonic() - began:.0f} s\n")
    return int(counts["differs"] > 0)


if __name__ == "__main__":
    sys.exit(main())
