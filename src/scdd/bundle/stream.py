"""Safetensors written one tensor at a time: no more than that one is ever held, however large the file.

The bytes are those that `safetensors.torch.save_file` writes for the same tensors, which a test holds it to.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

# In the order in which a file has them: the widest first, so that all are aligned.
KINDS = {
    torch.int64: "I64",
    torch.float64: "F64",
    torch.complex64: "C64",
    torch.float32: "F32",
    torch.int32: "I32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.int16: "I16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
_PLACES = {dtype: place for place, dtype in enumerate(KINDS)}
Shape = tuple[torch.dtype, Sequence[int]]


def write(
    file: Path, shapes: Mapping[str, Shape], read: Callable[[str], Tensor], metadata: Mapping[str, str] | None = None
) -> str:
    """Write a new file of the tensors that `shapes` lists and `read` gives, in the file's own order; it has reached the disk
    when this returns. Returns its SHA-256."""
    names = sorted(shapes, key=lambda name: (_PLACES[shapes[name][0]], name))
    digest = hashlib.sha256()
    with open(file, "xb") as handle:
        head = _header(names, shapes, metadata or {})
        digest.update(head)
        handle.write(head)
        for name in names:
            dtype, shape = shapes[name]
            tensor = read(name).detach()
            if tensor.dtype != dtype or tensor.numel() != torch.Size(shape).numel():
                raise ValueError(f"{name} is {tensor.dtype} {tuple(tensor.shape)}, not {dtype} {tuple(shape)}")
            plain: Any = tensor.cpu().contiguous().view(-1).view(torch.uint8).numpy()
            digest.update(plain)
            handle.write(plain)
            del tensor, plain  # before the next one is made
        handle.flush()
        os.fsync(handle.fileno())
    return digest.hexdigest()


def _header(names: Sequence[str], shapes: Mapping[str, Shape], metadata: Mapping[str, str]) -> bytes:
    """Which tensor lies where, with its length before it, filled up with spaces to a multiple of eight."""
    listed: dict[str, object] = {"__metadata__": dict(metadata)} if metadata else {}
    end = 0
    for name in names:
        dtype, shape = shapes[name]
        start, end = end, end + torch.Size(shape).numel() * dtype.itemsize
        listed[name] = {"dtype": KINDS[dtype], "shape": list(shape), "data_offsets": [start, end]}
    text = json.dumps(listed, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text
