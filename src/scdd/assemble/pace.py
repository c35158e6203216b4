"""Time of training, by calculation from measured runs. Nothing here imports torch.

A pass over a token takes flops / (products · peak) for its matrix products and passes · bytes / bandwidth for everything else, which
reads and writes what a backward pass keeps (`models.count.passed`). The two constants, `products` and `passes`, are fitted to the runs in
assets/measured.json by least squares of relative errors; the update's part is counted.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from scdd.assemble.job import Job
from scdd.assemble.machines import Gpu
from scdd.core.options import padded
from scdd.models.count import FLOAT, flops, matrices, matrix_weights, passed

ADAMW = 7 * FLOAT  # bytes moved for a weight: it, its gradient and both moments, read and written
AVERAGE = 2 * FLOAT
MUON = 16 * FLOAT  # a matrix's weight: scaled gradient, momentum, look ahead, stack, step
CAST = 6  # bytes a weight in each pass: read in float32, written in bfloat16
ADDED = 3 * FLOAT  # a gradient that is added to those of the passes before
ROUNDS = 5  # of Muon's iteration
LAUNCHES = 1.2e-3
"""Seconds that a compiled block's forward and backward pass takes at least, however few its tokens: three times the 0.4 ms that a
block's forward pass took in `benchmarks/sample.py --size tiny --length 128 --vocab 8192` with one row."""
REPLAYED = 0.25  # of that, where passes are replayed as CUDA graphs; assumed
FORWARD = 0.3  # share of a forward pass in what is read and written; assumed
FLOAT32 = 12  # how much longer products in float32 take; assumed
REACHED = 0.8  # of a link's speed; assumed


@dataclass(frozen=True)
class Constants:
    """What is fitted."""

    products: float  # share of the matmul peak that a network's products reach
    passes: float  # how often what is kept is read or written


@dataclass(frozen=True)
class Pace:
    """Seconds of a step on each GPU; validation, saving and compiling are not among them."""

    tokens: int  # of a step, over all GPUs
    passes: float
    update: float
    sent: float  # data between GPUs; taken to go on while the passes do
    used: float  # share of the matmul peak

    @property
    def step(self) -> float:
        """All in all."""
        return max(self.passes, self.sent) + self.update

    @property
    def tokens_per_second(self) -> float:
        """Over all GPUs."""
        return self.tokens / self.step


def pace(job: Job, gpu: Gpu, known: Constants, network: float = 50.0) -> Pace:
    """The step's time; `network` is what each GPU has between machines, GB/s in each direction."""
    products, moved = _work(job)
    bandwidth = gpu.bandwidth * 1e12
    one = products / (known.products * gpu.peak) + known.passes * moved / bandwidth + _weights_moved(job) / bandwidth
    least = job.shape.depth * LAUNCHES * (REPLAYED if job.replayed else 1.0)
    passes = job.passes * max(one, least)
    update = _update_products(job) / (known.products * gpu.peak) + _update_moved(job) / bandwidth
    sent = _sent(job, gpu, network)
    step = max(passes, sent) + update
    used = job.passes * job.micro * job.length * _flops(job) / (step * gpu.peak)
    return Pace(job.training.batch_size * job.length, passes, update, sent, used)


def _work(job: Job) -> tuple[float, float]:
    """(Operations of products, as many as bfloat16 does in their time; bytes that are kept) of one pass."""
    tokens, slower = job.micro * job.length, FLOAT32 if job.training.precision == "float32" else 1
    whole = passed(job.shape, job.keeping)
    again = 1 + FORWARD if job.training.recompute else 1.0
    return tokens * _flops(job) * slower, tokens * whole * again


def _flops(job: Job) -> float:
    """Of a token. Frozen matrices, LoRA's, have no gradients."""
    frozen = matrix_weights(job.shape) + padded(job.vocab) * job.shape.width if job.training.lora is not None else 0
    return flops(job.shape, job.vocab, job.length, job.training.recompute) - 2 * frozen


def _weights_moved(job: Job) -> float:
    """Bytes of weights and gradients that a pass moves, however few its tokens."""
    cast = 0 if job.training.precision == "float32" else CAST * matrix_weights(job.shape)
    return cast + (ADDED * job.trained if job.passes > 1 else 0)


def _update_moved(job: Job) -> float:
    by_muon = matrix_weights(job.shape) if job.training.muon is not None else 0
    average = AVERAGE * job.trained if job.training.ema > 0 else 0
    return (ADAMW * (job.trained - by_muon) + MUON * by_muon + average) / job.shards


def _update_products(job: Job) -> float:
    """Muon's iteration: x xᵀ, its square, and their product with x. Each matrix is one GPU's: of all, or of a copy's shards."""
    if job.training.muon is None:
        return 0.0
    sides = [(min(size), max(size)) for size in matrices(job.shape).values()]
    whole = job.shape.depth * ROUNDS * sum(4 * short**2 * long + 2 * short**3 for short, long in sides)
    return whole / (job.shards if job.shards > 1 else job.gpus)


def _sent(job: Job, gpu: Gpu, network: float) -> float:
    """Seconds in which a step's weights and gradients go through the slowest link that they must pass."""
    if job.gpus == 1:
        return 0.0
    inside, across = gpu.link * 1e9 * REACHED, min(network, gpu.link) * 1e9 * REACHED
    far = across if job.gpus > job.per_node else inside
    weights, gradients = FLOAT * job.parameters.total, FLOAT * job.trained
    around = (job.gpus - 1) / job.gpus
    if job.sharing == "ddp":
        return 2 * around * gradients / far
    if job.sharing == "fsdp":  # gathered forward and backward in each pass; gradients go once a step
        return around * (2 * job.passes * weights + gradients) / far
    copies = job.gpus // job.shards
    within = (job.shards - 1) / job.shards
    gathered = within * (2 * job.passes * weights + gradients) / (across if job.per_node % job.shards else inside)
    return gathered + 2 * (copies - 1) / copies * gradients / job.shards / far


# -- the constants ------------------------------------------------------------------------------------------------------


def fit(runs: Iterable[tuple[Job, Gpu, float]]) -> Constants:
    """From jobs, where they ran, and their tokens a second: least squares of relative errors of a step's time.

    It is linear in 1 / products and in passes.
    """
    a = b = c = u = v = 0.0
    for job, gpu, rate in runs:
        seconds = job.training.batch_size * job.length / rate
        products, moved = _work(job)
        bandwidth = gpu.bandwidth * 1e12
        fixed = (job.passes * _weights_moved(job) + _update_moved(job)) / bandwidth
        x = (job.passes * products + _update_products(job)) / gpu.peak / seconds
        y, rest = job.passes * moved / bandwidth / seconds, 1 - fixed / seconds
        a, b, c, u, v = a + x * x, b + x * y, c + y * y, u + x * rest, v + y * rest
    determinant = a * c - b * b
    return Constants(products=determinant / (u * c - b * v), passes=(a * v - b * u) / determinant)
