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
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor, nn

from scdd.core.denoiser import Denoiser
from scdd.core.types import padded
from scdd.models.graphed import Graphed
from scdd.ops.common import HAS_TRITON
from scdd.ops.head import KEEP_BYTES
from scdd.samplers.base import Model, State
from scdd.samplers.loop import Present, RowBatch, Seen, advance
from scdd.samplers.plan import SamplingPlan, by_row, company
from scdd.samplers.prediction import Group

if TYPE_CHECKING:
    from torch.cuda import CUDAGraph

log = logging.getLogger("scdd.samplers")
_CAPTURING = threading.Lock()
MOST = 16  # shapes that are kept, each with its tensors and graphs
STEPS = 256  # rows of a table of steps, at least


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


@dataclass(eq=False)
class _Shape:
    """Tensors of one shape, and the graphs over them: one for each set of phases that rows were in."""

    model: Model
    plan: SamplingPlan
    now: Present
    moved: Tensor
    documents: Tensor | None
    shown: Tensor  # what `Seen` has, as bytes: one copy keeps a frame
    owner: weakref.ref[RowBatch] | None = None
    uses: dict[tuple[int, ...], int] = field(default_factory=dict)
    graphs: dict[tuple[int, ...], Replay] = field(default_factory=dict)
    held: list[object] = field(default_factory=list)  # what graphs read and others may let go of
    broken: bool = False

    def run(self, phases: Sequence[int]) -> None:
        """One step, in place."""
        new, moved = advance(self.model, self.plan, self.now, phases)
        pairs = zip([*_tensors(self.now), self.moved], [*_tensors(new), moved], strict=True)
        changed = [pair for pair in pairs if pair[0] is not pair[1]]
        for dtype in {mine.dtype for mine, _ in changed}:  # one launch each
            mine, others = zip(*(pair for pair in changed if pair[0].dtype == dtype), strict=True)
            torch._foreach_copy_(mine, others)


class StepGraphs:
    """The captured steps of one model. One batch at a time uses a shape; a batch that comes between takes its rows along."""

    def __init__(self, capture: Capture | None = None, most: int = MOST) -> None:
        """`capture`: another way than CUDA's, for tests."""
        self._capture, self._given, self._most = capture or CudaCapture(), capture is not None, most
        self._shapes: OrderedDict[object, _Shape] = OrderedDict()
        self.lock = threading.RLock()  # a batch holds it while it looks at its rows: others may take over their tensors

    def __reduce__(self) -> tuple[type[StepGraphs], tuple[()]]:
        """A copy begins with nothing."""
        return StepGraphs, ()

    def why_not(self, batch: RowBatch) -> str | None:
        """Why a batch's steps are not captured; None where they are."""
        plan, now = batch.plan, batch.present
        if not by_row(plan):
            return f"the sampler {plan.sampler.name}, or a last pass of your own, sees one step for all rows"
        try:
            hash(company(plan))
        except TypeError:
            return f"the sampler {plan.sampler.name} cannot be told from others: make it a frozen dataclass"
        if self._given:
            return None
        if not isinstance(_network(batch.model), nn.Module):
            return "what stands before the network to watch its evaluations would not see them"
        if not now.keys.is_cuda or not HAS_TRITON:
            return "there is no GPU, or no Triton"
        if any(each is not None and each.other_nucleus for each in (now.filters, plan.draw_filters)):
            return "the nucleus picks rows on the host"
        head, (rows, columns) = batch.model.denoiser.head, now.state.tokens.shape
        most = min(rows, batch.rows_per_forward or rows) * columns * padded(head.vocab.size)
        return "there are too many logits to keep" if most * head.weight.element_size() > KEEP_BYTES else None

    def step(self, batch: RowBatch, phases: tuple[int, ...]) -> Seen:
        """`RowBatch`'s step: the first of a kind is walked, the second captured, and from then on all are replayed."""
        with self.lock:
            shape: _Shape = self._shape_of(batch) if batch.place is None else batch.place
            shape.uses[phases] = shape.uses.get(phases, 0) + 1
            if phases not in shape.graphs and shape.uses[phases] > 1 and not shape.broken:
                self._captured(shape, phases)
            if phases in shape.graphs:
                shape.graphs[phases].replay()
            else:
                shape.run(phases)
            return _seen(shape, len(batch.rows))

    def clear(self) -> None:
        """Let go of all graphs and their memory."""
        with self.lock:
            for shape in self._shapes.values():
                _give_back(shape)
            self._shapes.clear()
            self._capture = self._capture if self._given else CudaCapture()

    def _shape_of(self, batch: RowBatch) -> _Shape:
        """With the batch's rows in it."""
        key = _key(batch)
        if key not in self._shapes:
            while len(self._shapes) >= self._most:
                _give_back(self._shapes.popitem(last=False)[1])
            if not self._shapes and not self._given:
                self._capture = CudaCapture()  # a memory pool ends with its last graph
            with torch.inference_mode(False):  # else only callers in that mode could write to them
                self._shapes[key] = _made(batch)
        self._shapes.move_to_end(key)
        _take(self._shapes[key], batch)
        return self._shapes[key]

    def _captured(self, shape: _Shape, phases: tuple[int, ...]) -> None:
        """A warm-up on a stream of its own, whose results are taken back, then the capture, which computes nothing."""
        place = shape.moved.device
        try:
            with torch.cuda.device(place) if place.type == "cuda" else nullcontext():
                with _aside(shape):
                    shape.run(phases)
                shape.graphs[phases] = self._capture(lambda: shape.run(phases))
            shape.held.append(_made_by(shape.model))
        except RuntimeError as error:
            shape.broken = True
            reason = (str(error).splitlines() or [""])[0]
            log.warning("This network's steps are not captured (%s): they are launched kernel by kernel.", reason)


