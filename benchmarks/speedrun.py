"""Learning speed: how good a model is after so many seconds of training on one GPU, on fixed data, by one measure.

    scdd prepare wiki-en/train-*.jsonl.xz --valid wiki-en/valid.jsonl.xz --train-tokenizer 16384 --out data/wiki
    python benchmarks/speedrun.py data/wiki --seconds 150 [--set training.muon=0.03 …] [--write]

Trains a recipe from random weights for `--seconds` of training and measures the NELBO of its averaged weights on all of the
validation split: continuous time, rows of 256 tokens between [BOS] and [EOS], 8 looks a row, seed 0. The clock runs from the
second step to the last: compiling, reading the data and measuring do not count. The schedule's end is where the time will be over
at the rate of the last seconds, found anew again and again, so that the learning rate comes down in time whatever the machine.
The result is a line for docs/speedrun.md, which `--write` puts there, if the data is the table's own. Any other recipe trains as well so,
to the second: `--recipe adapt/student --seconds 600`.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import subprocess
import time
from contextlib import nullcontext
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch

from output import json_flag, write_json
from scdd.assemble import training as build
from scdd.core.errors import UserError
from scdd.data.manifest import read_manifest
from scdd.evals.measure.likelihood import NelboEstimator, combined, likelihood
from scdd.evals.measure.stats import ratio
from scdd.evals.measure.texts import open_stream, rows
from scdd.objectives.base import BatchSlice, RatioMeter
from scdd.recipe import load as recipe
from scdd.recipe.sections import Recipe
from scdd.training.parallel import world
from scdd.training.trainer import Trainer

PAGE = Path(__file__).parents[1] / "docs" / "speedrun.md"
MARK = "<!-- records: benchmarks/speedrun.py writes below the last one -->"
DATA = "f1e0583b72bb28cbaf59f9e6120d5780b7896260b794307853eeab8fe1a952d6"
"""`digest` of the data that the table is about."""
LENGTH, LOOKS = 256, 8  # of the measure
WINDOW = 0.03  # of the time: how often the schedule's end is found anew
PROVISIONAL = 10**7  # steps, until the first window is over; a warm-up does not depend on them


@dataclass(frozen=True)
class Training:
    """What the time was spent on."""

    seconds: float
    steps: int
    tokens: int
    before: float  # seconds before the clock ran: compiling, mostly


def digest(folder: str) -> str:
    """Of the tokens and what they mean: the tokenizer's hash and every shard's checksum."""
    manifest = read_manifest(folder)
    shards = {name: [each["blake2b"] for each in split["shards"]] for name, split in manifest["splits"].items()}
    return hashlib.sha256(json.dumps([manifest["tokenizer"]["hash"], shards], sort_keys=True).encode()).hexdigest()


def synced(trainer: Trainer) -> float:
    """Now, when the device has done all that it was told."""
    if trainer.world.device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def compile_all(trainer: Trainer) -> None:
    """A pass forward and back of every kind that the run will have, off the clock; no weight changes."""
    batch = next(iter(trainer.loader))
    count, micro = trainer.options.batch_size, trainer.options.micro_batch_size
    for step in (0, PROVISIONAL):
        for rows_, part in BatchSlice(trainer.seed, step, 0, count, count).micro_batches(micro):
            documents = None if batch.documents is None else batch.documents[rows_]
            trainer.optimiser.take_gradients(trainer.parallel.forward(batch.tokens[rows_], documents, None, part).total)
    for parameter in trainer.optimiser.parameters.values():
        parameter.grad = None


def train(trainer: Trainer, seconds: float) -> Training:
    """Advance until the time is over, with a schedule that ends there."""
    begun = time.perf_counter()
    compile_all(trainer)
    batches = iter(trainer.loader)
    trainer.advance(next(batches))  # compiles what is the optimiser's own
    start = last = synced(trainer)
    before, counted = start - begun, trainer.step
    due, left = start + WINDOW * seconds, PROVISIONAL
    while left > 0:
        trainer.advance(next(batches))
        left -= 1
        if time.perf_counter() < due and left:
            continue
        now = synced(trainer)
        remaining = seconds - (now - start)
        left = round(remaining * (trainer.step - counted) / (now - last))
        last, counted, due = now, trainer.step, now + max(WINDOW * seconds, 1e-9)
        trainer.options = replace(trainer.options, steps=trainer.step + max(left, 0))
        trainer.optimiser.options = trainer.options
        rate, loss = trainer.optimiser.learning_rate_at(trainer.step), trainer.meter.estimate().mean
        trainer.meter = RatioMeter(trainer.world.device)
        where = f"{now - start:7.1f} s  step {trainer.step}/{trainer.options.steps}  lr {rate:.2e}"
        print(where + ("" if math.isnan(loss) else f"  loss {loss:.4f}"), flush=True)
    return Training(synced(trainer) - start, trainer.step - 1, trainer.tokens, before)


def measured(trainer: Trainer, args: argparse.Namespace, tokenizer: Any) -> dict[str, Any]:
    """The NELBO of the averaged weights on the validation split; `rows` has each row's nats and tokens, for comparisons row by row."""
    held = rows(open_stream([args.shards], tokenizer), tokenizer, LENGTH, args.rows)
    network: Any = trainer.module.network
    process: Any = trainer.objective.process
    averaged = trainer.average.swapped_in() if trainer.average is not None else nullcontext()
    # Rows and batches of other shapes than training's would be compiled for longer than they take.
    with averaged, torch.compiler.set_stance("force_eager"):
        network.eval()
        found = likelihood(network, process, held.rows, NelboEstimator(None, LOOKS), batch_size=args.batch_size)
        network.train()
    return {**combined(found, held.bytes), "rows": [(row.mean, row.tokens) for row in found]}


