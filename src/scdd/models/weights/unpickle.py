"""Reads PyTorch's zip checkpoints without executing what they pickle.

A pickle is a program: it names functions and calls them. Here only the few names that describe tensors mean anything,
and those are this file's own functions; every other name becomes an inert object that records what was done to it.
Tensors stay on disk until `StoredTensor.load`: of a Lightning checkpoint's optimiser state nothing is ever read.
"""

from __future__ import annotations

import io
import pickle
import zipfile
import zlib
from collections import OrderedDict, deque
from collections.abc import Iterable
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from scdd.core.errors import UserError

STORAGES = {
    "FloatStorage": torch.float32,
    "DoubleStorage": torch.float64,
    "HalfStorage": torch.float16,
    "BFloat16Storage": torch.bfloat16,
    "LongStorage": torch.int64,
    "IntStorage": torch.int32,
    "ShortStorage": torch.int16,
    "CharStorage": torch.int8,
    "ByteStorage": torch.uint8,
    "BoolStorage": torch.bool,
    "UntypedStorage": torch.uint8,
}


class Inert:
    """Stands for anything foreign: takes every construction, state, item and call, and does nothing."""

    origin = ""  # module.name of what it stands for
    args: tuple[Any, ...]
    state: Any
    entries: dict[Any, Any]
    elements: list[Any]

    def __new__(cls, *args: Any, **kwargs: Any) -> Inert:
        """Pickles may skip `__init__`, so everything is set here."""
        self = object.__new__(cls)
        self.args, self.state, self.entries, self.elements = args, None, {}, []
        return self

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Takes what `object` would refuse."""

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def __setitem__(self, key: Any, value: Any) -> None:
        self.entries[key] = value

    def append(self, value: Any) -> None:
        """An element of a foreign list."""
        self.elements.append(value)

    def extend(self, values: Iterable[Any]) -> None:
        """Elements of a foreign list."""
        self.elements.extend(values)

    add = append

    def __call__(self, *args: Any, **kwargs: Any) -> Inert:
        """A foreign function's result is as foreign as the function."""
        return self


@dataclass(frozen=True)
class Storage:
    """Where a tensor's bytes lie in the archive."""

    file: Path
    entry: str
    dtype: torch.dtype


@dataclass(frozen=True)
class StoredTensor:
    """A tensor that is still on disk."""

    storage: Storage
    dtype: torch.dtype
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]

    def load(self) -> Tensor:
        """Read it; contiguous, on the CPU."""
        try:
            with zipfile.ZipFile(self.storage.file) as archive:
                content = bytearray(_entry(archive, self.storage.entry))
            if prod(self.shape) * self.dtype.itemsize > len(content):
                raise ValueError(f"{len(content)} bytes for a tensor of {self.shape}")
            if not content:
                return torch.empty(self.shape, dtype=self.dtype)
            flat = torch.frombuffer(content, dtype=self.dtype)
            return flat.as_strided(self.shape, self.stride, self.offset).contiguous()
        except (KeyError, OSError, RuntimeError, ValueError, zipfile.BadZipFile, zlib.error) as error:
            raise UserError(
                f"{self.storage.file} is damaged at {self.storage.entry} ({error}): fetch the file again."
            ) from error


def _tensor(storage: Storage, offset: int, shape: Any, stride: Any, *rest: Any) -> StoredTensor:
    dtype = next((each for each in rest if isinstance(each, torch.dtype)), storage.dtype)
    return StoredTensor(storage, dtype, int(offset), _whole(shape), _whole(stride))


def _whole(sizes: Any) -> tuple[int, ...]:
    if not all(isinstance(size, int) and size >= 0 for size in sizes):
        raise pickle.UnpicklingError(f"a tensor of shape {sizes}")
    return tuple(sizes)


def _entry(archive: zipfile.ZipFile, name: str) -> bytes:
    """A file of the archive; torch compresses nothing, so what would grow was not written by it."""
    info = archive.getinfo(name)
    if info.compress_type != zipfile.ZIP_STORED:
        raise ValueError("it is compressed")
    return archive.read(info)


