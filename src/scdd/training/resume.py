"""Checkpoints to go on from: a bundle anyone can load, and beside it in `resume/` what only training needs.

    RUN/recipe.yaml, tokenizer.json, metrics.jsonl, …
    RUN/checkpoints/step-00005000/{recipe.yaml, meta.json, model.safetensors, tokenizer.json}
                                 /resume/{facts.json, *.safetensors, digests.json}

Written under another name, synced, renamed last, so a run killed at any moment finds its last complete checkpoint.
Tensors are safetensors, the rest is JSON: nothing is ever unpickled. The run waits only for a copy in the host's memory;
a thread writes it. Of sharded tensors each rank writes its own part, and rank 0 then makes the bundle's weights from the
ranks' files, a tensor at a time: nobody ever holds the whole.
"""

from __future__ import annotations

import contextlib
import errno
import json
import shutil
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor

from scdd.bundle import folder as bundle
from scdd.bundle import stream
from scdd.core import UserError
from scdd.core.errors import reason
from scdd.training.options import LoraOptions
from scdd.training.parallel import World
from scdd.training.shards import Piece, Snapshots, is_sharded, own_pieces, piece, stored, write_pieces
from scdd.training.verify import FACTS, RESUME, STATE, read_facts, write_digests

Read = Callable[[str], Tensor]


@dataclass(frozen=True)
class Published:
    """A tensor of the bundle: what it looks like, and how it is made from the run's tensors."""

    shape: stream.Shape
    make: Callable[[Read], Tensor]


def published(
    tensors: Mapping[str, Tensor], sources: Mapping[str, str], lora: LoraOptions | None = None
) -> dict[str, Published]:
    """How to make a network's weights, by their names; `sources` says under which name the run keeps each of `tensors`."""
    shapes = {name: (t.dtype, tuple(t.shape)) for name, t in tensors.items()}
    if lora is None:
        return {name: Published(shapes[name], partial(_taken, source)) for name, source in sources.items()}
    from scdd.training.lora import merged, plain_names

    def merge(name: str, read: Read) -> Tensor:
        return merged(name, lambda each: read(sources[each]), lora)

    return {plain: Published(shapes[name], partial(merge, name)) for plain, name in plain_names(sources).items()}


def _taken(source: str, read: Read) -> Tensor:
    return read(source)


@dataclass(frozen=True)
class _Work:
    """All that a checkpoint is written from; the pieces are this rank's."""

    step: int
    pieces: Mapping[str, Piece]
    sharded: bool
    published: Mapping[str, Published]
    facts: Mapping[str, Any]
    size: int  # in bytes, of all ranks