def compared(path: Path, measure: dict[str, Any]) -> list[list[float]]:
    """Another run's rows, refused if it measured otherwise."""
    try:
        theirs = json.loads(path.read_text(encoding="utf-8"))
        same, rows_ = all(theirs[name] == value for name, value in measure.items()), theirs["rows"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SystemExit(f"--against {path} is no file that another run's --json named ({error}).") from error
    if not same:
        raise SystemExit(
            f"--against {path}: other rows were measured there; give one of the same data, as many --rows, and this version's."
        )
    return list(rows_)


def beside(found: dict[str, Any], theirs: list[list[float]], name: str) -> str:
    """The difference to another run's NELBO, and its error: the same rows, times and noise, so that most of what either one errs by is
    the other's error too."""
    apart = [mine - other for (mine, _), (other, _) in zip(found["rows"], theirs, strict=True)]
    mean, error, _ = ratio(apart, [tokens for _, tokens in theirs])
    return f"NELBO beside {name}: {mean:+.4f} ± {error:.4f} nats a token (row by row)"


def commit() -> str:
    """The checkout's, with a + where files were changed since."""
    asked = {"cwd": Path(__file__).parent, "text": True, "capture_output": True}
    head = subprocess.run(["git", "rev-parse", "--short", "HEAD"], **asked)  # type: ignore[call-overload]
    changed = subprocess.run(["git", "status", "--porcelain", "--untracked-files=no"], **asked)  # type: ignore[call-overload]
    return (head.stdout.strip() or "unknown") + ("+" if changed.stdout.strip() else "")


def line(done: Training, found: dict[str, Any], said: str, device: str) -> str:
    """A row of the page's table."""
    bits = found["bits_per_byte"]
    cells = (
        f"{done.seconds:.0f}",
        f"{found['ppl']:.1f} ± {found['ppl_error']:.1f}",
        f"{bits:.4f} ± {bits * found['error'] / found['nats']:.4f}",
        f"{done.tokens / 1e6:.0f} M",
        device,
        commit(),
        datetime.now(timezone.utc).date().isoformat(),
        said,
    )
    return f"| {' | '.join(cells)} |"


def record(page: Path, row: str) -> None:
    """Put a row below the last of the page's table."""
    text = page.read_text(encoding="utf-8")
    head, mark, rest = text.partition(MARK)
    if not mark:
        raise SystemExit(f"{page} has no line {MARK}")
    table, blank, after = rest.lstrip("\n").partition("\n\n")
    page.write_text(f"{head}{mark}\n\n{table.rstrip()}\n{row}\n{blank[1:]}{after}", encoding="utf-8")


def settled(args: argparse.Namespace) -> Recipe:
    """The recipe with what the benchmark itself decides."""
    fixed = (f"data.path={args.shards}", f"training.steps={PROVISIONAL}", "training.tensorboard=false")
    spec = recipe.load(args.recipe, [*args.set, *fixed])
    if args.write and spec.training.start_from is not None:
        raise SystemExit(
            "training.start_from is set, and a record begins with random weights: leave it or --write out."
        )
    return spec


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("shards", help="folder that scdd prepare wrote, with a validation split")
    parser.add_argument("--seconds", type=float, default=150.0, help="of training")
    parser.add_argument("--recipe", default="speedrun", help="a shipped recipe's name, or a file")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="change the recipe; repeatable")
    parser.add_argument("--out", type=Path, default=Path("runs/speedrun"), help="new folder for the trained model")
    parser.add_argument("--note", help="what is new, for the table; default: what --set changed")
    parser.add_argument("--write", action="store_true", help="add the result to docs/speedrun.md")
    parser.add_argument("--page", type=Path, default=PAGE, help=argparse.SUPPRESS)
    parser.add_argument("--rows", type=int, help="measure only so many rows, which is no record")
    parser.add_argument("--batch-size", type=int, help="rows measured at a time")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--against", type=Path, metavar="FILE", help="another run's --json: the difference, row by row")
    json_flag(parser)
    args = parser.parse_args()
    try:
        spec, own = settled(args), digest(args.shards)
        if args.write and (own != DATA or args.rows is not None):
            why = "only some rows are measured" if own == DATA else f"the data is another ({own[:12]}, not {DATA[:12]})"
            raise SystemExit(f"--write: {why}, so the result cannot stand in that table; leave --write out.")
        measure = {"data": own, "measured_rows": args.rows, "length": LENGTH, "looks": LOOKS}
        theirs = compared(args.against, measure) if args.against else None
        if args.out.exists() and any(args.out.iterdir()):
            raise SystemExit(f"--out {args.out} exists: choose a new folder.")
        run(args, spec, measure, theirs)
    except UserError as error:
        raise SystemExit(f"error: {error}") from error