@contextmanager
def _aside(shape: _Shape) -> Iterator[None]:
    """On another stream, as a capture wants its warm-up; the tensors are afterwards what they were."""
    kept = [each.clone() for each in (*_tensors(shape.now), shape.moved)]
    if shape.moved.is_cuda:
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            yield
        torch.cuda.current_stream().wait_stream(side)
    else:
        yield
    for mine, old in zip((*_tensors(shape.now), shape.moved), kept, strict=True):
        mine.copy_(old)


def _tensors(now: Present) -> list[Tensor]:
    """What a step changes."""
    return [*now.state.tensors(), now.calls, now.at]


def _key(batch: RowBatch) -> object:
    """Batches of equal keys can use the same tensors and graphs."""
    now, model, columns = batch.present, batch.model, batch.present.state.tokens.shape[1]
    network = _network(model)
    parameters = getattr(network, "parameters", lambda: [model.denoiser.head.weight])()
    weights = [(p.data_ptr(), 0 if p.is_inference() else p._version) for p in parameters]
    masked = tuple(group.documents is not None for group in now.groups)
    shape = (_capacity(batch), columns, _steps(now), masked, now.keys.device)
    return company(batch.plan), shape, id(model.process), id(model.quality), id(network), tuple(weights)


def _network(model: Model) -> Denoiser:
    """Without a graph of its own, which no other could hold."""
    return model.denoiser.network if isinstance(model.denoiser, Graphed) else model.denoiser


def _made_by(model: Model) -> list[object]:
    """What a network makes for itself besides its weights, and may make anew while a graph still reads the old: longer tables of
    positions, conditioning of other weights."""
    network = _network(model)
    return [*network.buffers(), getattr(network, "kept", None)] if isinstance(network, nn.Module) else []


