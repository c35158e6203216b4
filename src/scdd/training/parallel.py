"""Who does what: one process, DDP, FSDP2 or HSDP under torchrun. Everything that knows ranks is in this room."""

from __future__ import annotations

import contextlib
import inspect
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn

from scdd.core import UserError
from scdd.core.types import Learnt
from scdd.models.compiled import compile_network
from scdd.models.network import Network
from scdd.objectives.base import BatchSlice, Loss, Objective
from scdd.training.meeting import meet

Kind = Literal["none", "ddp", "fsdp", "hsdp"]
PATIENCE = timedelta(hours=6)
"""For one rank that has much to do alone: it checks data or a checkpoint, or the disk is slow."""


@dataclass(frozen=True)
class World:
    """This process among its peers."""

    rank: int = 0
    size: int = 1
    kind: Kind = "none"
    device: torch.device = torch.device("cpu")
    control: Any = None  # a gloo group: agreeing on the host never waits for the device
    patient: Any = None  # another, where one rank may have much to do alone
    writing: Any = None  # one like that for the threads that write checkpoints
    shards: int = 1  # ranks that share one copy of the model

    @property
    def is_main(self) -> bool:
        """Whether this is the one that writes and prints."""
        return self.rank == 0

    @property
    def is_sharded(self) -> bool:
        """Whether a rank holds but a part of the model."""
        return self.kind in ("fsdp", "hsdp")

    def reduce(self, tensor: Tensor) -> None:
        """Sum over ranks, in place."""
        if self.size > 1:
            dist.all_reduce(tensor)

    def any(self, *flags: bool) -> tuple[bool, ...]:
        """Each flag, true if it is true on some rank."""
        if self.size == 1:
            return flags
        votes = torch.tensor([int(flag) for flag in flags])
        dist.all_reduce(votes, op=dist.ReduceOp.MAX, group=self.control)
        return tuple(bool(vote) for vote in votes.tolist())

    def broadcast(self, message: str) -> str:
        """Rank 0's message, on every rank."""
        box = [message]
        if self.size > 1:
            dist.broadcast_object_list(box, group=self.patient)
        return box[0]

    def gather(self, message: str) -> list[str]:
        """Every rank's message, in their order, on every rank."""
        box = [message] * self.size
        if self.size > 1:
            dist.all_gather_object(box, message, group=self.patient)
        return box

    def on_main(self, work: Callable[[], object]) -> None:
        """Rank 0 does `work`; a mistake that it finds is raised on every rank, so that none waits for it."""
        mistake: UserError | OSError | None = None
        if self.is_main:
            try:
                work()
            except (UserError, OSError) as error:
                mistake = error
        told = self.broadcast("" if mistake is None else str(mistake))
        if mistake is not None or told:
            raise mistake or UserError(told)

    def wait(self) -> None:
        """Until every rank is here."""
        if self.size > 1:
            dist.barrier(group=self.patient)


@contextlib.contextmanager
def world(
    kind: str = "auto", device: str | None = None, timeout: float = 600.0, shards: int | None = None
) -> Iterator[World]:
    """Join the process group that torchrun describes; alone without it. Gloo on CPU, NCCL on CUDA.

    In a step ranks wait `timeout` seconds for each other, and end then: one of them is lost. `shards` is how many share
    one copy of the model under hsdp: those of a node, unless told.
    """
    size, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    place = _place(f"cuda:{local_rank}" if device == "cuda" else device)
    if place.type == "cuda":
        torch.cuda.set_device(place)
    if size == 1:
        yield World(device=place)
        return
    if kind == "none":
        raise UserError(f"parallel is none and torchrun started {size} processes: set it to ddp or fsdp.", "parallel")
    chosen: Kind = cast(Kind, kind) if kind in ("fsdp", "hsdp") else "ddp"
    over = {"ddp": 1, "fsdp": size, "hsdp": shards or int(os.environ.get("LOCAL_WORLD_SIZE", size))}[chosen]
    if size % over:
        raise UserError(
            f"shard_ranks is {over}, which {size} processes are no multiple of: start as many on every node, or choose a "
            "divisor.",
            "shard_ranks",
        )
    limit = timedelta(seconds=timeout)
    store, rank, size = meet(limit)
    backend = "nccl" if place.type == "cuda" else "gloo"
    dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=limit)
    try:
        groups = (dist.new_group(backend="gloo", timeout=each) for each in (limit, PATIENCE, PATIENCE))
        control, patient, writing = groups
        yield World(rank, size, chosen, place, control, patient, writing, over)
    finally:
        dist.destroy_process_group()


def _place(name: str) -> torch.device:
    """The device of that name, refused here if training could not begin on it."""
    try:
        place = torch.device(name)
    except RuntimeError as error:
        raise UserError(f"device {name} is not known: use cpu or cuda.", "device") from error
    if place.type not in ("cpu", "cuda"):
        raise UserError(f"device {name} cannot train: use cpu or cuda.", "device")
    if place.type == "cuda" and (place.index or 0) >= torch.cuda.device_count():
        seen = torch.cuda.device_count()
        raise UserError(f"device {name} is not there, torch sees {seen} GPUs: use cpu.", "device")
    return place