def run(args: argparse.Namespace, spec: Recipe, measure: dict[str, Any], theirs: list[list[float]] | None) -> None:
    torch.set_float32_matmul_precision("high")
    with world("none", args.device) as here:
        data = build.corpus(spec)
        trainer = build.trainer(spec, args.out, here, data)
        done = train(trainer, args.seconds)
        told = replace(spec, training=replace(spec.training, steps=trainer.step))
        trainer.checkpoints.identity = replace(trainer.checkpoints.identity, recipe=recipe.dumps(told))
        trainer.save()
        trainer.checkpoints.wait()
        found = measured(trainer, args, data.tokenizer)
    spent = {"steps": done.steps, "trained_tokens": done.tokens, "seconds": done.seconds, "before": done.before}
    write_json(args.json, {**found, **spent, **measure, "set": args.set})
    name = torch.cuda.get_device_name() if here.device.type == "cuda" else "cpu"
    rate = done.tokens / max(done.seconds, 1e-9)
    print(f"data {measure['data'][:12]}, {found['tokens']:,} tokens measured in {found['sequences']} rows")
    print(f"{done.steps} steps, {rate / 1e3:,.0f} k tokens/s; {done.before:.0f} s before the clock ran")
    row = line(done, found, (args.note or ", ".join(args.set) or args.recipe).replace("|", "/"), name)
    print(row)
    if args.write:
        record(args.page, row)
    if theirs is not None:
        print(beside(found, theirs, args.against.stem))


if __name__ == "__main__":
    main()
