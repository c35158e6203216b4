"""Speed and memory of `scdd prepare`, and what the loader delivers from its shards.

    python benchmarks/prepare.py SOURCES… [--workers 1 2] [--tokenizer PATH | --train-tokenizer 16384]

One run for each number of workers, into a temporary folder; the shards of all runs must be the same bytes.
"""

from __future__ import annotations

import argparse
import hashlib
import tempfile
import time
from itertools import islice
from pathlib import Path

from scdd.data.collect import PrepareProgress
from scdd.data.prepare import Preparation, prepare


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


if __name__ == "__main__":
    main()
