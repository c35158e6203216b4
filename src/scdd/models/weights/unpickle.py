"""Reads PyTorch's zip checkpoints without executing what they pickle.

A pickle is a program: it names functions and calls them. Here only the few names that describe tensors mean anything,
and those are this file's own functions; every other name becomes an inert object that records what was done to it.
Tensors stay on disk until `StoredTensor.load`: of a Lightning checkpoint's optimiser state nothing is ever read.

Nor does it take more time or depth than its size explains: what is hashed is a text, a number or a foreign object, each in one
step, and what is nested deeper than anybody nests is refused.

The standard library's unpickler in Python is used, not the one in C: a pickle's numbers make no memory there, and what it
may set on an object can be chosen.
"""

from __future__ import annotations

import io
import pickle
import struct
import zipfile
import zlib
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from scdd.core.errors import UserError, reason
from scdd.models.weights.inert import MOST_ARGS, Inert, check_depth

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


# torch's pickles hold names and shapes, tens of kilobytes; every byte of a hostile one may become a hundred.
LARGEST_PICKLE = 8 << 20
LARGEST_DIRECTORY = 4 << 20  # bytes of the archive's list of files
MOST_NAMES = 4096  # foreign classes and functions
MOST_PAIRS = 1 << 16  # that a pickle copies into dictionaries
MOST_NUMBERS = 1 << 16  # keys that are numbers, whose places in a dictionary a pickle can choose to be the same
MOST_SETS = 1 << 16  # of one byte each in the pickle, and two hundred in memory
MOST_LARGE = 1000  # whole numbers of more than 64 bits

# What a damaged archive, or a tensor that does not fit its bytes, may raise.
_DAMAGE = (
    KeyError,
    OSError,
    RuntimeError,
    TypeError,
    ValueError,
    EOFError,
    struct.error,
    zipfile.BadZipFile,
    zlib.error,
)


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
        except _DAMAGE as error:
            raise UserError(
                f"{self.storage.file} is damaged at {self.storage.entry[:200]} ({reason(error)[:200]}): fetch the file again."
            ) from error


def _tensor(storage: Storage, offset: int, shape: Any, stride: Any, *rest: Any) -> StoredTensor:
    if not isinstance(storage, Storage):
        raise pickle.UnpicklingError("a tensor without storage")
    dtype = next((each for each in rest if isinstance(each, torch.dtype)), storage.dtype)
    return StoredTensor(storage, dtype, _whole((offset,))[0], _whole(shape), _whole(stride))


def _whole(sizes: Any) -> tuple[int, ...]:
    """Sizes of a tensor; torch.Size is this, too. What is wrong is not shown: it may be endless."""
    if not isinstance(sizes, (tuple, list)) or len(sizes) > MOST_ARGS:
        raise pickle.UnpicklingError("a tensor without a shape")
    if not all(isinstance(size, int) and 0 <= size < 1 << 62 for size in sizes):
        raise pickle.UnpicklingError("a tensor of an impossible shape")
    return tuple(sizes)


def _entry(archive: zipfile.ZipFile, name: str, limit: int | None = None) -> bytes:
    """A file of the archive; torch compresses nothing, so what would grow was not written by it."""
    info = archive.getinfo(name)
    if info.compress_type != zipfile.ZIP_STORED:
        raise ValueError("it is compressed")
    if limit is not None and info.file_size > limit:
        raise ValueError(f"{name[:60]} has {info.file_size} bytes, at most {limit} are read")
    return archive.read(info)


def _parameter(data: Any, *rest: Any) -> Any:
    return data


def _subclass(function: Any, kind: Any, args: Any, state: Any) -> Any:
    return function(*args) if function in (_tensor, _parameter) else Inert(function, kind, args, state)


MEANINGFUL: dict[tuple[str, str], Any] = {
    ("torch", "Size"): _whole,
    ("torch._utils", "_rebuild_tensor"): _tensor,
    ("torch._utils", "_rebuild_tensor_v2"): _tensor,
    ("torch._utils", "_rebuild_tensor_v3"): _tensor,
    ("torch._utils", "_rebuild_parameter"): _parameter,
    ("torch._utils", "_rebuild_parameter_with_state"): _parameter,
    ("torch._tensor", "_rebuild_from_type_v2"): _subclass,
}


