"""Steps as CUDA graphs: network, head, transition, draw and bookkeeping for the price of one launch.

A graph is captured for a shape (rows rounded up to whole groups, columns) and a kind of step, over tensors of its own, and
replayed as often as such a step comes: times, levels, temperatures and random counters are read from those tensors, so nothing
but a launch comes from the host. The texts are those of the same shape without graphs, bit for bit.

Not captured, and walked kernel by kernel instead: samplers that see one step for all rows, since their steps are the host's numbers (ar and most
of your own; ar's cache grows, besides); nuclei other than "crossing", and rows whose logits are too many to keep, since torch then picks rows on
the host; everything without Triton, for the same reason; networks behind something
that watches each evaluation, which would see none. Rows that may end early (threshold, gidd-correct, a tolerance) are captured, and the host
looks at them between two steps.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import nn

from scdd.core.denoiser import Denoiser
from scdd.core.rng import CounterRNG
from scdd.core.types import padded
from scdd.models.graphed import Graphed
from scdd.ops.common import HAS_TRITON
from scdd.ops.head import KEEP_BYTES
from scdd.samplers.base import Model, Sampler, State
from scdd.samplers.plan import batch_rules, by_row
from scdd.samplers.readback import Readback
from scdd.samplers.records import beginnings
from scdd.samplers.row_batch import BatchRow, RowBatch
from scdd.samplers.slots import Size, SlotTensors, made, stepped
from scdd.samplers.step import StepResult, TokenRows, begin

if TYPE_CHECKING:
    from torch.cuda import CUDAGraph

log = logging.getLogger("scdd.samplers")
_CAPTURING = threading.Lock()
MOST = 16  # shapes that are kept, each with its tensors and graphs
STEPS = 2048  # rows of a table of steps, at least


class Replay(Protocol):
    """A captured step."""

    def replay(self) -> None:
        """Once more, on what its tensors hold now."""


Capture = Callable[[Callable[[], None]], Replay]
"""(What to capture, which has been run before) → a replay of it."""


class CudaCapture:
    """Captures into one memory pool: graphs of one model never run at the same time, so they may use each other's memory."""

    def __init__(self) -> None:
        self._pool: Any = None
        self._streams: dict[int, Any] = {}

    def __call__(self, run: Callable[[], None]) -> CUDAGraph:
        """`run` has been run before, so that kernels are compiled and libraries have what they keep."""
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        # Torch's own stream for captures is one for the whole process, on the GPU of the first: work of another GPU would
        # not be recorded but done. And it wants one capture at a time.
        here = torch.cuda.current_device()
        if here not in self._streams:
            self._streams[here] = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        graph, how = torch.cuda.CUDAGraph(), {"pool": self._pool, "stream": self._streams[here]}
        with _CAPTURING, torch.cuda.graph(graph, **how, capture_error_mode="thread_local"):
            run()
        return graph


