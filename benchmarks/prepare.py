"""Speed and memory of `scdd prepare`, and what the loader delivers from its shards.

    python benchmarks/prepare.py SOURCES… [--workers 1 2] [--tokenizer PATH | --train-tokenizer 16384] [--ray [ROUNDS]]

One run for each number of workers, into a temporary folder; the shards of all runs must be the same bytes. With --ray, then the
most of these workers again and again, by turns as processes of this machine and on a Ray of this machine's: speed after the start,
by the clock and by CPU time (Linux; what others do on the machine hardly matters to it), and ratios of the two.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import os
import tempfile
import time
from dataclasses import replace
from itertools import islice
from pathlib import Path
from statistics import median

from scdd.data.collect import PrepareProgress
from scdd.data.prepare import Pool, Preparation, prepare


def digest(folder: Path) -> str:
    total = hashlib.blake2b(digest_size=16)
    for path in sorted(folder.iterdir()):
        total.update(path.name.encode() + path.read_bytes())
    return total.hexdigest()


def measure(job: Preparation) -> str:
    start = trained = time.perf_counter()
    last = PrepareProgress("tokenizer")
    for step in prepare(job):
        if last.stage == "tokenizer" and step.stage != "tokenizer":
            trained = time.perf_counter()
        last = step
    seconds = time.perf_counter() - start
    speed = last.text_bytes / 1e6 / seconds
    found = digest(job.out)
    print(
        f"| {job.workers} | {last.text_bytes / 1e6:.1f} | {seconds:.1f} | {trained - start:.1f} | {speed:.2f} | "
        f"{speed / job.workers:.2f} | {last.tokens / 1e6:.2f} | {last.parent_peak / 2**20:.0f} | "
        f"{last.worker_peak / 2**20:.0f} | {found[:12]} |",
        flush=True,
    )
    return found


def rates(job: Preparation, pool: Pool | None = None) -> tuple[float, float]:
    """MB of text (a second, a second of CPU time) from the fifth answer to the last, whoever it was that computed."""
    steps = (step for step in prepare(job, pool) if step.stage == "tokens")
    seen = [(step.text_bytes / 1e6, time.perf_counter(), cpu_seconds()) for step in steps]
    if len(seen) < 8:
        raise SystemExit("--ray needs a longer text: at least 8 MB.")
    (size, clock, cpu), (size2, clock2, cpu2) = seen[4], seen[-1]
    return (size2 - size) / (clock2 - clock), (size2 - size) / (cpu2 - cpu)


def cpu_seconds() -> float:
    """Of this process and of all that are below it now."""
    parents, used = {}, {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            fields = (folder / "stat").read_text().rsplit(")", 1)[1].split()
            parents[int(folder.name)], used[int(folder.name)] = int(fields[1]), int(fields[11]) + int(fields[12])
    found, new = {os.getpid()}, {os.getpid()}
    while new:
        new = {pid for pid, parent in parents.items() if parent in new}
        found |= new
    return sum(used[pid] for pid in found) / os.sysconf("SC_CLK_TCK")


def on_ray(job: Preparation, rounds: int) -> None:
    from scdd.cluster.connect import connected
    from scdd.cluster.pool import RayPool

    pools: dict[str, Pool | None] = {"processes": None, "Ray": RayPool(most=job.workers).ordered_map}
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in pools}
    with connected(cores=job.workers), tempfile.TemporaryDirectory() as folder:
        for number in range(rounds):
            outs = [Path(folder) / f"{name}-{number}" for name in pools]
            for (name, pool), out in zip(pools.items(), outs, strict=True):
                found[name].append(rates(replace(job, out=out), pool))
            assert len({digest(out) for out in outs}) == 1, "Ray changed the bytes"
    print(
        f"\n{job.workers} workers, MB/s by the clock and MB a second of CPU time, {rounds} rounds by turns, the same bytes:"
    )
    for name, values in found.items():
        print(f"  {name}: " + ", ".join(f"{clock:.2f} / {cpu:.2f}" for clock, cpu in values))
    for which, what in enumerate(("by the clock", "by CPU time")):
        shown = []
        # what else the machine does only ever slows it: the best rounds are the least disturbed
        for of in (median, max):
            ray, processes = (of([value[which] for value in found[name]]) for name in ("Ray", "processes"))
            shown.append(f"{ray / processes:.3f}")
        print(f"  Ray over processes {what}: {shown[0]} of medians, {shown[1]} of the best rounds", flush=True)


def deliver(folder: Path, length: int, batch_size: int, batches: int) -> None:
    from scdd.data.loader import Loader
    from scdd.data.pack import Packing, cut
    from scdd.data.shards import Shards

    start = time.perf_counter()
    shards = Shards(folder)
    opened = time.perf_counter()
    shards.verify()
    print(f"\nopened in {opened - start:.3f} s, all checksums in {time.perf_counter() - opened:.3f} s")
    packings: tuple[Packing, ...] = ("wrap", "documents")
    for packing in packings:
        for prefetch in (0, 4):
            loader = Loader(cut(shards, length, packing), batch_size, seed=1, prefetch=prefetch)
            start = time.perf_counter()
            for _ in islice(loader, batches):
                pass
            seconds = (time.perf_counter() - start) / batches
            rate = batch_size * length / seconds / 1e6
            print(
                f"{packing}, prefetch {prefetch}: {1e3 * seconds:.2f} ms a batch of {batch_size} × {length}, {rate:.0f} M tokens/s"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sources", nargs="+")
    parser.add_argument("--workers", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--tokenizer")
    parser.add_argument("--train-tokenizer", type=int, default=16384)
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--batches", type=int, default=200, help="batches to read for each way of packing")
    parser.add_argument(
        "--ray", nargs="?", type=int, const=3, default=0, metavar="ROUNDS", help="compare with Ray, too"
    )
    given = parser.parse_args()
    size = None if given.tokenizer else given.train_tokenizer
    print(
        "| workers | MB of text | s | of it tokenizer | MB/s | MB/s a worker | M tokens | peak MiB, parent | each worker | bytes |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        outs = [Path(folder) / str(workers) for workers in given.workers]
        found = {
            measure(Preparation(given.sources, out, tokenizer=given.tokenizer, train_tokenizer=size, workers=workers))
            for out, workers in zip(outs, given.workers, strict=True)
        }
        assert len(found) == 1, "the number of workers changed the bytes"
        deliver(outs[0], given.length, given.batch_size, given.batches)
        if given.ray:
            tokenizer = str(outs[0] / "tokenizer.json")
            on_ray(Preparation(given.sources, outs[0], tokenizer=tokenizer, workers=max(given.workers)), given.ray)


if __name__ == "__main__":
    main()
