"""The tensors of a checkpoint as files: each rank writes what it holds, and any number of ranks reads it.

Files are safetensors. One of several ranks notes in its header where its pieces lie in the whole tensors, under the key
that torch.distributed.checkpoint uses: that module reads our files, and we read those it wrote for earlier versions.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import safe_open
from torch import Tensor

from scdd.bundle import stream

PLACES, OFFSETS = "DCP_SHARDING_INFO", "saved_offsets"
AT_ONCE = 1 << 20  # numbers of a file that are read at a time
Box = tuple[tuple[int, ...], tuple[int, ...]]  # where a piece begins in the whole tensor, and its shape


@dataclass(frozen=True)
class Piece:
    """What this rank holds of a tensor: all of it, or a box of it."""

    tensor: Tensor
    offset: tuple[int, ...]

    @property
    def box(self) -> Box:
        """Where it lies."""
        return self.offset, tuple(self.tensor.shape)


def is_sharded(tensor: Any) -> bool:
    """Whether ranks hold different parts of it."""
    return hasattr(tensor, "full_tensor")


def piece(tensor: Any) -> Piece:
    """This rank's part, on the same memory. Single numbers are vectors of one: offsets need an axis."""
    if not is_sharded(tensor):
        flat = tensor.detach().view(1) if tensor.dim() == 0 else tensor.detach()
        return Piece(flat, (0,) * flat.dim())
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    _, offset = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)
    return Piece(tensor.to_local().detach(), tuple(offset))


def own_pieces(tensors: Mapping[str, Any], is_main: bool) -> dict[str, Piece]:
    """What this rank writes, so that each part of each tensor is written once.

    A tensor that every rank has is rank 0's to write. Copies of shards (HSDP) share the work: the next tensor is for the
    copy that has least so far, which all ranks reckon alike.
    """
    mine: dict[str, Piece] = {}
    given: dict[int, list[int]] = {}  # bytes by copy, where there are so many copies
    for name, tensor in tensors.items():
        own = piece(tensor)
        copy, copies = _copy(tensor) if is_sharded(tensor) else (int(not is_main), 1)
        shares = given.setdefault(copies, [0] * copies)
        turn = shares.index(min(shares))
        shares[turn] += tensor.numel() * tensor.element_size()
        if (copy == turn and own.tensor.numel()) or (is_main and not tensor.numel()):
            mine[name] = own
    return mine


def _copy(tensor: Any) -> tuple[int, int]:
    """Which of the copies of a sharded tensor is on this rank, and how many there are."""
    mesh, number, count = tensor.device_mesh, 0, 1
    for axis, (placement, place) in enumerate(zip(tensor.placements, mesh.get_coordinate(), strict=True)):
        if placement.is_replicate():
            number, count = number * mesh.size(axis) + place, count * mesh.size(axis)
    return number, count


class Snapshots:
    """Copies in the host's memory, from which a checkpoint is written while the run goes on."""

    def __init__(self) -> None:
        self._pinned: dict[str, Tensor] = {}  # kept: to lock pages takes longer than to fill them

    def take(self, pieces: Mapping[str, Piece]) -> dict[str, Piece]:
        """Copy the pieces; returns when all are there. The next call may write over those that came from a GPU."""
        taken: dict[str, Piece] = {}
        for name, each in pieces.items():
            if each.tensor.is_cuda:
                if name not in self._pinned:
                    self._pinned[name] = torch.empty(each.tensor.shape, dtype=each.tensor.dtype, pin_memory=True)
                copy = self._pinned[name].copy_(each.tensor, non_blocking=True)
            else:
                copy = each.tensor.clone(memory_format=torch.contiguous_format)
            taken[name] = replace(each, tensor=copy)
        if any(each.tensor.is_cuda for each in pieces.values()):
            torch.cuda.synchronize()
        return taken


def write_pieces(file: Path, pieces: Mapping[str, Piece], placed: bool) -> str:
    """Write this rank's file, with the places of its pieces if they are `placed`; returns its SHA-256."""
    shapes = {name: (each.tensor.dtype, tuple(each.tensor.shape)) for name, each in pieces.items()}
    places = {name: {OFFSETS: list(each.offset)} for name, each in pieces.items()}
    metadata = {"format": "pt", PLACES: json.dumps(places)} if placed else None
    return stream.write(file, shapes, lambda name: pieces[name].tensor, metadata)


