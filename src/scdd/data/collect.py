"""Encoded documents become shards; a journal notes each finished one, so that a rerun goes on from there."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from scdd.core.errors import UserError
from scdd.data.address import Place
from scdd.data.corpus import Source
from scdd.data.encode import Encoded, Piece, peak_memory
from scdd.data.files import clear_leftovers, read_json, write_json
from scdd.data.shards import SplitInfo, verify_shards, write_shard

PROGRESS = "progress.json"
SPLITS = ("train", "valid")


@dataclass(frozen=True)
class PrepareProgress:
    """How far a preparation is. Yielded after every batch; the last one has stage "done"."""

    stage: str  # "tokenizer", "tokens", "done"
    position: int = 0  # bytes of the sources on disk read so far
    total: int = 0  # of this many; 0 when unknown
    documents: int = 0
    tokens: int = 0
    text_bytes: int = 0  # of text, resumed work included
    shards: int = 0
    resumed_bytes: int = 0  # of text that an earlier run had done
    parent_peak: int = 0  # bytes of memory
    worker_peak: int = 0


def require_same(out: Place, now: dict[str, Any], then: dict[str, Any]) -> None:
    """Refuse to mix two preparations in one folder, naming what differs."""
    changed = [key for key in now if now[key] != then.get(key)]
    if changed:
        raise UserError(
            f"{out} holds data prepared otherwise (other {', '.join(changed)}): choose another folder, or prepare it anew (force).",
            "force",
        )


@dataclass
class Journal:
    """What is finished, on disk as progress.json: the shards so far and the place of the next document."""

    path: Place
    about: dict[str, Any]
    place: tuple[int, int]
    splits: dict[str, SplitInfo]

    @classmethod
    def open(cls, out: Place, about: dict[str, Any], sources: list[Source]) -> Journal:
        """The journal that an earlier run left in `out`, or a new one."""
        # A source edited between two runs would splice two corpora, so times count here (not in the manifest).
        about = {**about, "times": [s.version if s.size else 0 for s in sources]}
        path, tokenizer = out / PROGRESS, out / "tokenizer.json"
        clear_leftovers(out)
        if path.exists():
            value = read_json(path)
            try:
                splits = {name: SplitInfo.from_json(value["splits"][name]) for name in SPLITS}
                place, noted = (int(value["place"][0]), int(value["place"][1])), dict(value["about"])
            except (KeyError, IndexError, TypeError, ValueError, OverflowError) as error:
                raise UserError(
                    f"{path} is damaged ({error!r:.100}): prepare the data again (force).", "force"
                ) from error
            if any(info.shards for info in splits.values()):
                require_same(out, about, noted)
                verify_shards(out, [shard for info in splits.values() for shard in info.shards])
                return cls(path, about, place, splits)
            if about != noted:  # nothing but a tokenizer was made, and for another purpose
                tokenizer.unlink(missing_ok=True)
        elif tokenizer.exists():
            raise UserError(f"{out} already has a tokenizer.json that is not ours to replace: choose another folder.")
        journal = cls(path, about, (0, 0), {name: SplitInfo() for name in SPLITS})
        journal.save()
        return journal

    def save(self) -> None:
        """Write it, whole or not at all."""
        splits = {name: asdict(info) for name, info in self.splits.items()}
        write_json(self.path, {"about": self.about, "place": self.place, "splits": splits})


class Collector:
    """Puts encoded batches together into shards, in order."""

    def __init__(self, out: Place, shard_tokens: int, journal: Journal, tokenizer_hash: str) -> None:
        self.out, self.shard_tokens = out, shard_tokens
        self.journal, self.tokenizer_hash = journal, tokenizer_hash
        self.pending: dict[str, list[Piece]] = {name: [] for name in SPLITS}
        self.resumed = sum(info.bytes for info in journal.splits.values())
        self.worker_peak = 0

    def add(self, batch: Encoded) -> None:
        """Take the batch's documents, closing a shard after each document that fills one."""
        self.worker_peak = max(self.worker_peak, batch.peak)
        start = 0
        while start < len(batch.lengths):
            stop, full = self._room(batch, start)
            for name in SPLITS:
                piece = batch.part(start, stop, valid=name == "valid")
                if len(piece.lengths):
                    self.pending[name].append(piece)
            if full:
                self.flush((batch.source, batch.first + stop))
            start = stop

    def _room(self, batch: Encoded, start: int) -> tuple[int, bool]:
        """(where to stop, whether a shard is full there): at the first document that brings a split to the limit."""
        lengths, valid = batch.lengths[start:], batch.valid[start:]
        train_size, valid_size = (sum(len(piece.tokens) for piece in self.pending[name]) for name in SPLITS)
        sizes = np.where(valid, valid_size + np.cumsum(lengths * valid), train_size + np.cumsum(lengths * ~valid))
        full = np.flatnonzero((sizes >= self.shard_tokens) & (lengths > 0))
        return (start + int(full[0]) + 1, True) if len(full) else (len(batch.lengths), False)

    def flush(self, place: tuple[int, int]) -> None:
        """Write both splits' shards, then note them with the place of the next document."""
        for name in SPLITS:
            pieces, info = self.pending[name], self.journal.splits[name]
            if not pieces:
                continue
            tokens = np.concatenate([piece.tokens for piece in pieces])
            lengths = np.concatenate([piece.lengths for piece in pieces])
            path = self.out / f"{name}-{len(info.shards):05d}.bin"
            info.shards.append(write_shard(path, tokens, lengths, self.tokenizer_hash))
            info.documents += len(lengths)
            info.tokens += len(tokens)
            info.characters += sum(piece.characters for piece in pieces)
            info.bytes += sum(piece.bytes for piece in pieces)
        self.pending = {name: [] for name in SPLITS}
        self.journal.place = place
        self.journal.save()

    def progress(self, stage: str, position: int, total: int) -> PrepareProgress:
        """How far it is, documents that are in no shard yet included."""
        pending = [piece for pieces in self.pending.values() for piece in pieces]
        splits = self.journal.splits.values()
        return PrepareProgress(
            stage=stage,
            position=position,
            total=total,
            documents=sum(info.documents for info in splits) + sum(len(piece.lengths) for piece in pending),
            tokens=sum(info.tokens for info in splits) + sum(len(piece.tokens) for piece in pending),
            text_bytes=sum(info.bytes for info in splits) + sum(piece.bytes for piece in pending),
            shards=sum(len(info.shards) for info in splits),
            resumed_bytes=self.resumed,
            parent_peak=peak_memory(),
            worker_peak=self.worker_peak,
        )
