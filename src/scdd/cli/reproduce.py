"""`scdd reproduce`: the paper again, planned, run and reported by one command."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from scdd.cli.cluster import Ray, RayCommand
from scdd.cluster.pool import RayPool, pool_at
from scdd.core.errors import UserError
from scdd.core.machine import cores

if TYPE_CHECKING:
    from scdd.reproduce.parts import Part
    from scdd.reproduce.records import Records
    from scdd.reproduce.run import Summary, Task

COMMAND = RayCommand
SHOWN = 20  # failures that are told


def reproduce(
    scale: Annotated[
        str,
        typer.Argument(
            metavar="SCALE", help="toy (CPU, minutes), small (one GPU, hours), paper (eight GPUs, weeks), or a file."
        ),
    ],
    out: Annotated[Path, typer.Option(help="Folder of everything; the same command again goes on there.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the plan with time and cost, and stop.")] = False,
    report: Annotated[
        bool, typer.Option("--report", help="Only write the report again, from what is measured or published in --out.")
    ] = False,
    only: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATTERN",
            help="Only parts whose names hold this, and what they need: tune/, likelihood, TRAINING/seed-0; may be repeated.",
        ),
    ] = None,
    minutes: Annotated[
        float | None,
        typer.Option(
            help="Stop after so many minutes; the rest is for next time. With --drop-weights nothing is begun that would not end in time."
        ),
    ] = None,
    drop_weights: Annotated[
        bool,
        typer.Option(
            "--drop-weights/--keep-weights",
            help="Train, measure and delete one run after the other, first seeds first; nothing but numbers stays.",
        ),
    ] = False,
    workers: Annotated[
        int | None,
        typer.Option(
            min=1, help="Processes at a time, which may share a GPU; default: one a GPU, or a core without GPUs."
        ),
    ] = None,
    data: Annotated[str | None, typer.Option(metavar="FOLDER", help="Prepared text in place of the scale's.")] = None,
    judge: Annotated[
        str | None, typer.Option(metavar="NAME|PATH", help="Causal LM that judges texts, in place of the scale's.")
    ] = None,
    benchmarks: Annotated[
        str | None, typer.Option(metavar="FOLDER", help="Files of the zero-shot tasks; default: SCDD_BENCHMARKS.")
    ] = None,
    llm: Annotated[
        str | None, typer.Option("--llm", help="Also the LLM judge: its name at an OpenAI endpoint. It may cost money.")
    ] = None,
    base_url: Annotated[str | None, typer.Option(help="Address of that endpoint; the key is OPENAI_API_KEY.")] = None,
    ray: Ray = None,
    price: Annotated[
        float | None, typer.Option(min=0, help="Price of an hour of one process, for the estimate.")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress.")] = False,
) -> None:
    """Train every system for every seed, tune, measure, and say which of the paper's claims hold.

    Finished parts are kept: after a kill, or on another day, the same command goes on, and does nothing twice. A part that
    fails is told at the end with its log, and keeps no other back.
    """
    from scdd.reproduce.load import load_claims, load_scale

    if minutes is not None and not minutes > 0:  # nor is NaN
        raise UserError(f"--minutes is {minutes:g}: give more than 0, or leave it out to go on to the end.")
    chosen_scale, claims = load_scale(scale), load_claims()  # before torch is imported: a mistake is told at once
    from scdd.reproduce.expand import all_parts
    from scdd.reproduce.parts import Choices, chosen
    from scdd.reproduce.records import Records
    from scdd.reproduce.report import write_report

    pool = None
    if ray is not None:
        if minutes is not None:
            raise UserError("--minutes stops processes of this machine: leave it out with --ray, and use Ctrl-C.")
        pool = pool_at(ray, workers, gpus=True)
        out, data, judge = out.absolute(), _there(data), _there(judge)  # workers have folders of their own
        benchmarks = _there(benchmarks)
    choices = Choices(data, judge, llm, base_url, benchmarks)
    parts = all_parts(chosen_scale, out, choices)
    records, failed = Records(out), 0
    if report:
        if not out.is_dir() or not records.read():
            raise UserError(
                f"{out} holds no records: run `scdd reproduce {scale} --out {out}` first, or name another folder."
            )
    else:
        wanted = chosen(parts, only or ())
        failed = _run(
            chosen_scale,
            choices,
            wanted,
            parts,
            records,
            _Wishes(dry_run, minutes, workers, price, quiet, drop_weights, pool),
        )
        if dry_run:
            return
    for path in write_report(out, chosen_scale, parts, claims, by_name=report):
        typer.echo(f"wrote {path}")
    if failed:
        raise UserError(f"{failed} parts failed, as told above: mend the cause, and the same command goes on.")


class _Wishes:
    """How the user wants it done."""

    def __init__(
        self,
        dry_run: bool,
        minutes: float | None,
        workers: int | None,
        price: float | None,
        quiet: bool,
        drop_weights: bool = False,
        pool: RayPool | None = None,
    ) -> None:
        self.dry_run, self.price, self.quiet, self.pool = dry_run, price, quiet, pool
        self.seconds, self.drop_weights = None if minutes is None else 60 * minutes, drop_weights
        self.gpus = _gpus()
        if workers is not None and self.gpus:
            self.gpus = (self.gpus * -(-workers // len(self.gpus)))[:workers]
        self.workers = len(self.gpus) or workers or cores()
        self.devices = len(set(self.gpus)) or min(self.workers, cores())


def _run(scale: Any, choices: Any, wanted: list[Part], parts: list[Part], records: Records, wishes: _Wishes) -> int:
    """Show the plan or carry it out; how many parts failed."""
    from scdd.data.files import make_folder
    from scdd.reproduce import cost
    from scdd.reproduce.parts import corpus_path
    from scdd.reproduce.processes import LocalProcesses
    from scdd.reproduce.run import group, run
    from scdd.reproduce.work import Place

    todo = records.unfinished(wanted)
    corpus = corpus_path(scale, records.out, choices)
    place = Place(records.out, corpus, scale.batch_size)
    tasks = group(todo, place, wishes.drop_weights)
    needed = cost.estimate(tasks, scale, parts, records.read(), wishes.workers)
    here = wishes.gpus or scale.rates.unit == "core-hours"  # an estimate for GPUs that are elsewhere is of one
    lines = cost.told(needed, wishes.devices if here else 1, scale.rates, records.out, wishes.price)
    if wishes.dry_run:
        typer.echo(f"{scale.name}: {scale.about.strip()}\n")
        typer.echo(cost.parts_table(wanted, todo, needed.rates).markdown())
        typer.echo(cost.task_table(tasks, needed.rates, wishes.seconds).markdown())
        for part in (part for task in tasks for part in task.parts):
            typer.echo(f"  {part.name}")
        typer.echo("\n" + "\n".join(lines))
        return 0
    _require_text(scale, choices, todo)
    make_folder(records.out)
    if not wishes.quiet:
        doing = f"{len(todo)} of {len(wanted)} parts to do: {'; '.join(lines)}"
        typer.echo(doing if todo else f"all {len(wanted)} parts are finished", err=True)
    # Rates of this folder were measured as it shares its GPUs; a scale's are of a process alone. What is kept goes on from its
    # checkpoints next time, so that nothing is lost by beginning it.
    shared = 1.0 if needed.rates.measured else wishes.workers / wishes.devices

    def expected(task: Task) -> float:
        return shared * needed.rates.of(task) if wishes.drop_weights else 0.0

    for task in tasks:
        if wishes.seconds is not None and expected(task) > wishes.seconds:
            minutes = f"about {expected(task) / 60:.0f} minutes, longer than --minutes"
            typer.echo(f"{task.name} is not begun: it takes {minutes}", err=True)
    local = LocalProcesses(wishes.workers, wishes.gpus, wishes.seconds, expected)
    with _signals(), _progress(records, wanted, len(wanted) - len(todo), wishes.quiet) as tell, local:
        summary = run(tasks, wishes.pool or local, tell)
    _tell(summary)
    return len(summary.failed)


def _there(path: str | None) -> str | None:
    """A name of a file or folder here as one that holds everywhere; other names as they are."""
    return str(Path(path).absolute()) if path is not None and Path(path).exists() else path


def _require_text(scale: Any, choices: Any, todo: list[Part]) -> None:
    """Refuse a folder of shards that is not there before anything is begun."""
    from scdd.data.shards import INDEX

    path = choices.data or (scale.corpus.path if scale.corpus else None)
    if path is not None and todo and not (Path(path) / INDEX).is_file():
        how = scale.corpus.how if scale.corpus and scale.corpus.how else "scdd prepare"
        raise UserError(f"data {path} holds no prepared text: make it ({how}), or name another folder.", "data")


def _tell(summary: Summary) -> None:
    for name, why, log in summary.failed[:SHOWN]:
        typer.echo(f"failed: {name}: {why} (log: {log})", err=True)
    if len(summary.failed) > SHOWN:
        typer.echo(f"… and {len(summary.failed) - SHOWN} more", err=True)
    if summary.left:
        typer.echo(f"{len(summary.left)} parts are left: the same command goes on with them", err=True)


@contextmanager
def _signals() -> Iterator[None]:
    """SIGTERM ends it as Ctrl-C does: trainings save first."""

    def interrupt(number: int, frame: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _progress(records: Records, wanted: list[Part], done: int, quiet: bool) -> Iterator[Any]:
    """A bar of finished parts on a terminal, a line a task elsewhere."""
    if quiet or not sys.stderr.isatty():
        yield (lambda line: None) if quiet else (lambda line: typer.echo(line, err=True))
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    names = {f"{part.id}.json" for part in wanted}
    over = threading.Event()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("parts", total=len(wanted), completed=done)

        def look() -> None:
            while not over.wait(1.0):
                there = set(os.listdir(records.folder)) if records.folder.is_dir() else set()
                bar.update(task, completed=max(done, len(names & there)))

        watcher = threading.Thread(target=look, daemon=True)
        watcher.start()
        try:
            yield lambda line: bar.console.print(line, markup=False, highlight=False)
        finally:
            over.set()
            watcher.join()


def _gpus() -> list[str]:
    """Names of the GPUs that may be used, without asking CUDA itself: this process is not to hold one."""
    import torch

    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return [name for name in visible.split(",") if name.strip()]
    return [str(i) for i in range(torch.cuda.device_count())]