def _parameter(data: Any, *rest: Any) -> Any:
    return data


def _subclass(function: Any, kind: Any, args: Any, state: Any) -> Any:
    return function(*args) if function in (_tensor, _parameter) else Inert(function, kind, args, state)


MEANINGFUL: dict[tuple[str, str], Any] = {
    ("collections", "OrderedDict"): OrderedDict,
    ("torch", "Size"): tuple,
    ("torch._utils", "_rebuild_tensor"): _tensor,
    ("torch._utils", "_rebuild_tensor_v2"): _tensor,
    ("torch._utils", "_rebuild_tensor_v3"): _tensor,
    ("torch._utils", "_rebuild_parameter"): _parameter,
    ("torch._utils", "_rebuild_parameter_with_state"): _parameter,
    ("torch._tensor", "_rebuild_from_type_v2"): _subclass,
}


class _Reader(pickle.Unpickler):
    def __init__(self, program: bytes, file: Path, root: str) -> None:
        super().__init__(io.BytesIO(program))
        self.file = file
        self.root = root

    def find_class(self, module: str, name: str) -> Any:
        """The only place where a pickle's name gets a meaning."""
        if (module, name) in MEANINGFUL:
            return MEANINGFUL[module, name]
        if module in ("torch", "torch.storage") and name in STORAGES:
            return STORAGES[name]
        if module == "torch" and isinstance(getattr(torch, name, None), torch.dtype):
            return getattr(torch, name)
        return type("Inert", (Inert,), {"origin": f"{module}.{name}"})

    def persistent_load(self, pid: Any) -> Storage:
        """A tensor's bytes, which torch keeps outside the pickle."""
        kind, dtype, key = pid[:3]
        if kind != "storage" or not isinstance(dtype, torch.dtype):
            raise pickle.UnpicklingError(f"unknown persistent object {kind!r}")
        return Storage(self.file, f"{self.root}data/{key}", dtype)


def read_checkpoint(file: str | Path) -> Any:
    """The object tree of a `torch.save` file: tensors as `StoredTensor`, foreign objects as `Inert`."""
    file = Path(file)
    if not file.is_file():
        raise UserError(f"There is no checkpoint file {file}: check the path.")
    if not zipfile.is_zipfile(file):
        raise UserError(
            f"{file} is not a PyTorch zip checkpoint: it is damaged (fetch it again) or older than PyTorch 1.6 "
            "(save it again with a newer one)."
        )
    try:
        with zipfile.ZipFile(file) as archive:
            program = next(name for name in archive.namelist() if name.endswith("data.pkl"))
            root = program.removesuffix("data.pkl")
            if f"{root}byteorder" in archive.namelist() and archive.read(f"{root}byteorder") != b"little":
                raise UserError(f"{file} was written on a big-endian machine: save it again on a common one.")
            return _Reader(_entry(archive, program), file, root).load()
    except UserError:
        raise
    except Exception as error:  # a damaged pickle can fail in any way
        raise UserError(f"{file} cannot be read as a PyTorch checkpoint ({error}): fetch it again.") from error


def find(tree: Any, key: str) -> Any:
    """The first value stored under `key` anywhere in the tree, also inside foreign objects; None when absent.

    omegaconf keeps a scalar as an object with the value in its state's `_val`; that wrapping is taken off.
    """
    queue, seen = deque([tree]), set[int]()
    while queue:
        node = queue.popleft()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, dict):
            if key in node:
                value = node[key]
                inside = value.state if isinstance(value, Inert) else None
                return inside["_val"] if isinstance(inside, dict) and "_val" in inside else value
            queue.extend(node.values())
        elif isinstance(node, (list, tuple)):
            queue.extend(node)
        elif isinstance(node, Inert):
            queue.extend((node.state, node.entries, node.args, node.elements))
    return None
