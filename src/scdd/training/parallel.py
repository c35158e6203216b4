"""Who does what: one process, DDP, or FSDP2 under torchrun. Everything that knows ranks is in this room."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn

from scdd.core import UserError
from scdd.models.blocks import Block
from scdd.models.compiled import compile_network
from scdd.objectives.base import Loss, Objective
from scdd.objectives.batch_slice import BatchSlice

Kind = Literal["none", "ddp", "fsdp"]


@dataclass(frozen=True)
class World:
    """This process among its peers."""

    rank: int = 0
    size: int = 1
    kind: Kind = "none"
    device: torch.device = torch.device("cpu")
    control: Any = None  # a gloo group: agreeing on the host never waits for the device

    @property
    def is_main(self) -> bool:
        """Whether this is the one that writes and prints."""
        return self.rank == 0

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
            dist.broadcast_object_list(box, group=self.control)
        return box[0]

    def wait(self) -> None:
        """Until every rank is here."""
        if self.size > 1:
            dist.barrier(group=self.control)


@contextlib.contextmanager
def world(asked: str = "auto", device: str | None = None) -> Iterator[World]:
    """Join the process group that torchrun describes; alone without it. Gloo on CPU, NCCL on CUDA."""
    size, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
    local = int(os.environ.get("LOCAL_RANK", "0"))
    chosen = device or ("cuda" if torch.cuda.is_available() else "cpu")
    place = _place(f"cuda:{local}" if chosen == "cuda" else chosen)
    if place.type == "cuda":
        torch.cuda.set_device(place)
    if size == 1:
        yield World(device=place)
        return
    if asked == "none":
        raise UserError(
            f"training.parallel is none and torchrun started {size} processes: set it to ddp or fsdp."
        )
    kind: Kind = "fsdp" if asked == "fsdp" else "ddp"
    dist.init_process_group("nccl" if place.type == "cuda" else "gloo")
    try:
        yield World(rank, size, kind, place, dist.new_group(backend="gloo"))
    finally:
        dist.destroy_process_group()


def _place(name: str) -> torch.device:
    """The device of that name, refused here if training could not begin on it."""
    try:
        place = torch.device(name)
    except RuntimeError as error:
        raise UserError(f"--device {name} is not known: use cpu or cuda.") from error
    if place.type not in ("cpu", "cuda"):
        raise UserError(f"--device {name} cannot train: use cpu or cuda.")
    if place.type == "cuda" and (place.index or 0) >= torch.cuda.device_count():
        raise UserError(
            f"--device {name} is not there, torch sees {torch.cuda.device_count()} GPUs: use cpu."
        )
    return place


class Step(nn.Module):
    """A network and an objective as one module, so that DDP and FSDP see all that a step does."""

    def __init__(self, network: nn.Module, objective: Objective, bf16: bool = False, ranks: int = 1) -> None:
        super().__init__()
        self.network = network
        for name, module in objective.modules().items():
            self.add_module(name, module)
        self.objective, self.bf16, self.ranks = objective, bf16, ranks

    def forward(
        self, tokens: Tensor, documents: Tensor | None, part: BatchSlice, report: bool = False
    ) -> Loss:
        """The loss of this part, or with `report` the number to report; gradients are averaged over ranks later."""
        view = _Mixed(self.network, self.bf16, tokens.device.type)
        objective = self.objective.evaluate if report else self.objective.loss
        found = objective(cast(Any, view), tokens, documents, part)
        return found._replace(total=found.total * self.ranks)


class _Mixed:
    """The network with its hidden states computed in bfloat16; ops choose their own precision."""

    def __init__(self, network: nn.Module, bf16: bool, kind: str) -> None:
        self._network, self._bf16, self._kind = cast(Any, network), bf16, kind
        self.vocab = self._network.vocab

    @property
    def head(self) -> Any:
        return self._network.head

    def hidden(self, z_t: Tensor, t: Tensor | None = None, documents: Tensor | None = None) -> Tensor:
        with torch.autocast(self._kind, torch.bfloat16, enabled=self._bf16):
            states: Tensor = self._network.hidden(z_t, t, documents)
        return states


class Parallel:
    """A step shared among ranks: call it for losses; only the last micro-batch of a step sends gradients."""

    def __init__(self, step: Step, world: World, compile: bool = False) -> None:
        self.world, self.step = world, step
        blocks = [module for module in step.network.modules() if isinstance(module, Block)]
        if compile and world.kind == "fsdp":
            for block in blocks:
                compile_network(block)
        elif compile:
            compile_network(step.network)
        self._call: nn.Module = step
        if world.kind == "ddp":
            self._call = nn.parallel.DistributedDataParallel(
                step, broadcast_buffers=False, gradient_as_bucket_view=True
            )
        elif world.kind == "fsdp":
            _shard(step, blocks)

    def __call__(self, tokens: Tensor, documents: Tensor | None, part: BatchSlice, last: bool = True) -> Loss:
        """Forward; gradients leave this rank in the backward pass of the `last` part."""
        with contextlib.ExitStack() as stack:
            if isinstance(self._call, nn.parallel.DistributedDataParallel) and not last:
                stack.enter_context(self._call.no_sync())
            if self.world.kind == "fsdp":
                cast(Any, self.step).set_requires_gradient_sync(last)
            loss: Loss = self._call(tokens, documents, part)
            # The backward pass belongs inside: DDP decides there whether gradients are sent.
            loss.total.backward()  # type: ignore[no-untyped-call]
        return loss

    def report(self, tokens: Tensor, documents: Tensor | None, part: BatchSlice) -> Loss:
        """The number to report, without gradients."""
        with torch.no_grad():
            found: Loss = self.step(tokens, documents, part, report=True)
        return found


def _shard(step: Step, blocks: Sequence[nn.Module]) -> None:
    """FSDP2: each block on its own, the rest together; weights stay float32, autocast computes in bfloat16.

    The root is resharded after the forward pass as well, or validation's swap of weights would not be seen.
    """
    from torch.distributed.fsdp import fully_shard

    for block in blocks:
        fully_shard(block)
    fully_shard(step, reshard_after_forward=True)


def whole(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Sharded tensors gathered, on every rank; plain ones as they are."""
    return {name: t.full_tensor() if hasattr(t, "full_tensor") else t for name, t in tensors.items()}
