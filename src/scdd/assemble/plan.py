"""From a recipe to what its run will cost: parameters, memory, time. Nothing is built, and torch is not imported."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

from scdd.assemble.job import Job, Sharing, job_of
from scdd.assemble.machines import GIB, Gpu, find
from scdd.assemble.measured import fitted
from scdd.assemble.memory import Memory, memory
from scdd.assemble.pace import Pace, pace
from scdd.core.errors import UserError
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
    bounds = {"gpus": (gpus, 1, MOST_GPUS), "per_node": (per_node, 1, 1 << 10), "vocab": (vocab, 2, 1 << 24)}
    for name, (value, least, most) in bounds.items():
        if value is not None and not least <= value <= most:
            raise UserError(f"{name} is {value}: choose one from {least} to {most:,}.", name)
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


@dataclass(frozen=True)
class Cure:
    """What would make a job fit: so many GPUs, and changes of its recipe."""

    gpus: int
    changes: tuple[str, ...]


def cure(made: Plan) -> Cure | None:
    """The least change with which a plan fits; None where there is none among the batch's own numbers of GPUs."""
    return next(_cures(made.job, made.gpu), None)


def _cures(job: Job, gpu: Gpu) -> Iterator[Cure]:
    """Smaller micro-batches, then recomputing, then sharding, then more GPUs."""
    yield from _with(job, job, gpu)
    again = replace(job, training=replace(job.training, recompute=True))
    yield from _with(again, job, gpu)
    if job.gpus > 1:
        for before in (job, again):
            yield from _with(replace(before, sharing="fsdp"), job, gpu)
    more = 2 * job.gpus
    while more <= job.training.batch_size and job.training.batch_size % more == 0:
        yield from _with(replace(again, gpus=more, sharing="fsdp"), job, gpu)
        more *= 2


def _with(changed: Job, job: Job, gpu: Gpu) -> Iterator[Cure]:
    """The change from one job to the other with the most rows of a pass that fit, if any do."""
    if (rows := largest_micro(changed, gpu)) is None:
        return
    made = {
        "recompute": ("true", changed.training.recompute != job.training.recompute),
        "parallel": (changed.sharing, changed.sharing != job.sharing),
        "micro_batch_size": (rows, rows < changed.micro),
    }
    yield Cure(changed.gpus, tuple(f"training.{name}={value}" for name, (value, differs) in made.items() if differs))


def alternatives(made: Plan) -> dict[str, Memory]:
    """The memory if the GPUs shared the work in another way, or if blocks were computed again or not."""
    job = made.job
    kinds = [kind for kind in SHARINGS if job.gpus > 1 and kind != job.sharing]
    others: dict[str, Job] = {kind: replace(job, sharing=kind) for kind in kinds}
    others = {kind: other for kind, other in others.items() if job.gpus % other.shards == 0}
    again = not job.training.recompute
    name = "recompute" if again else "without recompute"
    others[name] = replace(job, training=replace(job.training, recompute=again))
    return {name: memory(other) for name, other in others.items()}


def to_dict(made: Plan) -> dict[str, Any]:
    """The plan as plain data, in bytes and seconds."""
    job, count = made.job, made.job.parameters
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
        "needed_if": {name: round(other.needed) for name, other in alternatives(made).items()},
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
