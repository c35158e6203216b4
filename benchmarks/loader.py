"""Does the loader keep up? Training steps on real batches beside steps on one batch that is already on the device.

    python benchmarks/loader.py SHARDS --json build/loader.json

The same network, objective and optimiser take turns on both kinds of data, so that clocks and neighbours affect them
alike; also printed is how fast the loader is alone.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from collections.abc import Iterator

import torch

from output import json_flag, write_json
from scdd.data.loader import Batch, Loader
from scdd.data.pack import cut
from time_sampling import VARIANTS, Bench, Run


def alone(bench: Bench, batches: int) -> float:
    """Tokens per second of the loader with nobody to wait for."""
    args = bench.args
    source = iter(Loader(cut(bench.train, args.length), args.batch, seed=1, device=bench.device))
    next(source)
    start = bench.sync()
    for batch in itertools.islice(source, batches):
        tokens = batch.tokens
    bench.sync()
    return batches * tokens.numel() / (time.perf_counter() - start)


def turn(run: Run, batches: Iterator[Batch], steps: int) -> float:
    """Milliseconds a step."""
    start = run.bench.sync()
    for batch in itertools.islice(batches, steps):
        run.advance(batch)
    return (run.bench.sync() - start) / steps * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("shards")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--depth", type=int, default=8)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--steps", type=int, default=50, help="steps in a turn")
    parser.add_argument("--turns", type=int, default=6)
    parser.add_argument("--warm", type=int, default=20, help="steps before the first turn, which compile")
    parser.add_argument("--batches", type=int, default=200, help="batches of the loader alone")
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction, default=True)
    json_flag(parser)
    args = parser.parse_args()
    args.lr, args.ema, args.warmup, args.seed, args.valid = 1e-3, 0.999, 100, 0, 8
    args.muon, args.final_fraction = None, 0.1
    bench = Bench(args)
    run = Run(bench, VARIANTS["dynamic"], total=10**9)
    real = iter(run.loader)
    synthetic = itertools.repeat(next(real))
    turn(run, synthetic, args.warm)
    pairs = [(turn(run, real, args.steps), turn(run, synthetic, args.steps)) for _ in range(args.turns)]
    loaded, still = (statistics.median(column) for column in zip(*pairs, strict=True))
    found = {
        "device": torch.cuda.get_device_name() if bench.device.type == "cuda" else "cpu",
        "real_ms": loaded,
        "synthetic_ms": still,
        "ratio": loaded / still,
        "loader_tokens_per_second": alone(bench, args.batches),
        "training_tokens_per_second": args.batch * args.length / loaded * 1e3,
    }
    for key, value in found.items():
        print(f"{key}: {value if isinstance(value, str) else format(value, ',.4f')}")
    write_json(args.json, found)


if __name__ == "__main__":
    main()