class Checkpoints:
    """The checkpoints of one run folder."""

    def __init__(
        self, run: Path, identity: bundle.Identity, world: World, keep: int = 2, background: bool = True
    ) -> None:
        """`background` writes in a thread; otherwise `save` returns when all is on the disk."""
        self.run, self.folder = run, run / bundle.CHECKPOINTS
        self.identity, self.world, self.keep = identity, world, keep
        self.peers = replace(world, patient=world.writing)  # what the threads of all ranks agree through
        self.background, self._snapshots = background, Snapshots()
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self.failed = False  # whether `wait` will raise
        self.written: list[Path] = []  # complete ones that nobody has told of yet

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

    # -- writing ------------------------------------------------------------------------------------------------

    def save(
        self, step: int, tensors: Mapping[str, Tensor], published: Mapping[str, Published], facts: Mapping[str, Any]
    ) -> None:
        """Write the checkpoint of `step` with all ranks, and drop the oldest beyond `keep`.

        In the background this returns when the tensors, which may be sharded, have been copied; the one before is
        complete by then. What goes wrong on any rank is told on every rank, here or by `wait`, so that none waits for it.
        """
        self.wait()
        pieces, sharded = own_pieces(tensors, self.world.is_main), any(map(is_sharded, tensors.values()))
        size = size_of(tensors) + sum(_bytes(each.shape) for each in published.values())
        work = _Work(step, pieces, sharded, published, facts, size)
        if not self.background:
            self._write(work)
            return
        work = replace(work, pieces=self._snapshots.take(pieces))
        self._thread = threading.Thread(target=self._try, args=(work,), name="scdd-checkpoint", daemon=True)
        del work  # the thread lets go of its copies when it ends
        self._thread.start()

    def wait(self) -> None:
        """Until the checkpoint that is being written is complete; raises what went wrong with it."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._error is not None:
            error, self._error, self.failed = self._error, None, False
            raise error

    def _try(self, work: _Work) -> None:
        try:
            self._write(work)
        except BaseException as error:
            self._error, self.failed = error, True

    def _write(self, work: _Work) -> None:
        target, mistake, told = self.folder / f"step-{work.step:08d}", None, False
        if self.world.is_main:
            try:
                self.require_room(work.size)
                with bundle.staged(target) as temporary:
                    resume = temporary / RESUME
                    resume.mkdir()
                    (resume / FACTS).write_text(json.dumps(dict(work.facts), indent=1) + "\n", encoding="utf-8")
                    told = bool(self.peers.broadcast(str(resume)))  # where the others are to write
                    digests = {f"{RESUME}/{name}": digest for name, digest in self._write_parts(resume, work).items()}
                    digests[bundle.WEIGHTS] = self._publish(temporary, work)
                    write_digests(temporary, digests)
            except (UserError, OSError, ValueError, SafetensorError) as error:
                mistake = self._unwritten(target, error)
                if not told:
                    self.peers.broadcast("")
            else:
                self.written.append(target)
                for old in bundle.checkpoints(self.run)[: -self.keep]:
                    shutil.rmtree(old, ignore_errors=True)
        elif place := self.peers.broadcast(""):
            with contextlib.suppress(OSError):  # rank 0 hears of it, too
                self._write_parts(Path(place), work)
        heard = self.peers.broadcast("" if mistake is None else str(mistake))
        if mistake is not None or heard:
            raise mistake or UserError(heard)

    def _write_parts(self, folder: Path, work: _Work) -> dict[str, str]:
        """Every rank its tensors; the digests of all ranks' files by name. The first rank's mistake is raised on all."""
        name = f"shard-{self.world.rank + 1:05d}-model-00001-of-00001.safetensors" if work.sharded else STATE
        answer: dict[str, str] = {}
        if work.pieces:
            try:
                answer = {name: write_pieces(folder / name, work.pieces, placed=work.sharded)}
            except (OSError, ValueError) as error:
                answer = {"": str(getattr(error, "strerror", None) or reason(error))}
        everyone = {
            key: value for told in self.peers.gather(json.dumps(answer)) for key, value in json.loads(told).items()
        }
        if "" in everyone:
            raise OSError(errno.EIO, everyone[""])
        return everyone

    def _publish(self, temporary: Path, work: _Work) -> str:
        """Write the bundle beside `resume/`, a tensor at a time; returns the SHA-256 of its weights."""
        shapes = {name: each.shape for name, each in work.published.items()}
        with stored(temporary / RESUME) if work.sharded else contextlib.nullcontext() as files:
            read: Read = (lambda name: work.pieces[name].tensor) if files is None else files.read
            file = temporary / bundle.WEIGHTS
            digest = stream.write(file, shapes, lambda name: work.published[name].make(read), bundle.FORMAT)
        identity = replace(self.identity, step=work.step, tokens=int(work.facts.get("tokens", 0)))
        bundle.describe(temporary, identity, digest)
        return digest

    def _unwritten(self, target: Path, error: Exception) -> UserError:
        """A checkpoint that could not be written, as a sentence; nothing of it is left."""
        if isinstance(error, UserError):
            return error
        return UserError(
            f"{target} could not be written ({getattr(error, 'strerror', None) or reason(error)}): make room, or free some of "
            f"the quota; the same command then goes on from {self.latest() or 'the start'}."
        )

    # -- reading ------------------------------------------------------------------------------------------------

    def load(self, checkpoint: Path, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
        """Fill `tensors` in place, sharded or not, whatever the ranks that wrote them; returns the facts."""
        self._check_identity(checkpoint)
        folder = checkpoint / RESUME
        try:
            facts = read_facts(checkpoint)
            with stored(folder) as found:
                _require_same_names(folder, set(tensors), found.names)
                for name, tensor in tensors.items():
                    _fill(folder, name, tensor, found)
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


def size_of(tensors: Mapping[str, Tensor]) -> int:
    """Bytes of the whole tensors, shards of other ranks included."""
    return sum(_bytes((t.dtype, t.shape)) for t in tensors.values())


def _bytes(shape: stream.Shape) -> int:
    return torch.Size(shape[1]).numel() * shape[0].itemsize


def _require_same_names(folder: Path, own: set[str], theirs: set[str]) -> None:
    """Refuse tensors of another network, or less than this run needs; more than it needs do not matter."""
    unlike = {name for name in own ^ theirs if name.startswith("model.")} or own - theirs
    if unlike:
        raise UserError(
            f"{folder} is of another network ({min(unlike)} is in one of the two alone): resume with the network of the run."
        )


@torch.no_grad()
def _fill(folder: Path, name: str, tensor: Tensor, found: Any) -> None:
    """This rank's part of a tensor, from the files."""
    whole = tuple(tensor.shape) or (1,)
    if found.shape(name) != whole:
        raise UserError(
            f"{folder}: {name} has shape {found.shape(name)}, the network {whole}: resume with the recipe of the run."
        )
    own = piece(tensor)
    if own.tensor.numel():
        own.tensor.copy_(found.read(name, own.box))
