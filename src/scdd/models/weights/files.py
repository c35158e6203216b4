"""Weights that stay in their files until they are asked for, one tensor at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import safetensors
from torch import Tensor

from scdd.core.errors import UserError
from scdd.core.files import check_header, read_json
from scdd.models.weights.unpickle import StoredTensor, read_checkpoint

SAFE, PICKLED = "model.safetensors", "pytorch_model.bin"
INDEX = ".index.json"  # names the shards of a model in several files
Loader = Callable[[], Tensor]
_DAMAGE = (OSError, ValueError, KeyError, TypeError, RuntimeError, safetensors.SafetensorError)


class Lazy(Mapping[str, Tensor]):
    """Tensors by name; each is read when it is looked up, and only the last one is kept."""

    def __init__(self, loaders: Mapping[str, Loader]) -> None:
        self._loaders = dict(loaders)
        self._last: tuple[str, Tensor] | None = None

    def __getitem__(self, name: str) -> Tensor:
        if self._last is None or self._last[0] != name:
            self._last = None  # before the next one is there
            self._last = name, self._loaders[name]()
        return self._last[1]

    def __iter__(self) -> Iterator[str]:
        return iter(self._loaders)

    def __len__(self) -> int:
        return len(self._loaders)

    def __contains__(self, name: object) -> bool:
        return name in self._loaders


def weights_of(folder: Path) -> Lazy | None:
    """The weights of a Hugging Face folder, whole or in shards, safetensors first; None where it has none."""
    for name in (SAFE, PICKLED):
        if (folder / f"{name}{INDEX}").is_file():
            return Lazy(_sharded(folder, f"{name}{INDEX}"))
        if (folder / name).is_file():
            return Lazy(loaders_of(folder / name))
    return None


def loaders_of(file: Path) -> dict[str, Loader]:
    """What one file holds, by name."""
    return _safe(file) if file.suffix == ".safetensors" else _pickled(file)


def _safe(file: Path) -> dict[str, Loader]:
    try:
        check_header(file)
        handle: Any = safetensors.safe_open(file, framework="pt")
        names = list(handle.keys())
    except _DAMAGE as error:
        raise UserError(f"{file} is missing or damaged ({error}): fetch it again.") from error

    def reader(name: str) -> Loader:
        def load() -> Tensor:
            try:
                tensor: Tensor = handle.get_tensor(name)
            except _DAMAGE as error:
                raise UserError(f"{file} is damaged at {name} ({error}): fetch it again.") from error
            return tensor

        return load

    return {name: reader(name) for name in names}


def _pickled(file: Path) -> dict[str, Loader]:
    tree = read_checkpoint(file)
    found = {k: v for k, v in tree.items() if isinstance(v, StoredTensor)} if isinstance(tree, dict) else {}
    if not found:
        raise UserError(f"{file} holds no weights: name a file that has a state_dict.")
    return {str(name): stored.load for name, stored in found.items()}


def _sharded(folder: Path, index: str) -> dict[str, Loader]:
    """The shards that the index names, which must lie beside it."""
    where = read_json(folder / index).get("weight_map")
    if not isinstance(where, dict) or not where:
        raise UserError(f"{folder / index} is damaged (it has no weight_map): fetch it again.")
    loaders: dict[str, Loader] = {}
    for shard in sorted({str(name) for name in where.values()}):
        if Path(shard).name != shard or not (folder / shard).is_file():
            raise UserError(f"{folder / index} names the file {shard}, which does not lie beside it: fetch it again.")
        loaders |= loaders_of(folder / shard)
    missing = next((name for name in where if name not in loaders), None)
    if missing is not None:
        raise UserError(f"{folder / str(where[missing])} has no {missing}, which {index} promises: fetch it again.")
    return loaders
