"""What `zygote.py` runs in each rank of a test, where the plain command would not do."""

from __future__ import annotations

import os
import signal
import time
import weakref
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from scdd.assemble import training as build
from scdd.cli.main import main
from scdd.data.loader import Loader
from scdd.objectives.base import Loss
from scdd.recipe.load import load
from scdd.training import muon
from scdd.training.optim import MovingAverage, Optimiser
from scdd.training.options import OptimiserOptions
from scdd.training.parallel import LossModule, World, world


def whole(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Sharded tensors gathered, on every rank; plain ones as they are."""
    return {name: t.full_tensor() if hasattr(t, "full_tensor") else t for name, t in tensors.items()}


class Live(TorchDispatchMode):
    """Counts the bytes of the tensors that are made inside and still alive: now, and at most."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.most = 0
        self.known: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = {t.untyped_storage()._cdata for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)}
        found = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(found):
            if not isinstance(tensor, Tensor):
                continue
            storage = tensor.untyped_storage()
            if storage._cdata in given or storage._cdata in self.known:
                continue
            self.known.add(storage._cdata)
            self.now += storage.nbytes()
            self.most = max(self.most, self.now)
            weakref.finalize(storage, self._gone, storage._cdata, storage.nbytes())
        return found

    def _gone(self, key: int, size: int) -> None:
        self.known.discard(key)
        self.now -= size


# -- a run in which something goes wrong -------------------------------------------------------------------------------


def spoilt(request: dict[str, Any], rank: int) -> int:
    """`scdd train` in which the batches of those numbers go wrong, on the ranks of those numbers."""
    forward, wrong = LossModule.forward, request["spoil"]

    def changed(self: LossModule, tokens: Any, documents: Any, learnt: Any, part: Any, report: bool = False) -> Loss:
        loss = forward(self, tokens, documents, learnt, part, report)
        if report or part.step not in wrong["batches"] or rank not in wrong.get("ranks", (0, 1, 2, 3)):
            return loss
        if wrong["what"] == "loss":  # with a gradient that is finite
            return loss._replace(total=loss.total + torch.inf, nats=loss.nats + torch.inf)
        if wrong["what"] == "leap":
            return loss._replace(total=loss.total * 1000)
        total = loss.total.clone()
        total.register_hook(lambda gradient: gradient * torch.nan)
        return loss._replace(total=total)

    LossModule.forward = changed  # type: ignore[method-assign]
    return main(request["argv"])


def hanging(request: dict[str, Any], rank: int) -> int:
    """`scdd train` in which one rank's data do not come, or its process is stopped."""
    take = Loader.samples

    def late(self: Loader, start: int, stop: int) -> Any:
        if rank == request["behind"] and start >= 8 * 9:  # some are read ahead, and the first step may take its time
            if request["how"] == "stopped":
                os.kill(os.getpid(), signal.SIGSTOP)
            time.sleep(60)
        return take(self, start, stop)

    Loader.samples = late  # type: ignore[method-assign]
    return main(request["argv"])


# -- Muon ------------------------------------------------------------------------------------------------------------

SHAPES = {"a": (16, 48), "b": (3, 8), "c": (48, 16), "d": (16, 48), "e": (10, 6)}  # "b" has fewer rows than four ranks
OPTIONS = OptimiserOptions(steps=10, warmup_steps=0, learning_rate=1e-3, muon=0.02)


def _module(shapes: dict[str, tuple[int, int]]) -> nn.Module:
    generator = torch.Generator().manual_seed(3)
    module = nn.Module()
    for name, shape in shapes.items():
        module.register_parameter(name, nn.Parameter(torch.randn(shape, generator=generator)))
    module.register_parameter("bias", nn.Parameter(torch.zeros(8)))
    return module


def _optimiser(module: nn.Module, shapes: dict[str, Any], here: World) -> tuple[Optimiser, MovingAverage]:
    return Optimiser(module.named_parameters(), OPTIONS, set(shapes), world=here), MovingAverage(module, 0.9)


def muon_on_ranks(request: dict[str, Any], rank: int) -> int:
    """Three steps of Muon on replicas, on shards and on copies of shards beside the same three of one process."""
    with world("ddp", "cpu") as here:
        few = dict(list(SHAPES.items())[:2])
        many = {f"m{number}": SHAPES["a"] for number in range(24)}
        for kind, shapes in (("ddp", SHAPES), ("ddp", few), ("fsdp", SHAPES), ("fsdp", few), ("fsdp", many)):
            _compare(replace(here, kind=kind, shards=here.size), shapes)  # type: ignore[arg-type]
        if here.size > 2:
            _compare(replace(here, kind="hsdp", shards=2), SHAPES)
    return 0


