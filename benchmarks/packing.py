"""What rows that go through the network together gain on a CPU: eight texts of a model together and one by one, the same texts.

    python benchmarks/packing.py
    python benchmarks/packing.py --lengths 16,64,128,254 --num 8 --dtype int8 --rounds 5

Every line is a process of its own, both ways in turns: seconds of its first walk, which tries what may go together, and of its second;
medians, and the peak memory of the process.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from output import json_flag, write_json

WAYS = ("apart", "together")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="checkpoint or run folder; default: the bundled model")
    parser.add_argument("--lengths", default="16,64,128,254", help="tokens of a text")
    parser.add_argument("--num", type=int, default=8, help="texts of a walk")
    parser.add_argument("--steps", type=int, default=32)
    parser.add_argument("--dtype", help="float32, bfloat16 or int8; default: what suits the CPU")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS, metavar=("WAY", "LENGTH"))
    json_flag(parser)
    return parser.parse_args()


def one(given: argparse.Namespace) -> dict[str, Any]:
    """Two walks, in this process."""
    import scdd
    from scdd.lm.model import LM

    way, length = given.one[0], int(given.one[1])
    if way == "apart":
        LM._packed = lambda self: None  # type: ignore[method-assign]
    lm = scdd.load(given.model, device="cpu", dtype=given.dtype)
    seconds, texts = [], hashlib.sha256()
    for seed in (0, 1):
        began = time.perf_counter()
        samples = lm.generate(given.num, length=length, steps=given.steps, seed=seed)
        seconds.append(time.perf_counter() - began)
        texts.update("\0".join(sample.text for sample in samples).encode())
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    return {"seconds": seconds, "peak_mib": peak, "texts": texts.hexdigest(), "dtype": str(lm.dtype)}


def main() -> None:
    given = arguments()
    if given.one:
        print(json.dumps(one(given)))
        return
    again = [sys.executable, str(Path(__file__).resolve()), *sys.argv[1:], "--one"]
    print(
        f"{'tokens':>8}{'':4}{'apart: first':>14}{'second':>9}{'MiB':>7}{'together: first':>18}{'second':>9}{'MiB':>7}"
    )
    found = []
    for length in given.lengths.split(","):
        runs: dict[str, list[dict[str, Any]]] = {way: [] for way in WAYS}
        for _ in range(given.rounds):
            for way in WAYS:
                made = subprocess.run([*again, way, length], check=True, capture_output=True, text=True)
                runs[way].append(json.loads(made.stdout))
        if len({run["texts"] for way in WAYS for run in runs[way]}) != 1:
            raise SystemExit(f"{length} tokens: the texts are not the same.")
        line: dict[str, Any] = {"tokens": int(length), "texts": given.num, "steps": given.steps}
        for way in WAYS:
            first, second = (statistics.median(run["seconds"][walk] for run in runs[way]) for walk in (0, 1))
            line[way] = {"first": first, "second": second, "peak_mib": max(run["peak_mib"] for run in runs[way])}
        a, b = (line[way] for way in WAYS)
        ratio = f"{a['first'] / b['first']:.2f} ×, {a['second'] / b['second']:.2f} ×"
        print(
            f"{length:>8}{'':4}{a['first']:14.2f}{a['second']:9.2f}{a['peak_mib']:7}"
            f"{b['first']:18.2f}{b['second']:9.2f}{b['peak_mib']:7}   {ratio}",
            flush=True,
        )
        found.append(line)
    write_json(given.json, found)


if __name__ == "__main__":
    main()