def _in_turn(first: Callable[[Any], None], second: Callable[[Any], None]) -> Callable[[Any], None]:
    def both(reader: Any) -> None:
        first(reader)
        second(reader)

    return both


def _is_foreign_class(value: Any) -> bool:
    return isinstance(value, type) and issubclass(value, Inert)


class _Reader(pickle._Unpickler):
    dispatch: ClassVar[dict[int, Any]] = dict(pickle._Unpickler.dispatch)
    stack: list[Any]
    memo: dict[int, Any]
    read: Callable[[int], bytes]
    readline: Callable[[], bytes]

    def __init__(self, program: bytes, file: Path, root: str) -> None:
        super().__init__(io.BytesIO(program))
        self.file, self.root = file, root
        self.names: dict[tuple[str, str], type[Inert]] = {}
        self.last_memo = min(len(program), LARGEST_PICKLE)
        self.pairs, self.large, self.numbers, self.sets = MOST_PAIRS, 0, MOST_NUMBERS, MOST_SETS

    def find_class(self, module: str, name: str) -> Any:
        """The only place where a pickle's name gets a meaning."""
        if (module, name) in MEANINGFUL:
            return MEANINGFUL[module, name]
        if (module, name) == ("collections", "OrderedDict"):
            return self.ordered
        if module in ("torch", "torch.storage") and name in STORAGES:
            return STORAGES[name]
        if module == "torch" and isinstance(getattr(torch, name, None), torch.dtype):
            return getattr(torch, name)
        if (module, name) not in self.names:
            if len(self.names) == MOST_NAMES:
                raise pickle.UnpicklingError(f"more than {MOST_NAMES} foreign names")
            self.names[module, name] = type("Inert", (Inert,), {"origin": f"{module}.{name}", "__slots__": ()})
        return self.names[module, name]

    def ordered(self, pairs: Any = ()) -> OrderedDict[Any, Any]:
        """A dictionary of pairs, which very old pickles give it; copies of copies would grow."""
        self.pairs -= len(pairs)
        if self.pairs < 0:
            raise pickle.UnpicklingError("dictionaries that are copied again and again")
        made: OrderedDict[Any, Any] = OrderedDict()
        for key, value in pairs.items() if isinstance(pairs, dict) else pairs:
            made[self._key(key)] = value
        return made

    def _key(self, key: Any) -> Any:
        """What may be a key or an element: the hash of a tuple recurses in C, without end and once for each mention."""
        if isinstance(key, (int, float)):
            self._count_number()
        elif not (key is None or isinstance(key, (str, bytes, Inert, torch.dtype)) or _is_foreign_class(key)):
            raise pickle.UnpicklingError(f"a {type(key).__name__} as a key or an element of a set")
        return key

    def _count_number(self) -> None:
        self.numbers -= 1
        if self.numbers < 0:
            raise pickle.UnpicklingError(f"more than {MOST_NUMBERS} keys that are numbers")

    def _plain_key(self) -> None:
        self._key(self.stack[-2])

    def _plain_keys(self) -> None:
        for key in self.stack[::2]:
            self._key(key)

    def _plain_elements(self) -> None:
        for element in self.stack:
            self._key(element)

    def _few_sets(self) -> None:
        self.sets -= 1
        if self.sets < 0:
            raise pickle.UnpicklingError(f"more than {MOST_SETS} sets")

    def load_put(self) -> None:
        """The memo is a dictionary, too; a pickler numbers its entries in turn, so most are counted by the file's size."""
        self._remember(int(self.readline()[:-1]))

    def load_long_binput(self) -> None:
        """As `load_put`."""
        self._remember(struct.unpack("<I", self.read(4))[0])

    def _remember(self, number: int) -> None:
        if not 0 <= number < 1 << 32:
            raise pickle.UnpicklingError("an impossible number in its memo")
        if number > self.last_memo:
            self._count_number()
        self.memo[number] = self.stack[-1]

    def persistent_load(self, pid: Any) -> Storage:
        """A tensor's bytes, which torch keeps outside the pickle."""
        kind, dtype, key = pid[:3]
        if kind != "storage" or not isinstance(dtype, torch.dtype) or not isinstance(key, (str, int)):
            raise pickle.UnpicklingError("an unknown persistent object")
        return Storage(self.file, f"{self.root}data/{key}", dtype)

    def load_build(self) -> None:
        """State is kept for foreign objects, and only for them: nothing of ours can be changed.

        That of a dictionary, such as the `_metadata` of a state_dict, is left out.
        """
        state, target = self.stack.pop(), self.stack[-1]
        if isinstance(target, Inert):
            target.state = state
        elif not isinstance(target, OrderedDict):
            raise pickle.UnpicklingError("it sets the state of an object that has none")

    def _few_arguments(self) -> None:
        """Calls copy their arguments: thousands of calls with a million of them would not end."""
        args = self.stack[-1]
        if not isinstance(args, tuple) or len(args) > MOST_ARGS:
            raise pickle.UnpicklingError(f"a call with more than {MOST_ARGS} arguments")

    def _few_large_numbers(self) -> None:
        """Multiples of 2**61 − 1 have one hash: a dictionary with many of them as its keys would take for ever."""
        if isinstance(self.stack[-1], int) and self.stack[-1].bit_length() > 64:
            self.large += 1
            if self.large > MOST_LARGE:
                raise pickle.UnpicklingError(f"more than {MOST_LARGE} numbers of many digits")

    dispatch[pickle.BUILD[0]] = load_build
    dispatch[pickle.PUT[0]] = load_put
    dispatch[pickle.LONG_BINPUT[0]] = load_long_binput
    dispatch[pickle.SETITEM[0]] = _in_turn(_plain_key, dispatch[pickle.SETITEM[0]])
    for code in (pickle.SETITEMS, pickle.DICT):
        dispatch[code[0]] = _in_turn(_plain_keys, dispatch[code[0]])
    for code in (pickle.ADDITEMS, pickle.FROZENSET):
        dispatch[code[0]] = _in_turn(_plain_elements, dispatch[code[0]])
    for code in (pickle.EMPTY_SET, pickle.FROZENSET):
        dispatch[code[0]] = _in_turn(_few_sets, dispatch[code[0]])
    for code in (pickle.REDUCE, pickle.NEWOBJ):
        dispatch[code[0]] = _in_turn(_few_arguments, dispatch[code[0]])
    for code in (pickle.INT, pickle.LONG, pickle.LONG1, pickle.LONG4):
        dispatch[code[0]] = _in_turn(dispatch[code[0]], _few_large_numbers)
    del dispatch[pickle.NEWOBJ_EX[0]]  # keyword arguments, which torch never writes