def _compare(here: World, shapes: dict[str, tuple[int, int]]) -> None:
    alone, ours = _module(shapes), _module(shapes)
    if here.is_sharded:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        copies = here.size // here.shards
        shape, names = ((copies, here.shards), ("copy", "shard")) if copies > 1 else ((here.size,), ("shard",))
        fully_shard(ours, mesh=init_device_mesh("cpu", shape, mesh_dim_names=names))
    own, average = _optimiser(alone, shapes, World())
    shared, shadow = _optimiser(ours, shapes, here)
    calls: list[tuple[int, ...]] = []
    orthogonal = muon.orthogonal

    def counted(x: Tensor) -> Tensor:
        calls.append(tuple(x.shape))
        return orthogonal(x)

    steps = 3
    for step in range(steps):
        generator = torch.Generator().manual_seed(step)
        for name, p in alone.named_parameters():
            p.grad = torch.randn(p.shape, generator=generator) * (torch.nan if step == 1 and name == "a" else 1.0)
            theirs: Any = ours.get_parameter(name)
            theirs.grad = _like(p.grad, theirs)
        own.update_and_average(step, average)
        muon.orthogonal = counted
        with Live() as live:
            shared.update_and_average(step, shadow)
        muon.orthogonal = orthogonal
        most = max(rows * columns for rows, columns in shapes.values())
        if here.is_sharded:
            held = sum(p.to_local().numel() for p in shared.muon.matrices.values())  # type: ignore[attr-defined]
            # The iteration has some copies of one matrix; only the shards grow with their number, for the average.
            assert live.most <= 4 * (held + 8 * most) + 4096, (live.most, held, most)
            assert all(live.most > 4 * rows * columns for _, rows, columns in calls), "or nothing was counted"
    if here.is_sharded:
        assert all(shape[0] == 1 for shape in calls), "a matrix at a time"
    every: list[Any] = [None] * here.size
    dist.all_gather_object(every, calls)
    taken = sum(shape[0] for each in every for shape in each)
    copies, owners = (here.size // here.shards, here.shards) if here.is_sharded else (1, here.size)
    assert taken == copies * steps * len(shapes), "each matrix on one rank of each copy"
    most_on_one = max(sum(shape[0] for shape in each) for each in every)
    assert most_on_one <= steps * -(-len(shapes) // owners), "work is divided"
    for name, p in whole(dict(ours.named_parameters()) | {f"{n}.ema": t for n, t in shadow.shadow.items()}).items():
        expected = average.shadow[name[:-4]] if name.endswith(".ema") else alone.get_parameter(name).detach()
        assert torch.isfinite(p).all()
        if here.kind == "ddp":
            assert torch.equal(p, expected), name
        else:
            torch.testing.assert_close(p.detach(), expected, atol=1e-6, rtol=1e-5)


def _like(tensor: Tensor, like: Any) -> Tensor:
    if not hasattr(like, "full_tensor"):
        return tensor.clone()
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(tensor, like.device_mesh, like.placements)


# -- gradients ---------------------------------------------------------------------------------------------------------

LLAMA = "model={kind: llama, size: custom, depth: 2, width: 16, heads: 2, kv_heads: 1, mlp_width: 24}"
NEAR = (LLAMA.replace("}", ", attention_window: 3}"), "data.length=160")  # more than are taken at a time


def gradients(recipe: str, here: World, *changes: str) -> dict[str, Tensor]:
    """Of the second step's batch, gathered; after one update, so that no gate is closed."""
    spec = load(recipe, [f"training.parallel={here.kind}", "objective.times={kind: low-discrepancy}", *changes])
    trainer = build.trainer(spec, build.BUNDLED, here, build.corpus(spec))
    batches = iter(trainer.loader)
    trainer.advance(next(batches))
    found: dict[str, Tensor] = {}

    def kept(step: int, average: Any) -> Tensor:
        found.update(whole({n: p.grad.detach() for n, p in trainer.module.named_parameters() if p.grad is not None}))
        return torch.zeros(())

    trainer.optimiser.update_and_average = kept  # type: ignore[method-assign]
    trainer.advance(next(batches))
    return {name: gradient.clone() for name, gradient in found.items()}


def gradients_on_ranks(request: dict[str, Any], rank: int) -> int:
    """Recomputed or not, in whatever pieces: the gradient of one process and one piece."""
    recipe = request["recipe"]
    with world("ddp", "cpu") as here:
        for model in ((), (LLAMA,), NEAR):
            alone = gradients(recipe, World(), *model)
            for kind in ("ddp", "fsdp"):
                ranks = replace(here, kind=kind)  # type: ignore[arg-type]
                pieces = ("training.recompute=true", "training.micro_batch_size=2")
                close(gradients(recipe, ranks, *model, *pieces), alone)
    return 0


def close(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    assert any(gradient.abs().max() > 1e-3 for gradient in expected.values()), "or nothing was tested"
    for name, gradient in found.items():
        torch.testing.assert_close(
            gradient, expected[name], atol=2e-6, rtol=2e-4, msg=lambda text, n=name: f"{n}: {text}"
        )
