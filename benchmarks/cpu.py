"""How long a text takes on a CPU: the whole command, and Python with torch imported before scdd and after; idle and beside others.

    python benchmarks/cpu.py                          # two busy processes, three rounds, the bundled model in its usual dtype
    python benchmarks/cpu.py --dtypes float32,bfloat16,int8 --rounds 5
    python benchmarks/cpu.py --against ../main/src    # another checkout's package in the same rounds, for a ratio
    python benchmarks/cpu.py --quality TEXT.jsonl     # nats a token of each dtype on the same text, noise and times

Every line is a process of its own: seconds of the whole process, of the text alone (without imports and loading), and its peak
memory. All lines take turns within a round, and ratios are of medians. What other programs took of the cores while a line
ran is shown ("others", cores' worth): beyond a tenth, the numbers are those of a shared machine.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from output import json_flag, write_json

ROOT = Path(__file__).resolve().parents[1]
HERE = ROOT / "src"
BUSY = "while True: pass"
QUIET = 0.1  # cores' worth of other programs that a measurement may have beside it
TICKS = os.sysconf("SC_CLK_TCK")

PYTHON = """
import json, resource, sys, time
{imports}
start = time.perf_counter()
lm = scdd.load({options})
loaded = time.perf_counter()
text = lm.generate(1, steps={steps}, length={length})[0].text
done = time.perf_counter()
print(json.dumps({{"load": loaded - start, "text": done - loaded, "said": text}}))
"""
IMPORTS = {"python": "import scdd", "torch first": "import torch\nimport scdd"}


class Line(NamedTuple):
    """One way to a text."""

    tree: Path
    way: str  # command, python, torch first
    dtype: str | None
    busy: bool

    @property
    def name(self) -> str:
        """As the table has it."""
        tree = "" if self.tree == HERE else f" ({self.tree})"
        return f"{self.way}{tree}, {self.dtype or 'usual dtype'}, {'busy' if self.busy else 'idle'}"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtypes", default="", help="comma-separated; default: the model's usual one")
    parser.add_argument("--ways", default="command,python,torch first", help="comma-separated, some of these")
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--steps", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--busy", type=int, default=2, help="busy processes beside it")
    parser.add_argument("--patience", type=float, default=60.0, help="seconds to wait for quiet cores before a line")
    parser.add_argument("--against", type=Path, help="another checkout's src, in its usual dtype")
    parser.add_argument("--quality", type=Path, help="measure the likelihood of this text instead")
    parser.add_argument("--rows", type=int, default=64, help="of the text for --quality")
    json_flag(parser)
    return parser.parse_args()


def used() -> tuple[float, float]:
    """Seconds of CPU time since the machine started: of everybody, and of this process with the children it has waited for."""
    words = Path("/proc/stat").read_text().splitlines()[0].split()
    everybody = sum(map(int, words[1:4])) + sum(map(int, words[6:9]))
    own = os.times()
    return everybody / TICKS, own.user + own.system + own.children_user + own.children_system


def used_by(pids: list[int]) -> float:
    """Seconds of CPU time of these processes so far."""
    told = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in pids]
    return sum(int(words[11]) + int(words[12]) for words in told) / TICKS


def wait_for_quiet(patience: float) -> None:
    """Until other programs leave the cores alone for half a second, or patience ends."""
    end = time.monotonic() + patience
    while time.monotonic() < end:
        before, mine = used()
        time.sleep(0.5)
        after, still = used()
        if (after - before - (still - mine)) / 0.5 <= QUIET:
            return


@contextmanager
def beside(count: int) -> Iterator[list[int]]:
    """Processes that never rest; their ids."""
    busy = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(count)]
    try:
        yield [each.pid for each in busy]
    finally:
        for each in busy:
            each.kill()
            each.wait()


def run(line: Line, given: argparse.Namespace) -> dict[str, Any]:
    """Seconds, peak memory and what others took, of one process."""
    if line.way == "command":
        words = ["-m", "scdd", "sample", "--device=cpu", "--json", f"--steps={given.steps}", f"--length={given.length}"]
        words += [f"--dtype={line.dtype}"] if line.dtype else []
    else:
        options = 'device="cpu"' + (f', dtype="{line.dtype}"' if line.dtype else "")
        filled = PYTHON.format(imports=IMPORTS[line.way], options=options, steps=given.steps, length=given.length)
        words = ["-c", filled]
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("OMP_", "GOMP_", "MKL_"))}
    wait_for_quiet(given.patience)
    with beside(given.busy if line.busy else 0) as busy:
        (before, mine), theirs, start = used(), used_by(busy), time.perf_counter()
        process = subprocess.Popen(
            [sys.executable, *words], env={**clean, "PYTHONPATH": str(line.tree)}, stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        said = process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = status
        whole = time.perf_counter() - start
        after, still = used()
        theirs = used_by(busy) - theirs
    if status:
        raise SystemExit(f"{line.name} ended with {status}")
    result = json.loads(said.splitlines()[-1])
    others = max(0.0, (after - before - (still - mine) - theirs) / whole)
    text = result.get("text") if line.way == "command" else result["said"]
    alone = None if line.way == "command" else result["text"]
    return {"whole": whole, "text": alone, "peak_mib": usage.ru_maxrss / 1024, "others": others, "said": text}


def timed(given: argparse.Namespace) -> None:
    """All lines in turns, and their medians."""
    dtypes, ways = [each or None for each in given.dtypes.split(",")], given.ways.split(",")
    lines = [Line(HERE, way, dtype, busy) for busy in (False, True) for dtype in dtypes for way in ways]
    if given.against is not None:
        there = given.against.resolve()
        lines += [Line(there, way, None, busy) for busy in (False, True) for way in ways]
        lines.sort(key=lambda line: (line.busy, line.way))  # rivals one after the other
    found: dict[Line, list[dict[str, Any]]] = {line: [] for line in lines}
    for _ in range(given.rounds):
        for line in lines:
            found[line].append(run(line, given))
    rows = []
    for line, runs in found.items():
        middle = {
            key: statistics.median(each[key] for each in runs) for key in ("whole", "text", "peak_mib", "others")
            if runs[0][key] is not None
        }  # fmt: skip
        least = min(each["whole"] for each in runs)
        rows.append({"line": line.name, **middle, "least": least, "texts": len({each["said"] for each in runs})})
    write_json(given.json, rows)
    print(f"{'':58}{'whole':>8}{'least':>8}{'text':>8}{'MiB':>7}{'others':>8}{'texts':>7}")
    for row in rows:
        text = f"{row['text']:8.2f}" if "text" in row else f"{'':8}"
        print(
            f"{row['line']:58}{row['whole']:8.2f}{row['least']:8.2f}{text}{row['peak_mib']:7.0f}{row['others']:8.2f}{row['texts']:7}"
        )
    if given.against is not None and "command" in ways:
        for busy in (False, True):
            mine = found[Line(HERE, "command", dtypes[0], busy)]
            theirs = found[Line(given.against.resolve(), "command", None, busy)]
            ratio = statistics.median(each["whole"] for each in theirs) / statistics.median(
                each["whole"] for each in mine
            )
            turns = statistics.median(b["whole"] / a["whole"] for a, b in zip(mine, theirs, strict=True))
            print(
                f"the command, {'busy' if busy else 'idle'}: {ratio:.2f} x as fast; median of the rounds' ratios {turns:.2f}"
            )


def quality(given: argparse.Namespace) -> None:
    """NELBO of each dtype, with the same times and noise, and the difference to float32 sequence by sequence."""
    sys.path.insert(0, str(HERE))
    from scdd.evals.measure.likelihood import NelboEstimator, combined, likelihood
    from scdd.evals.measure.model import open_model
    from scdd.evals.measure.texts import text_rows

    rows = text_rows(open_model(None, device="cpu"), [given.quality], limit=given.rows, whole=True).rows
    base: list[float] = []
    for dtype in ("float32", "bfloat16", "int8"):
        lm = open_model(None, device="cpu", dtype=dtype).lm  # type: ignore[arg-type]
        found = likelihood(lm.network, lm.process, rows, NelboEstimator(looks=4))
        each = [row.mean / row.tokens for row in found]
        base = base or each
        gaps = [a - b for a, b in zip(each, base, strict=True)]
        error = statistics.stdev(gaps) / len(gaps) ** 0.5
        print(
            f"{dtype:9} {combined(found)['nats']:.4f} nats a token; to float32 {statistics.mean(gaps):+.5f} ± {error:.5f}"
        )


def main() -> None:
    given = arguments()
    if given.quality is not None:
        quality(given)
    else:
        timed(given)


if __name__ == "__main__":
    main()