def read_checkpoint(file: str | Path) -> Any:
    """The object tree of a `torch.save` file: tensors as `StoredTensor`, foreign objects as `Inert`."""
    file = Path(file)
    if not file.is_file():
        raise UserError(f"There is no checkpoint file {file}: check the path.")
    try:
        _check_directory(file)
        with zipfile.ZipFile(file) as archive:
            program = next((name for name in archive.namelist() if name.endswith("data.pkl")), "data.pkl")
            root = program.removesuffix("data.pkl")
            if f"{root}byteorder" in archive.namelist() and _entry(archive, f"{root}byteorder", 16) != b"little":
                raise UserError(f"{file} was written on a big-endian machine: save it again on a common one.")
            tree = _Reader(_entry(archive, program, LARGEST_PICKLE), file, root).load()
        check_depth(tree)
        return tree
    except UserError:
        raise
    except Exception as error:  # a damaged pickle can fail in any way
        why = reason(error)[:200]
        raise UserError(f"{file} cannot be read as a PyTorch checkpoint ({why}): fetch it again.") from error


def _check_directory(file: Path) -> None:
    """Before the archive's files are listed, which makes an object for each of them."""
    with open(file, "rb") as handle:
        end = zipfile._EndRecData(handle)  # type: ignore[attr-defined]
    if end is None:
        raise UserError(
            f"{file} is not a PyTorch zip checkpoint: it is damaged (fetch it again) or older than PyTorch 1.6 "
            "(save it again with a newer one)."
        )
    if end[zipfile._ECD_SIZE] > LARGEST_DIRECTORY:  # type: ignore[attr-defined]
        raise ValueError("its list of files is too long")
