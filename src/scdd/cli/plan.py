"""`scdd plan`: what a recipe will cost, before anything is built or bought."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated

import typer

from scdd.assemble.machines import GIB, GPUS
from scdd.assemble.plan import Plan, alternatives, cure, to_dict
from scdd.assemble.plan import plan as make
from scdd.core.errors import UserError, offered
from scdd.recipe.load import load

KINDS = {
    "weights": "weights",
    "gradients": "gradients",
    "moments": "optimiser's moments",
    "average": "moving average",
    "copies": "weights in bfloat16",
    "activations": "activations",
    "loss": "logits and loss",
    "passing": "whole layers, passing",
    "work": "Muon's workspace",
}


def plan(
    recipe: Annotated[str, typer.Argument(metavar="RECIPE", help="A file, a run folder, or a shipped recipe's name.")],
    gpus: Annotated[int, typer.Option(help="How many GPUs share the work.")] = 1,
    gpu: Annotated[str, typer.Option(help=f"Which: {', '.join(GPUS)}.")] = "h200",
    per_node: Annotated[int, typer.Option(help="GPUs of one machine.")] = 8,
    network: Annotated[
        float, typer.Option(help="GB/s that each GPU has to other machines, in each direction (50 is 400 Gbit/s).")
    ] = 50.0,
    vocab: Annotated[
        int | None, typer.Option(help="Ids of the tokenizer, the mask included, where the data is not there to say.")
    ] = None,
    changes: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change one setting; may be repeated.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object, in bytes and seconds.")] = False,
) -> None:
    """Say what a recipe will cost: parameters, memory by kind, tokens a second, hours; and what would fit.

    Nothing is built: all is calculated from the network's shape and from measured runs. What does not fit ends with exit
    status 2 and the least change that would.
    """
    made = make(load(recipe, changes or ()), gpus, gpu, vocab=vocab, per_node=per_node, network=network)
    made = replace(made, notices=tuple(offered(notice, "vocab", "--vocab") for notice in made.notices))
    if as_json:
        typer.echo(json.dumps(to_dict(made), ensure_ascii=False))
    else:
        for line in lines(made):
            typer.echo(line)
    if not made.fits:
        raise UserError(refusal(made))


def refusal(made: Plan) -> str:
    """Why the run cannot be, and what could."""
    job, least = made.job, cure(made)
    rows = f"{job.micro} row{'s' if job.micro > 1 else ''} of {job.length} tokens"
    said = f"a pass over {rows} needs {made.memory.needed / GIB:,.1f} GiB on each GPU, and {made.gpu.name} has {made.gpu.memory:,.1f}"
    if least is None:
        return (
            f"{said}: not even one row on as many GPUs as the batch has rows will do; choose GPUs with more memory, shorter "
            "rows, a smaller network, --set training.ema=0 or --set 'training.lora={}'."
        )
    flags = [f"--gpus {least.gpus}"] if least.gpus != job.gpus else []
    return f"{said}: try {' '.join([*flags, *(f'--set {change}' for change in least.changes)])}."


def lines(made: Plan) -> Iterator[str]:
    """The plan as people read it."""
    job, memory, pace = made.job, made.memory, made.pace
    where = f"{job.gpus} × {made.gpu.name} ({job.sharing})" if job.gpus > 1 else made.gpu.name
    yield f"{made.name} on {where}"
    for notice in made.notices:
        yield f"note: {notice}"
    yield ""
    count = job.parameters
    parts = {"embedding": count.embedding, "blocks": count.blocks, "head": count.head, "rest": count.rest}
    yield _row(
        "parameters", f"{large(count.total)}: {', '.join(f'{name} {large(n)}' for name, n in parts.items() if n)}"
    )
    if job.trained < count.total:
        yield _row("trained", f"{large(job.trained)} in adapters")
    passes = "in one pass" if job.passes == 1 else f"in {job.passes} passes"
    yield _row(
        "a step",
        f"{job.training.batch_size} rows of {job.length} tokens; {job.share} on each GPU, {passes} of {job.micro}",
    )
    yield ""
    yield f"memory, GiB on each GPU in the {memory.moment}"
    for name, value in memory.kinds().items():
        if value:
            yield f"  {KINDS[name]:24}{value / GIB:9.2f}"
    yield f"  {'allocated':24}{memory.allocated / GIB:9.2f}"
    yield f"  {'with context and slack':24}{memory.needed / GIB:9.2f}  of {made.gpu.memory:.1f}"
    if others := alternatives(made):
        needs = (f"{other.needed / GIB:,.1f} GiB with {_change(name)}" for name, other in others.items())
        yield _row("otherwise", ", ".join(needs))
    most = made.largest_micro
    yield _row("micro_batch_size", "not even 1 fits" if most is None else f"up to {most} of {job.share} rows fits")
    yield ""
    yield _row(
        "speed",
        f"{large(pace.tokens_per_second)} tokens/s, {pace.step * 1e3:,.0f} ms a step, {pace.used:.0%} of the matmul peak",
    )
    if job.gpus > 1:
        hidden = "hidden behind" if pace.sent <= pace.passes else "more than"
        yield _row(
            "between GPUs", f"{pace.sent * 1e3:,.0f} ms of data a step, {hidden} {pace.passes * 1e3:,.0f} ms of work"
        )
    limit = job.training.max_seconds
    cut = f"; training.max_seconds ends it after {span(limit / 3600)}" if limit and limit < made.seconds else ""
    hours = made.seconds / 3600
    yield _row("time", f"{span(hours)}, {job.gpus * hours:,.1f} GPU-hours for {made.steps:,} steps{cut}")
    epochs = f", {made.tokens / made.corpus:,.1f} epochs of {large(made.corpus)}" if made.corpus else ""
    yield _row("text", f"{large(made.tokens)} tokens{epochs}")
    yield _row("checkpoint", f"{made.checkpoint / 1e9:,.1f} GB on disk")


def _change(alternative: str) -> str:
    """What makes an alternative, as `--set` takes it."""
    recomputing = {"recompute": "true", "without recompute": "false"}.get(alternative)
    return f"training.parallel={alternative}" if recomputing is None else f"training.recompute={recomputing}"


def _row(name: str, text: str) -> str:
    return f"{name:18}{text}"


def large(number: float) -> str:
    """A count for people: 170.2 M."""
    for size, letter in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:,.{0 if number >= 100 * size else 1}f} {letter}"
    return f"{number:,.0f}"


def span(hours: float) -> str:
    """Hours, or what suits them better."""
    if hours >= 72:
        return f"{hours / 24:,.1f} days"
    if hours >= 1:
        return f"{hours:,.1f} hours"
    return f"{hours * 60:,.1f} minutes" if hours * 60 >= 1 else f"{hours * 3600:,.0f} seconds"