def _capacity(batch: RowBatch) -> int:
    """Rows rounded up to whole groups."""
    rows, size = len(batch.rows), batch.rows_per_forward
    return rows if size is None else -(-rows // size) * size


def _steps(now: Present) -> int:
    """Rows of the tables, rounded up to a power of two."""
    return max(STEPS, 1 << (len(now.tables[0]) - 1).bit_length())


def _made(batch: RowBatch) -> _Shape:
    """Tensors for batches like this one, in which nobody is yet."""
    now, rows, columns = batch.present, _capacity(batch), batch.present.state.tokens.shape[1]
    device, size = now.keys.device, batch.rows_per_forward or rows

    def empty(like: Tensor, count: int = rows) -> Tensor:
        return torch.zeros((count, *like.shape[1:]), dtype=like.dtype, device=device)

    flat, state = _flat(now.state, rows)
    masked = [group.documents is not None for group in now.groups]
    documents = torch.zeros((rows, columns), dtype=torch.int64, device=device) if any(masked) else None
    places = [slice(start, start + size) for start in range(0, rows, size)]
    groups = [
        Group(place, columns, 0, documents[place] if documents is not None and told else None)
        for place, told in zip(places, masked, strict=True)
    ]
    heat = torch.ones((rows, 1), dtype=torch.float64, device=device)
    fixed = Present(
        state=state,
        keys=empty(now.keys),
        calls=empty(now.calls),
        at=empty(now.at),
        pace=empty(now.pace),
        tables=(empty(now.tables[0], _steps(now)), empty(now.tables[1], _steps(now))),
        filters=replace(now.filters, temperature=heat),
        groups=tuple(groups),
    )
    moved = flat[1]
    model = replace(batch.model, denoiser=_network(batch.model), graphs=None)
    return _Shape(model, batch.plan, fixed, moved, documents, flat[0])


def _flat(like: State, rows: int) -> tuple[tuple[Tensor, Tensor], State]:
    """((Bytes, what moved in them), a state of so many rows): what `Seen` shows lies in one piece of memory."""
    device, columns = like.tokens.device, like.tokens.shape[1]
    whole = like.changed(lambda each: torch.zeros((rows, *each.shape[1:]), dtype=each.dtype, device=device))
    moved = torch.zeros((rows, columns), dtype=torch.int8, device=device)
    parts = [whole.tokens, moved, whole.log_p, whole.counts, whole.nfe]
    sizes = [_bytes(part) for part in parts]
    flat = torch.zeros(sum(sizes), dtype=torch.uint8, device=device)
    inside = _views(flat, parts)
    state = replace(whole, tokens=inside[0], log_p=inside[2], counts=inside[3], nfe=inside[4])
    return (flat, inside[1]), state


def _bytes(part: Tensor) -> int:
    """Rounded up, so that what follows is aligned."""
    return -(-part.numel() * part.element_size() // 16) * 16


def _views(flat: Tensor, parts: Sequence[Tensor]) -> list[Tensor]:
    views, start = [], 0
    for part in parts:
        piece = flat[start : start + part.numel() * part.element_size()]
        views.append(piece.view(part.dtype).view(part.shape))
        start += _bytes(part)
    return views


def _seen(shape: _Shape, rows: int) -> Seen:
    """A copy, since the next step writes over it."""
    state = shape.now.state
    parts = [state.tokens, shape.moved, state.log_p, state.counts, state.nfe]
    return Seen(*(view[:rows] for view in _views(shape.shown.clone(), parts)))


def _take(shape: _Shape, batch: RowBatch) -> None:
    """The batch's rows move into the shape's tensors; nobody is in the rest, where nothing moves."""
    _give_back(shape)
    now, fixed, rows = batch.present, shape.now, len(batch.rows)
    news = [*_tensors(now), now.keys, now.pace]
    for mine, other in zip([*_tensors(fixed), fixed.keys, fixed.pace], news, strict=True):
        mine[:rows].copy_(other)
        mine[rows:].zero_()
    fixed.state.done[rows:] = True
    fixed.state.lengths[rows:] = fixed.state.tokens.shape[1]
    for table, steps in zip(fixed.tables, now.tables, strict=True):
        table[: len(steps)].copy_(steps)
    assert isinstance(fixed.filters.temperature, Tensor)
    fixed.filters.temperature[:rows] = now.filters.temperature
    if shape.documents is not None:
        columns = torch.arange(shape.documents.shape[1], device=shape.documents.device)
        shape.documents.copy_(torch.where(columns < fixed.state.lengths[:, None], 0, -1))
    shape.owner = weakref.ref(batch)
    batch.present, batch.place = _first(fixed, now, rows), shape


def _first(fixed: Present, now: Present, rows: int) -> Present:
    """The first rows of the shape's tensors, for whoever asks the batch: they are what the next steps change."""
    state = fixed.state.changed(lambda each: each[:rows])
    return replace(
        now, state=state, keys=fixed.keys[:rows], calls=fixed.calls[:rows], at=fixed.at[:rows], pace=fixed.pace[:rows]
    )


def _give_back(shape: _Shape) -> None:
    """Whoever is in the tensors gets copies of its own."""
    owner = shape.owner() if shape.owner is not None else None
    if owner is not None and owner.place is shape:
        now = owner.present
        own = {name: getattr(now, name).clone() for name in ("keys", "calls", "at", "pace")}
        owner.present, owner.place = replace(now, state=now.state.changed(torch.clone), **own), None
    shape.owner = None