class StepGraphs:
    """The captured steps of one model. One batch at a time uses a shape; a batch that comes between takes its rows along."""

    def __init__(self, capture: Capture | None = None, most: int = MOST) -> None:
        """`capture`: another way than CUDA's, for tests."""
        self._capture, self._given, self._most = capture or CudaCapture(), capture is not None, most
        self._shapes: OrderedDict[object, SlotTensors] = OrderedDict()
        self.lock = threading.RLock()  # a batch holds it while it looks at its rows: others may take over their tensors

    def __reduce__(self) -> tuple[type[StepGraphs], tuple[()]]:
        """A copy begins with nothing."""
        return StepGraphs, ()

    def why_not(self, batch: RowBatch) -> str | None:
        """Why a batch's steps are not captured; None where they are."""
        plan = batch.plan
        if not by_row(plan):
            return f"the sampler {plan.sampler.name}, or a last pass of your own, sees one step for all rows"
        try:
            hash(batch_rules(plan))
        except TypeError:
            return f"the sampler {plan.sampler.name} cannot be told from others: make it a frozen dataclass"
        if self._given:
            return None
        if not isinstance(_network(batch.model), nn.Module):
            return "what stands before the network to watch its evaluations would not see them"
        if batch.device.type != "cuda" or not HAS_TRITON:
            return "there is no GPU, or no Triton"
        if any(each is not None and each.other_nucleus for each in (plan.filters, plan.draw_filters)):
            return "the nucleus picks rows on the host"
        head, rows = batch.model.denoiser.head, batch.room.held
        most = min(rows, batch.rows_per_forward or rows) * batch.columns * padded(head.vocab.size)
        return "there are too many logits to keep" if most * head.weight.element_size() > KEEP_BYTES else None

    def join(
        self, batch: RowBatch, new: Sequence[BatchRow], rows: TokenRows, rng: CounterRNG, sampler: Sampler
    ) -> bool:
        """Rows that are on the host, and counted in `batch.room.held`, go to free slots; False where the batch is not in a shape's tensors,
        or has to leave them. For batches of a fixed width, whose rows have the same shape whoever comes."""
        with self.lock:
            if rows.tokens.shape[1] > batch.columns or (batch.slots is None and (batch.rows or self.why_not(batch))):
                return False
            if batch.slots is None:
                self._shape_of(batch, lambda: begin(rows, sampler).widened(batch.columns, 0)).lend(batch)
            shape: SlotTensors = batch.slots
            if shape.capacity == batch.room.rows:
                mask_id = batch.model.denoiser.vocab.mask_id
                values = beginnings(rows, rng, sampler, shape.columns, mask_id)
                try:
                    joined = [row for row, each in zip(new, values, strict=True) if shape.join(row, each)]
                except BaseException:
                    shape.give_back()  # else some would walk on that nobody knows, and beyond the end of their steps
                    raise
                if len(joined) == len(new):
                    return True
                shape.leave(joined)
            shape.give_back()
            return False

    def step(self, batch: RowBatch, phases: tuple[int, ...]) -> StepResult:
        """`RowBatch`'s step: the first of a kind is walked, the second captured, and from then on all are replayed."""
        with self.lock:
            return self._stepped(batch, phases).result([row.slot for row in batch.rows])

    def launch(self, batch: RowBatch, phases: tuple[int, ...]) -> Readback:
        """The same, of which nothing is copied unless somebody asks."""
        with self.lock:
            return self._stepped(batch, phases).readback([row.slot for row in batch.rows])

    def _stepped(self, batch: RowBatch, phases: tuple[int, ...]) -> SlotTensors:
        if batch.slots is not None and batch.slots.capacity != batch.room.rows:
            batch.slots.give_back()
        if batch.slots is None:
            self._shape_of(batch, lambda: batch.present.state).take(batch)
        shape: SlotTensors = batch.slots
        shape.settle()
        shape.uses[phases] = shape.uses.get(phases, 0) + 1
        if phases not in shape.graphs and shape.uses[phases] > 1 and not shape.broken:
            self._captured(shape, phases)
        if phases in shape.graphs:
            shape.graphs[phases].replay()
        else:
            shape.run(phases)
        return shape

    def clear(self) -> None:
        """Let go of all graphs and their memory."""
        with self.lock:
            for shape in self._shapes.values():
                shape.give_back()
            self._shapes.clear()
            self._capture = self._capture if self._given else CudaCapture()

    def _shape_of(self, batch: RowBatch, like: Callable[[], State]) -> SlotTensors:
        """The tensors that the batch's rows, which have what those of `like` have, belong into."""
        size, network = _size(batch), _network(batch.model)
        key = (
            batch_rules(batch.plan),
            size,
            id(batch.model.process),
            id(batch.model.quality),
            id(network),
            _weights(batch),
        )
        if key not in self._shapes:
            while len(self._shapes) >= self._most:
                self._shapes.popitem(last=False)[1].give_back()
            if not self._shapes and not self._given:
                self._capture = CudaCapture()  # a memory pool ends with its last graph
            with torch.inference_mode(False):  # else only callers in that mode could write to them
                self._shapes[key] = made(batch, like(), size, replace(batch.model, denoiser=network, graphs=None))
        self._shapes.move_to_end(key)
        return self._shapes[key]

    def _captured(self, shape: SlotTensors, phases: tuple[int, ...]) -> None:
        """A warm-up on a stream of its own, whose results are taken back, then the capture, which computes nothing."""
        device = shape.moved.device
        try:
            with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
                with _aside(shape):
                    shape.run(phases)
                shape.graphs[phases] = self._capture(lambda: shape.run(phases))
            shape.held.append(_made_by(shape.model))
        except RuntimeError as error:
            shape.broken = True
            reason = (str(error).splitlines() or [""])[0]
            log.warning("This network's steps are not captured (%s): they are launched kernel by kernel.", reason)


@contextmanager
def _aside(shape: SlotTensors) -> Iterator[None]:
    """On another stream, as a capture wants its warm-up; the tensors are afterwards what they were."""
    kept = [each.clone() for each in (*stepped(shape.now), shape.moved)]
    if shape.moved.is_cuda:
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            yield
        torch.cuda.current_stream().wait_stream(side)
    else:
        yield
    for mine, old in zip((*stepped(shape.now), shape.moved), kept, strict=True):
        mine.copy_(old)


def _size(batch: RowBatch) -> Size:
    """Batches of equal sizes, among other things, can use the same tensors and graphs."""
    capacity = batch.room.rows
    groups = capacity // (batch.rows_per_forward or capacity)
    told = [True] * groups if batch.width is not None else [each.documents is not None for each in batch.present.groups]
    walks = {id(row.walk): len(row.walk) for row in batch.rows}
    steps = max(STEPS, 1 << (max(1, sum(walks.values())) - 1).bit_length())
    return Size(capacity, batch.columns, steps, tuple(told), batch.device)


def _weights(batch: RowBatch) -> tuple[object, ...]:
    """Changes when they do. Which tensors they are is asked once in a batch's life: to go through all modules takes long."""
    if batch.weights is None:
        network = _network(batch.model)
        batch.weights = [*getattr(network, "parameters", lambda: [network.head.weight])()]
    return tuple((each.data_ptr(), 0 if each.is_inference() else each._version) for each in batch.weights)


def _network(model: Model) -> Denoiser:
    """Without a graph of its own, which no other could hold."""
    return model.denoiser.network if isinstance(model.denoiser, Graphed) else model.denoiser


def _made_by(model: Model) -> list[object]:
    """What a network makes for itself besides its weights, and may make anew while a graph still reads the old: longer tables of
    positions, conditioning of other weights."""
    network = _network(model)
    return [*network.buffers(), getattr(network, "kept", None)] if isinstance(network, nn.Module) else []
