"""Memory of training, by calculation: what a GPU holds at the worst moment of a step, by kind. Nothing here imports torch.

Of the numbers below, counts of tensors follow the code and are tested against it; what the driver, the collectives and the
allocator take besides is assumed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from scdd.assemble.job import Job
from scdd.assemble.machines import GIB
from scdd.core.options import padded
from scdd.models.count import FLOAT, HALF, kept, matrices, matrix_weights

CHUNK = 448 << 20  # bytes of logits at a time, `ops.common.CHUNK_BYTES`
CONTEXT = 0.75 * GIB  # assumed: the driver's context, kernels, workspaces of matrix products
COLLECTIVES = 1.25 * GIB  # assumed: buffers of NCCL, where there are several GPUs
SLACK = 0.05  # assumed: of what is allocated, what the allocator cannot use
ORTHOGONAL = (
    10  # bytes a weight while Muon makes matrices of one shape orthogonal, beside the gradient that looks ahead
)


@dataclass(frozen=True)
class Memory:
    """Bytes on one GPU at the worst moment of a step."""

    moment: Literal["backward pass", "sum of gradients", "update"]
    weights: float
    gradients: float
    moments: float  # of AdamW, and Muon's momentum
    average: float
    copies: float  # of weights in bfloat16, which the backward pass needs again
    activations: float
    loss: float  # logits of two chunks, gradients of head and hidden states
    passing: float  # whole layers of a sharded network
    work: float  # of Muon
    context: float

    @property
    def allocated(self) -> float:
        """What torch.cuda.max_memory_allocated would say."""
        return sum(self.kinds().values())

    @property
    def needed(self) -> float:
        """What the GPU must have."""
        return self.allocated * (1 + SLACK) + self.context

    def kinds(self) -> dict[str, float]:
        """Tensors by kind, in the order in which they are shown."""
        names = "weights", "gradients", "moments", "average", "copies", "activations", "loss", "passing", "work"
        return {name: getattr(self, name) for name in names}


def optimiser_states(job: Job) -> int:
    """Bytes of AdamW's two moments and Muon's one, in all, before they are shared."""
    by_muon = matrix_weights(job.shape) if job.training.muon is not None else 0
    return FLOAT * (2 * (job.trained - by_muon) + by_muon)


def memory(job: Job) -> Memory:
    """As a backward pass begins, when everything is kept; at its end; or in the update, whichever takes most."""
    training, count, shards = job.training, job.parameters, job.shards
    adapted = job.trained if training.lora is not None else 0
    weights = FLOAT * (count.total + adapted) / shards
    moments = optimiser_states(job) / shards
    average = FLOAT * job.trained / shards if training.ema > 0 else 0.0
    context = CONTEXT + (COLLECTIVES if job.gpus > 1 else 0)
    gradients, several = FLOAT * job.trained, job.passes > 1
    block = count.blocks // job.shape.depth
    sharded = job.sharing in ("fsdp", "hsdp")
    # FSDP sends gradients in a step's last pass; until then each GPU adds up whole ones.
    mine = gradients if sharded and several else gradients / shards
    # Without any of these, gradients are made as the activations go.
    held = mine if several or job.sharing == "ddp" or job.replayed else 0.0
    passing = FLOAT * (2 * 2 * block + 2 * count.outer) if sharded else 0.0
    steady = {"weights": weights, "moments": moments, "average": average, "context": context}
    none = {"copies": 0.0, "activations": 0.0, "loss": 0.0, "passing": 0.0}
    most = {"copies": _copies(job), "activations": _activations(job), "loss": _loss(job), "passing": passing}
    # A compiled backward pass hands all its gradients over at once, to be added to those of the passes before.
    twice = 2 if several and not sharded else 1
    return max(
        Memory("backward pass", gradients=held, work=0.0, **most, **steady),
        Memory("sum of gradients", gradients=twice * mine, work=0.0, **none, **steady),
        Memory("update", gradients=gradients / shards, work=_work(job), **none, **steady),
        key=lambda each: each.allocated,
    )


def _copies(job: Job) -> float:
    """Matrices as the products take them. They are kept from the forward pass, whole ones also of a sharded network."""
    if job.keeping.half == FLOAT:
        return 0.0
    blocks = 1 if job.training.recompute else job.shape.depth
    return HALF * matrix_weights(job.shape) / job.shape.depth * blocks


def _activations(job: Job) -> float:
    rows, length, how = job.micro, job.length, job.keeping
    each = kept(job.shape, how)
    if job.training.lora is not None:  # between the two factors
        each += job.shape.depth * len(matrices(job.shape)) * job.training.lora.rank * how.half
    # A mask of documents is rows × length × length, true or false and then as numbers.
    return rows * length * each + (rows * length**2 * (1 + how.half) if job.documents else 0)


def _loss(job: Job) -> float:
    """While a chunk's logits are made, those of the chunk before are still there."""
    tokens, half, columns = job.micro * job.length, job.keeping.half, padded(job.vocab)
    logits = tokens * columns * half
    head = columns * job.shape.width
    gradient = 0 if job.training.lora is not None else FLOAT * head
    return min(logits, 2 * CHUNK) + (half * head if half != FLOAT else 0) + gradient + tokens * job.shape.width * half


def _work(job: Job) -> float:
    """Muon's: matrices of one shape, all blocks together; replicas share their products; of shards, one matrix at a time."""
    if job.training.muon is None:
        return 0.0
    groups: dict[tuple[int, int], int] = {}
    for rows, columns in matrices(job.shape).values():
        groups[rows, columns] = groups.get((rows, columns), 0) + job.shape.depth * rows * columns
    if job.shards > 1:  # beside the matrix that it owns, its rows of the others' in the same round, there and back
        return max(rows * columns for rows, columns in groups) * (ORTHOGONAL + FLOAT + HALF)
    shared = ORTHOGONAL if job.gpus == 1 else HALF + ORTHOGONAL / job.gpus
    return max(groups.values()) * (shared + FLOAT)