class LossModule(nn.Module):
    """A network and an objective as one module, so that DDP and FSDP see all that a step does."""

    network: Network

    def __init__(self, network: Network, objective: Objective, ranks: int = 1, grow_attention: int = 0) -> None:
        super().__init__()
        self.network, self.grow_attention = network, grow_attention
        for name, module in objective.modules().items():
            self.add_module(name, module)
        self.objective, self.ranks = objective, ranks

    def forward(
        self, tokens: Tensor, documents: Tensor | None, learnt: Learnt | None, part: BatchSlice, report: bool = False
    ) -> Loss:
        """The loss of this slice, or with `report` the number to report; gradients are averaged over ranks later."""
        compute = self.objective.evaluate if report else self.objective.loss
        if self.grow_attention and not report:
            # A function of the step alone, so that a resumed run sees as far as it did.
            grown = part.step >= self.grow_attention
            far = None if grown else tokens.shape[1] * part.step // self.grow_attention
            cast(Any, self.network).lookahead = far
        loss = compute(self.network, tokens, documents, part, *(() if learnt is None else (learnt,)))
        return loss._replace(total=loss.total * self.ranks)

    def hidden_matrices(self) -> set[str]:
        """The network's, under the names that they have here."""
        return {f"network.{name}" for name in self.network.hidden_matrices()}


class Parallel:
    """A loss module shared among ranks."""

    def __init__(self, module: LossModule, world: World, compile: bool = False, graphs: bool = False) -> None:
        self.world, self.module = world, module
        self.replayed = compile and graphs and world.kind == "none"
        layers = module.network.layers()
        if compile:
            options = {"triton.cudagraphs": True} if self.replayed else {}
            for part in layers if world.is_sharded else [module.network]:
                compile_network(part, fullgraph=module.network.whole_graph, options=options)
        self._ddp: nn.parallel.DistributedDataParallel | None = None
        if world.kind == "ddp":
            quiet: dict[str, Any] = {_sync_buffers(): False}
            self._ddp = nn.parallel.DistributedDataParallel(module, gradient_as_bucket_view=True, **quiet)
            if world.device.type == "cpu" and world.size > 2:
                # A lambda, since DDP refuses a hook whose annotations are strings.
                self._ddp.register_comm_hook(world.size, lambda size, bucket: _mean_in_order(size, bucket))
        elif world.is_sharded:
            _shard(module, layers, world)

    def forward(self, tokens: Tensor, documents: Tensor | None, learnt: Learnt | None, part: BatchSlice) -> Loss:
        """The loss of this slice, to call `backward` on."""
        if self.replayed:
            torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]
        loss: Loss = (self._ddp or self.module)(tokens, documents, learnt, part)
        return loss

    @contextlib.contextmanager
    def sending_gradients(self, last: bool) -> Iterator[None]:
        """For a forward and a backward pass: gradients leave this rank only in the `last` ones of a step."""
        if self.world.is_sharded:
            cast(Any, self.module).set_requires_gradient_sync(last)
        with self._ddp.no_sync() if self._ddp is not None and not last else contextlib.nullcontext():
            yield

    def report(self, tokens: Tensor, documents: Tensor | None, learnt: Learnt | None, part: BatchSlice) -> Loss:
        """The number to report, without gradients."""
        if self.replayed:
            torch.compiler.cudagraph_mark_step_begin()  # type: ignore[no-untyped-call]
        with torch.no_grad():
            loss: Loss = self.module(tokens, documents, learnt, part, report=True)
        return loss


def _mean_in_order(size: int, bucket: Any) -> torch.futures.Future[Tensor]:
    """The mean over ranks, summed rank by rank, so that no bit depends on where in its bucket a gradient lies.

    DDP packs its buckets anew after the first step of each process, and gloo adds in another order in each piece of a
    bucket: with more than two ranks a run that was stopped and went on would differ in the last bits.
    """
    own = bucket.buffer().div_(size)
    every = [torch.empty_like(own) for _ in range(size)]
    dist.all_gather(every, own)
    done: torch.futures.Future[Tensor] = torch.futures.Future()
    for other in every[1:]:
        every[0].add_(other)
    done.set_result(own.copy_(every[0]))
    return done


def _sync_buffers() -> str:
    """What this torch calls DDP's sending of buffers before each pass: buffers here never change."""
    known = inspect.signature(nn.parallel.DistributedDataParallel.__init__).parameters
    return "forward_sync_buffers" if "forward_sync_buffers" in known else "broadcast_buffers"


def _shard(module: LossModule, layers: Sequence[nn.Module], world: World) -> None:
    """FSDP2: each layer on its own, the rest together; weights stay float32, autocast computes in bfloat16.

    Under hsdp, neighbouring ranks share a copy of the model, and ranks of the same place in each copy average their
    gradients. The root is resharded after the forward pass as well, or validation's swap of weights would not be seen.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    copies = world.size // world.shards
    shape, names = ((world.size,), ("shard",)) if world.kind == "fsdp" else ((copies, world.shards), ("copy", "shard"))
    mesh = init_device_mesh(world.device.type, shape, mesh_dim_names=names)
    for layer in layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(module, mesh=mesh, reshard_after_forward=True)


# -- sharded tensors ----------------------------------------------------------------------------------------------------


def local(tensors: Iterable[Tensor]) -> list[Tensor]:
    """This rank's share of sharded tensors; plain tensors as they are."""
    return [t.to_local() if hasattr(t, "to_local") else t for t in tensors]
