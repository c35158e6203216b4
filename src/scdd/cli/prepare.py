"""`scdd prepare`: text in, token shards out, with a progress bar where there is a terminal."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Annotated, Any, cast

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from scdd.cli.cluster import Ray, RayCommand
from scdd.cluster.connect import LOCAL
from scdd.cluster.pool import pool_at
from scdd.core.errors import UserError
from scdd.core.machine import cores
from scdd.data.address import place
from scdd.data.collect import PrepareProgress
from scdd.data.options import SEPARATORS, Separator
from scdd.data.prepare import Preparation
from scdd.data.prepare import prepare as run
from scdd.data.shards import read_manifest

_EVERY = 5.0  # seconds between plain lines
COMMAND = RayCommand


def prepare(
    sources: Annotated[
        list[str],
        typer.Argument(
            help="Text files, which are cut into documents at blank lines (see --separator), JSON lines, CSV, TSV (all of "
            "them .xz, .gz or .zst, too) or Parquet, a document a row; folders or addresses of them (s3://, gs://, hf://, https://); or hf:NAME[:CONFIG[:SPLIT]]."
        ),
    ],
    out: Annotated[
        str,
        typer.Option(
            help="Folder for the shards, or its address (s3://, gs://, …); the same command again resumes there."
        ),
    ],
    tokenizer: Annotated[
        str | None, typer.Option(help="A tokenizer.json or its folder, a name on the hub, or bundled.")
    ] = None,
    train_tokenizer: Annotated[
        int | None, typer.Option(help="Train a byte-level BPE of so many ids instead, [MASK] included.")
    ] = None,
    tokenizer_sample: Annotated[int, typer.Option(help="MiB of text to train that tokenizer on.")] = 64,
    valid: Annotated[list[str] | None, typer.Option(help="Validation text; may be repeated.")] = None,
    valid_fraction: Annotated[
        float | None,
        typer.Option(
            help="Share of documents kept for validation, at least one of several (0.01 unless --valid is given)."
        ),
    ] = None,
    detokenizer: Annotated[str | None, typer.Option(help="lm1b or wikitext: undo that corpus's spacing.")] = None,
    field: Annotated[
        str, typer.Option(help="The field or column that holds the text, in JSON lines, tables and datasets.")
    ] = "text",
    separator: Annotated[
        str,
        typer.Option(
            help=f"What ends a document in text files: {', '.join(SEPARATORS)}; auto is wikitext (its headings) in "
            ".tokens files and blank-line in others. Recipes call it data.separator, there with file as default."
        ),
    ] = "auto",
    workers: Annotated[
        int | None, typer.Option(help="Processes; one for each core unless given, of this machine or of --ray's.")
    ] = None,
    ray: Ray = None,
    shard_tokens: Annotated[int, typer.Option(help="Tokens of a shard, after which it is closed.")] = 1 << 24,
    force: Annotated[bool, typer.Option(help="Replace what an earlier preparation left in --out.")] = False,
) -> None:
    """Turn text into packed token shards: in parallel, resumable, the same bytes whatever the number of workers.

    A text file becomes one document for each paragraph between blank lines; --separator file keeps it whole.
    """
    if tokenizer is None and train_tokenizer is None:
        raise UserError(
            "A tokenizer is missing: train one, as with --train-tokenizer 8192, or give --tokenizer bundled."
        )
    job = Preparation(
        sources=sources,
        out=out,
        tokenizer=tokenizer,
        train_tokenizer=train_tokenizer,
        tokenizer_sample=tokenizer_sample << 20,
        valid=valid or [],
        valid_fraction=valid_fraction,
        detokenizer=detokenizer,
        field=field,
        separator=cast(Separator, separator),  # checked when the sources are looked up
        shard_tokens=shard_tokens,
        workers=workers or cores(),
        force=force,
    )
    pool = None if ray is None else pool_at(ray, workers or (cores() if ray == LOCAL else None))
    start, console = time.monotonic(), Console(stderr=True)
    steps = run(job, None if pool is None else pool.ordered_map)
    last = _bar(steps, console) if console.is_terminal else _lines(steps)
    _summary(job, last, time.monotonic() - start, job.workers if pool is None else pool.workers)


def _stage(step: PrepareProgress) -> str:
    return "training the tokenizer" if step.stage == "tokenizer" else "tokenising"


def _bar(steps: Iterator[PrepareProgress], console: Console) -> PrepareProgress:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.fields[done]}"),
        TimeRemainingColumn(),
    )
    step = PrepareProgress("tokenizer")
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("starting", total=None, done="")
        for step in steps:
            done = f"{step.documents:,} documents, {step.tokens / 1e6:.1f} M tokens, {step.shards} shards"
            bar.update(task, description=_stage(step), total=step.total or None, completed=step.position, done=done)
    return step


def _lines(steps: Iterator[PrepareProgress]) -> PrepareProgress:
    step, stage, shown = PrepareProgress("tokenizer"), "", 0.0
    for step in steps:
        now = time.monotonic()
        if step.stage == "done" or (_stage(step) == stage and now < shown + _EVERY):
            continue
        stage, shown = _stage(step), now
        share = f" {step.position / step.total:.0%}" if step.total else ""
        print(f"{stage}{share}: {step.documents:,} documents, {step.tokens / 1e6:.1f} M tokens", flush=True)
    return step


def _notes(job: Preparation, manifest: dict[str, Any]) -> Iterator[str]:
    """What somebody should know of the splits, and might not expect."""
    sizes = {name: info["documents"] for name, info in manifest["splits"].items()}
    kept, asked = sizes.get("valid", 0), manifest["preparation"]["valid_fraction"]
    if not kept:
        cure = (
            "give --valid TEXT"
            if asked == 0
            else "give --valid TEXT, or more documents (--separator says what ends one)"
        )
        yield f"no document is left for validation, so training will not validate: {cure}"
    elif asked and 2 * asked * sum(sizes.values()) < kept == 1:
        yield f"a share of {asked:g} would have left nothing for validation: one document was taken"
    if not sizes.get("train"):
        yield "no document is left for training: give more, or choose a smaller --valid-fraction"
    if left_out := manifest["preparation"].get("left_out"):
        names = ", ".join(map(str, left_out[:5])) + (f" and {len(left_out) - 5} more" if len(left_out) > 5 else "")
        yield f"left out of training, since --valid names it: {names}"
    if job.separator == "auto" and any(each["rule"] == "blank-line" for each in manifest["preparation"]["sources"]):
        yield "text files were cut into documents at blank lines; --separator file keeps each whole"


def _summary(job: Preparation, last: PrepareProgress, seconds: float, workers: int) -> None:
    manifest = read_manifest(job.out)
    vocab = manifest["tokenizer"]
    print(f"{place(job.out)}: vocabulary of {vocab['vocab_size']:,} ids, tokenizer {vocab['hash'][:12]}")
    if job.train_tokenizer and vocab["vocab_size"] < job.train_tokenizer:
        print(f"  (fewer than the {job.train_tokenizer:,} asked for: the text holds no more pairs to merge)")
    for name, info in manifest["splits"].items():
        print(
            f"  {name}: {info['documents']:,} documents, {info['tokens']:,} tokens, {info['bytes'] / 1e6:,.1f} MB of text, "
            f"{info['bytes'] / max(1, info['tokens']):.2f} bytes a token, {len(info['shards'])} shards"
        )
    for note in _notes(job, manifest):
        print(f"  {note}")
    fresh = last.text_bytes - last.resumed_bytes
    if not fresh:
        print("  nothing to do: it was already complete")
        return
    speed = fresh / 1e6 / seconds
    memory = f"peak memory {last.parent_peak / 2**20:,.0f} MiB, each worker {last.worker_peak / 2**20:,.0f} MiB"
    print(f"  {seconds:.1f} s, {speed:.2f} MB/s with {workers} workers; {memory}")
