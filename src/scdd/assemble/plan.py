"""From a recipe to what its run will cost: parameters, memory, time. Nothing is built, and torch is not imported."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

from scdd.assemble.job import Job, Sharing, job_of
from scdd.assemble.machines import GIB, Gpu, find
from scdd.assemble.measured import fitted
from scdd.assemble.memory import Memory, memory
from scdd.assemble.pace import Pace, pace
from scdd.core.errors import UserError
from scdd.models.options import LlamaConfig
from scdd.recipe.sections import Recipe

SHARINGS: tuple[Sharing, ...] = ("ddp", "fsdp", "hsdp")
MOST_GPUS = 1 << 16


@dataclass(frozen=True)
class Plan:
    """What a run costs on some GPUs."""

    name: str
    job: Job
    gpu: Gpu
    memory: Memory
    pace: Pace
    steps: int
    corpus: int | None  # tokens to train on, where they are prepared
    notices: tuple[str, ...]
    network: float

    @property
    def fits(self) -> bool:
        """Whether the GPU has as much memory as is needed."""
        return fits(self.job, self.gpu)

    @property
    def seconds(self) -> float:
        """Of all steps."""
        return self.steps * self.pace.step

    @property
    def tokens(self) -> int:
        """That the run reads in all its steps."""
        return self.steps * self.pace.tokens

    @property
    def checkpoint(self) -> int:
        """Bytes of one checkpoint: weights, moments and average, and the weights that are published."""
        state = self.memory.weights + self.memory.moments + self.memory.average
        return round(state * self.job.shards) + 4 * self.job.parameters.total

    @property
    def largest_micro(self) -> int | None:
        """Most rows of a pass that fit; None where not even one does."""
        return largest_micro(self.job, self.gpu)

    def other(self, sharing: Sharing) -> Memory:
        """The memory if the GPUs shared the work in another way."""
        return memory(replace(self.job, sharing=sharing))


def plan(
    spec: Recipe,
    gpus: int = 1,
    gpu: str = "h200",
    *,
    vocab: int | None = None,
    per_node: int = 8,
    network: float = 50.0,
) -> Plan:
    """The cost of a recipe on so many GPUs, `per_node` in a machine.

    `vocab` counts the ids of a tokenizer that is not there yet; `network` is what each GPU has between machines, GB/s.
    """
    for name, value, most in (("gpus", gpus, MOST_GPUS), ("per_node", per_node, 1 << 10), ("vocab", vocab, 1 << 24)):
        if value is not None and not 1 <= value <= most:
            raise UserError(f"{name} is {value}: choose one from 1 to {most:,}.", name)
    if not 0 < network < math.inf:
        raise UserError(f"network is {network}: give GB/s above 0.", "network")
    job, corpus, notices = job_of(spec, gpus, per_node, vocab)
    machine = find(gpu)
    return Plan(
        name=spec.name,
        job=job,
        gpu=machine,
        memory=memory(job),
        pace=pace(job, machine, fitted(), network),
        steps=spec.training.steps,
        corpus=corpus,
        notices=tuple(notices),
        network=network,
    )


# -- does it fit, and what would ----------------------------------------------------------------------------------------


def fits(job: Job, gpu: Gpu) -> bool:
    """Whether a GPU has as much memory as the job needs."""
    return memory(job).needed <= gpu.memory * GIB


def with_micro(job: Job, rows: int) -> Job:
    """The same with other micro-batches."""
    return replace(job, training=replace(job.training, micro_batch_size=rows))


def largest_micro(job: Job, gpu: Gpu) -> int | None:
    """Most rows of a pass that fit, of those that divide a GPU's share; None where not even one row does."""
    divisors = (rows for rows in range(job.share, 0, -1) if job.share % rows == 0)
    return next((rows for rows in divisors if fits(with_micro(job, rows), gpu)), None)


def refusal(made: Plan) -> str | None:
    """Why the job cannot run on these GPUs, with the cure; None where it can."""
    if made.fits:
        return None
    job, gpu = made.job, made.gpu
    needed, has = made.memory.needed / GIB, gpu.memory
    rows = f"{job.micro} row{'s' if job.micro > 1 else ''} of {job.length} tokens"
    said = f"a pass over {rows} needs {needed:,.1f} GiB on each GPU, and {gpu.name} has {has:,.1f}"
    return f"{said}: {next(_cures(job, gpu))}."


def _cures(job: Job, gpu: Gpu) -> Iterator[str]:
    """What would fit, the least change first."""
    training = job.training
    if (rows := largest_micro(job, gpu)) is not None:
        yield f"try --set training.micro_batch_size={rows}"
    changed = job
    flags: list[str] = []
    if isinstance(job.shape, LlamaConfig) and not training.recompute:
        changed = replace(changed, training=replace(training, recompute=True))
        flags.append("--set training.recompute=true")
        yield from _with(changed, gpu, flags)
    if job.gpus > 1 and job.sharing != "fsdp":
        for before, words in ((job, []), (changed, flags)):
            yield from _with(replace(before, sharing="fsdp"), gpu, [*words, "--set training.parallel=fsdp"])
    flags = [*flags, *(() if job.sharing == "fsdp" else ("--set training.parallel=fsdp",))]
    more = 2 * job.gpus
    while more <= training.batch_size and training.batch_size % more == 0:
        yield from _with(replace(changed, gpus=more, sharing="fsdp"), gpu, [f"--gpus {more}", *flags])
        more *= 2
    yield (
        "not even one row on as many GPUs as the batch has rows will do: choose GPUs with more memory, shorter rows, a smaller "
        "network, training.ema=0 or training.lora"
    )


def _with(job: Job, gpu: Gpu, flags: Iterable[str]) -> Iterator[str]:
    if (rows := largest_micro(job, gpu)) is not None:
        own = min(job.training.micro_batch_size or job.share, job.share)
        yield " ".join(["try", *flags, *([] if rows >= own else [f"--set training.micro_batch_size={rows}"])])


def to_dict(made: Plan) -> dict[str, Any]:
    """The plan as plain data, in bytes and seconds."""
    job, count = made.job, made.job.parameters
    sharings = SHARINGS if job.gpus > 1 else ()
    return {
        "name": made.name,
        "gpu": {**asdict(made.gpu), "count": job.gpus},
        "parameters": {**asdict(count), "total": count.total, "trained": job.trained},
        "parallel": job.sharing,
        "memory": {
            "moment": made.memory.moment,
            **{name: round(value) for name, value in made.memory.kinds().items()},
            "allocated": round(made.memory.allocated),
            "context": round(made.memory.context),
            "needed": round(made.memory.needed),
        },
        "needed_if": {kind: round(made.other(kind).needed) for kind in sharings},
        "fits": made.fits,
        "micro_batch_size": job.micro,
        "largest_micro_batch_size": made.largest_micro,
        "passes_a_step": job.passes,
        "seconds_a_step": made.pace.step,
        "seconds_between_gpus": made.pace.sent,
        "tokens_per_second": made.pace.tokens_per_second,
        "share_of_peak": made.pace.used,
        "hours": made.seconds / 3600,
        "gpu_hours": job.gpus * made.seconds / 3600,
        "max_hours": None if (limit := job.training.max_seconds) is None else limit / 3600,
        "tokens": made.tokens,
        "corpus_tokens": made.corpus,
        "epochs": None if not made.corpus else made.tokens / made.corpus,
        "checkpoint_bytes": made.checkpoint,
        "notices": list(made.notices),
    }