# -- reading --------------------------------------------------------------------------------------------------------


class _Part(NamedTuple):
    """One file's part of a tensor."""

    file: Any  # an open safetensors file
    offset: tuple[int, ...]
    shape: tuple[int, ...]


class Stored:
    """The tensors that the files of a folder hold together, whatever the number of ranks that wrote them."""

    def __init__(self, parts: Mapping[str, list[_Part]]) -> None:
        self._parts = parts

    @property
    def names(self) -> set[str]:
        """Of all tensors."""
        return set(self._parts)

    def shape(self, name: str) -> tuple[int, ...]:
        """Of the whole tensor."""
        ends = [[o + n for o, n in zip(part.offset, part.shape, strict=True)] for part in self._parts[name]]
        return tuple(max(axis) for axis in zip(*ends, strict=True))

    def read(self, name: str, box: Box | None = None) -> Tensor:
        """The tensor, or a box of it; ValueError where the files do not hold all of that."""
        begin, shape = box or ((0,) * len(self.shape(name)), self.shape(name))
        found: Tensor | None = self._parts[name][0].file.get_tensor(name) if 0 in self.shape(name) else None
        held = 0
        for part in self._parts[name]:
            for low, high in _shared(part, begin, shape):
                values = part.file.get_slice(name)[_within(low, high, part.offset)]
                found = torch.empty(shape, dtype=values.dtype) if found is None else found
                found[_within(low, high, begin)] = values
                held += values.numel()
        if found is None or held != torch.Size(shape).numel():
            raise ValueError(f"{name} is not all there")
        return found


def _shared(part: _Part, begin: Sequence[int], shape: Sequence[int]) -> Iterator[tuple[list[int], list[int]]]:
    """What a part and a box have in common, (first, end) on each axis: a few rows at a time, for the sake of memory."""
    low = [max(a, b) for a, b in zip(begin, part.offset, strict=True)]
    high = [min(a + n, b + m) for a, n, b, m in zip(begin, shape, part.offset, part.shape, strict=True)]
    if any(a >= b for a, b in zip(low, high, strict=True)):
        return
    rows = max(1, AT_ONCE // torch.Size(part.shape[1:]).numel())
    for first in range(low[0], high[0], rows):
        yield [first, *low[1:]], [min(first + rows, high[0]), *high[1:]]


def _within(low: Sequence[int], high: Sequence[int], origin: Sequence[int]) -> tuple[slice, ...]:
    return tuple(slice(a - o, b - o) for a, b, o in zip(low, high, origin, strict=True))


@contextmanager
def stored(folder: Path) -> Iterator[Stored]:
    """The safetensors files of a folder, opened; ValueError where one is not as it was written."""
    parts: dict[str, list[_Part]] = {}
    with ExitStack() as opened:
        for path in sorted(folder.glob("*.safetensors")):
            file: Any = opened.enter_context(safe_open(str(path), framework="pt"))
            places = json.loads((file.metadata() or {}).get(PLACES, "null"))
            for name in file.keys():  # noqa: SIM118 (no mapping)
                shape = tuple(file.get_slice(name).get_shape())
                parts.setdefault(name, []).append(_Part(file, _offset(places, name, shape), shape))
        if any(len({len(part.shape) for part in each}) > 1 for each in parts.values()):
            raise ValueError("its files hold tensors of the same name with different axes")
        yield Stored(parts)


def _offset(places: Any, name: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Where a file says that its part of a tensor begins; at the start of each axis in a file of whole tensors."""
    if places is None:
        return (0,) * len(shape)
    place = places.get(name) if isinstance(places, dict) else None
    offset = place.get(OFFSETS) if isinstance(place, dict) else None
    if not isinstance(offset, list) or len(offset) != len(shape) or any(type(o) is not int or o < 0 for o in offset):
        raise ValueError(f"{name} lies nowhere")
    return tuple(offset)
