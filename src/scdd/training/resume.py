"""Checkpoints to go on from: a bundle anyone can load, and beside it in `resume/` what only training needs.

    RUN/recipe.yaml, tokenizer.json, metrics.jsonl, …
    RUN/checkpoints/step-00005000/{recipe.yaml, meta.json, model.safetensors, tokenizer.json}
                                 /resume/{facts.json, *.safetensors, digests.json}

Written under another name, synced, renamed last, so a run killed at any moment finds its last complete checkpoint.
Tensors are safetensors, the rest is JSON: nothing is ever unpickled. Sharded tensors are written by
torch.distributed.checkpoint through its safetensors storage, each rank its own part, and read on any number of ranks.
"""

from __future__ import annotations

import contextlib
import errno
import json
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from scdd.bundle import folder as bundle
from scdd.core import UserError
from scdd.core.errors import reason
from scdd.training.parallel import World
from scdd.training.verify import FACTS, RESUME, STATE, read_facts, write_digests


class Checkpoints:
    """The checkpoints of one run folder."""

    def __init__(self, run: Path, identity: bundle.Identity, world: World, keep: int = 2) -> None:
        self.run, self.folder = run, run / bundle.CHECKPOINTS
        self.identity, self.world, self.keep = identity, world, keep

    def latest(self) -> Path | None:
        """The newest complete checkpoint."""
        return bundle.newest_checkpoint(self.run)

    def clean(self) -> None:
        """Remove what an interrupted write left behind."""
        for left in self.folder.glob(".step-*.writing") if self.world.is_main else ():
            shutil.rmtree(left, ignore_errors=True)

    def require_room(self, size: int) -> None:
        """Refuse to go on without disk for one more checkpoint of `size` bytes."""
        self.folder.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(self.folder).free
        if free < 1.05 * size + (1 << 20):
            raise UserError(
                f"{self.folder} has {free / 2**30:.2f} GiB free and a checkpoint takes {size / 2**30:.2f} GiB: "
                "make room, lower keep_last, or choose another folder.",
                "keep_last",
            )

    def save(
        self, step: int, weights: Mapping[str, Tensor], tensors: Mapping[str, Tensor], facts: Mapping[str, Any]
    ) -> Path:
        """Write the checkpoint of `step` with all ranks and drop the oldest beyond `keep`.

        `weights` are the whole (gathered) ones to publish; `tensors` may be sharded. What goes wrong on rank 0 is told
        on every rank, so that none waits for it.
        """
        target, mistake = self.folder / f"step-{step:08d}", None
        place = ""  # of resume/, which the others hear of when rank 0 has made it
        if self.world.is_main:

            def complete(temporary: Path) -> None:
                nonlocal place
                _write_facts(temporary / RESUME, facts)
                place = self.world.broadcast(str(temporary / RESUME))
                self._write(Path(place), tensors)
                write_digests(temporary)

            try:
                self.require_room(size_of(weights) + size_of(tensors))
                identity = replace(self.identity, step=step, tokens=int(facts.get("tokens", 0)))
                bundle.write(target, identity, weights, more=complete)
            except (UserError, OSError) as error:
                mistake = self._unwritten(target, error)
                if not place:
                    self.world.broadcast("")  # the others wait to hear where to write
            else:
                for old in bundle.checkpoints(self.run)[: -self.keep]:
                    shutil.rmtree(old, ignore_errors=True)
        elif place := self.world.broadcast(""):
            with contextlib.suppress(OSError):  # rank 0 hears of it, too
                self._write(Path(place), tensors)
        told = self.world.broadcast("" if mistake is None else str(mistake))
        if mistake is not None or told:
            raise mistake or UserError(told)
        return target

    def _unwritten(self, target: Path, error: UserError | OSError) -> UserError:
        """A checkpoint that could not be written, as a sentence; nothing of it is left."""
        if isinstance(error, UserError):
            return error
        return UserError(
            f"{target} could not be written ({error.strerror or reason(error)}): make room, or free some of the quota; the same "
            f"command then goes on from {self.latest() or 'the start'}."
        )

    def load(self, checkpoint: Path, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
        """Fill `tensors` in place, sharded or not, whatever the ranks that wrote them; returns the facts."""
        self._check_identity(checkpoint)
        folder = checkpoint / RESUME
        flat = _flat(tensors)
        try:
            facts = read_facts(checkpoint)
            if _sharded(tensors) or not (folder / STATE).is_file():
                _read_shards(folder, flat, alone=self.world.size == 1)
            else:
                _read_plain(folder / STATE, flat)
        except (OSError, ValueError, KeyError, SafetensorError) as error:
            raise UserError(f"{folder} is damaged ({error}): delete {checkpoint} to use the one before.") from error
        return facts

    def _check_identity(self, checkpoint: Path) -> None:
        """A checkpoint of other tokens, or of a process of its own, is refused before its tensors are looked at."""
        meta = bundle.meta(checkpoint)
        if meta["vocab"]["hash"] != self.identity.vocab_hash:
            raise UserError(
                f"{checkpoint} was trained with another vocabulary ({meta['vocab']['size']} ids, here "
                f"{self.identity.vocab.size}): use its tokenizer and data, or another folder."
            )
        if meta.get("extra", {}) != self.identity.extra:
            raise UserError(
                f"{checkpoint} was trained with {str(meta['extra'] or 'what its recipe says')[:300]}, and this run with "
                f"{str(self.identity.extra or 'what the recipe says')[:300]}: hand over the same objective, or use another folder."
            )

    def _write(self, folder: Path, tensors: Mapping[str, Tensor]) -> None:
        """The tensors of `resume/`, every rank its share."""
        if _sharded(tensors):
            _write_shards(folder, _flat(tensors))
        elif self.world.is_main:
            save_file({name: t.detach().cpu().contiguous() for name, t in _flat(tensors).items()}, folder / STATE)


def size_of(tensors: Mapping[str, Tensor]) -> int:
    """Bytes of the whole tensors, shards of other ranks included."""
    return sum(t.numel() * t.element_size() for t in tensors.values())


def _sharded(tensors: Mapping[str, Tensor]) -> bool:
    return any(hasattr(t, "full_tensor") for t in tensors.values())


def _flat(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Single numbers as vectors of one, on the same memory: shards are described by offsets, which need an axis."""
    return {name: t.detach().view(1) if t.dim() == 0 else t.detach() for name, t in tensors.items()}


def _write_facts(folder: Path, facts: Mapping[str, Any]) -> None:
    folder.mkdir()
    (folder / FACTS).write_text(json.dumps(dict(facts), indent=1) + "\n", encoding="utf-8")


def _write_shards(folder: Path, tensors: dict[str, Tensor]) -> None:
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
    from torch.distributed.checkpoint.state_dict_saver import save

    try:
        save(tensors, storage_writer=HuggingFaceStorageWriter(str(folder), save_distributed=True))
    except CheckpointException as error:  # raised on every rank, whichever failed
        raise _first(error) from error


def _read_shards(folder: Path, tensors: dict[str, Tensor], alone: bool) -> None:
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
    from torch.distributed.checkpoint.state_dict_loader import load

    try:
        load(tensors, storage_reader=HuggingFaceStorageReader(str(folder)), no_dist=alone)
    except CheckpointException as error:
        raise _first(error) from error


def _first(error: Any) -> OSError:
    """The first rank's failure, as one that the caller expects: what is raised there is no `Exception`."""
    failure: BaseException = next(iter(error.failures.values()))[0]
    if isinstance(failure, OSError):
        return failure
    return OSError(errno.EIO, reason(failure))


def _read_plain(file: Path, tensors: dict[str, Tensor]) -> None:
    with safe_open(str(file), framework="pt") as stored, torch.no_grad():
        own, theirs = ({n for n in names if n.startswith("model.")} for names in (tensors, stored.keys()))
        if own != theirs:
            raise UserError(
                f"{file} is of another network ({min(own ^ theirs)} is in one of the two alone): resume with the network "
                "of the run."
            )
        for name, tensor in tensors.items():
            value = stored.get_tensor(name)
            if value.shape != tensor.shape:
                raise UserError(
                    f"{file}: {name} has shape {tuple(value.shape)}, the network {tuple(tensor.shape)}: "
                    "resume with the recipe of the run."
                )
            tensor.copy_(value)
