"""From a corpus to shards: in parallel, in order, and from where it was when it stopped.

One reader cuts the sources into batches, workers tokenise them, and this process puts the answers together in order, so that the
bytes written do not depend on the number of workers. Each time a shard is full, `progress.json` notes it with the
place of the next document. A rerun goes on from there: a kill costs the shard in hand at most.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from scdd.core.errors import UserError
from scdd.data.address import Address, Place, place, without_secrets
from scdd.data.collect import PROGRESS, SPLITS, Collector, Journal, PrepareProgress, require_same
from scdd.data.corpus import RecordBatch, Source, batches, discover, documents
from scdd.data.detokenize import detokenizer
from scdd.data.encode import Encoded, Encoder, is_valid, position
from scdd.data.files import locked, make_folder
from scdd.data.manifest import TOKENIZER, read_tokenizer, write_tokenizer
from scdd.data.options import Separator
from scdd.data.pool import ordered_map
from scdd.data.shards import INDEX, SplitInfo, read_manifest, verify_shards, write_manifest
from scdd.data.tokenizer import LARGEST, SMALLEST, TextTokenizer

MOST_TOKENS, MOST_WORKERS = 1 << 40, 1024  # beyond any use
LOOKED_AT = 1 << 16  # documents that are looked through for one to validate on
USUAL_SHARE = 0.01  # of the documents, for validation
Pool = Callable[[Encoder, Iterator[RecordBatch]], Generator[Encoded, None, None]]
"""Who encodes, and answers in order: `ordered_map`'s processes, or machines elsewhere."""


@dataclass(frozen=True)
class Preparation:
    """What to prepare. `workers` alone leaves no trace in the result."""

    sources: Sequence[str]
    out: str | Path | Address  # a folder, or an address that fsspec knows
    tokenizer: str | None = None
    train_tokenizer: int | None = None
    tokenizer_sample: int = 64 << 20  # bytes of text that a new tokenizer is trained on, at most
    valid: Sequence[str] = ()
    valid_fraction: float | None = None  # None: 0.01, or 0 where `valid` is given
    detokenizer: str | None = None
    field: str = "text"  # which holds the text, in JSON lines and datasets
    separator: Separator = "auto"  # what ends a document of a text file
    shard_tokens: int = 1 << 24
    workers: int = 1
    force: bool = False


def prepare(job: Preparation, pool: Pool | None = None) -> Iterator[PrepareProgress]:
    """Make `job.out`: tokenizer.json, shards, index.json. Yields progress; runs as fast as it is asked.

    `pool` works in place of `job.workers` processes of this machine's.
    """
    fraction, pool = _check(job), pool or partial(ordered_map, workers=job.workers)
    out = place(job.out)
    look = partial(discover, field=job.field, separator=job.separator)
    taught, held = look(job.sources, split="hash" if fraction else "train"), look(job.valid, split="valid")
    taught, left_out = _apart(taught, held)
    sources = taught + held
    given = None if job.tokenizer is None else TextTokenizer.load(job.tokenizer)
    about = _describe(job, sources, fraction, given)
    if left_out:
        about["left_out"] = [_printable(_source_name(source)) for source in left_out]
    make_folder(out)
    with locked(out):
        if job.force:
            _clear(out)
        if (out / INDEX).exists():
            yield _finished(out, about)
            return
        journal = Journal.open(out, about, sources)
        try:
            yield from _work(job, pool, sources, fraction, given, about, journal)
        except UserError:
            if not any(info.shards for info in journal.splits.values()):
                with contextlib.suppress(UserError):  # a store that is out of reach: the first sentence says so
                    _clear(out)  # no more than a tokenizer, and of a text that must change
                    if not any(out.iterdir()):
                        out.rmdir()
            raise


def _work(
    job: Preparation,
    pool: Pool,
    sources: list[Source],
    fraction: float,
    given: TextTokenizer | None,
    about: dict[str, Any],
    journal: Journal,
) -> Iterator[PrepareProgress]:
    """From where the journal stands to the manifest."""
    out = place(job.out)
    if given is None and not (out / TOKENIZER).exists():
        yield PrepareProgress("tokenizer", total=sum(source.size for source in sources))
    fraction = _widened(sources, fraction)
    tokenizer = given or _trained(job, sources, fraction)
    write_tokenizer(out, tokenizer)
    encoder = Encoder(sources, tokenizer, job.detokenizer, fraction)
    collector = Collector(out, job.shard_tokens, journal, tokenizer.hash)
    total = sum(source.size for source in sources)
    with contextlib.closing(pool(encoder, batches(sources, journal.place))) as encoded:
        for batch in encoded:
            collector.add(batch)
            yield collector.progress("tokens", batch.position, total)
    collector.flush((len(sources), 0))  # past the last document: a rerun finds nothing left to read
    if not any(info.shards for info in journal.splits.values()):
        raise UserError(
            f"{without_secrets(', '.join(job.sources))}: no text found; check the files, and the field that holds it."
        )
    write_manifest(out, tokenizer, about, journal.splits)
    (out / PROGRESS).unlink()
    yield collector.progress("done", total, total)


def _check(job: Preparation) -> float:
    """Refuse what cannot work before anything is read; the fraction that goes to validation."""
    if job.tokenizer is None and job.train_tokenizer is None:
        raise UserError(
            "There is no tokenizer: name one, or say how many ids one to train has (train_tokenizer).",
            "train_tokenizer",
        )
    if job.tokenizer is not None and job.train_tokenizer is not None:
        raise UserError("tokenizer names one, and another is to be trained: leave one of the two out.", "tokenizer")
    if job.valid and job.valid_fraction:
        raise UserError(
            f"valid_fraction is {job.valid_fraction} and validation text is given too: choose one of them.",
            "valid_fraction",
        )
    if job.valid_fraction is not None and not 0 <= job.valid_fraction < 1:
        raise UserError(
            f"valid_fraction is {job.valid_fraction}: choose from 0 up to, not including, 1.", "valid_fraction"
        )
    lowest = {"train_tokenizer": SMALLEST, "shard_tokens": 1, "workers": 1, "tokenizer_sample": 1}
    for name, low in lowest.items():
        if (number := getattr(job, name)) is not None and number < low:
            raise UserError(f"{name} is {number}: choose {low} or more.", name)
    highest = {"train_tokenizer": LARGEST, "shard_tokens": MOST_TOKENS, "workers": MOST_WORKERS}
    for name, high in highest.items():
        if (number := getattr(job, name)) is not None and number > high:
            raise UserError(f"{name} is {number}: choose {high:,} or less.", name)
    detokenizer(job.detokenizer)
    return (0.0 if job.valid else USUAL_SHARE) if job.valid_fraction is None else job.valid_fraction


def _apart(taught: list[Source], held: list[Source]) -> tuple[list[Source], list[Source]]:
    """(What is trained on, what is left out of it since it is validated on): what was learnt by heart tells nothing."""
    valid = {_identity(source) for source in held}
    kept = [source for source in taught if _identity(source) not in valid]
    if taught and not kept:
        raise UserError(
            "valid names every text that there is, which leaves none for training: name some of them, or give a share for "
            "validation.",
            "valid",
        )
    return kept, [source for source in taught if _identity(source) in valid]


def _identity(source: Source) -> str:
    """One name for one file, however it was reached; a dataset's own."""
    found = source.place
    return source.path if source.kind == "dataset" or isinstance(found, Address) else str(found.resolve())


def _describe(job: Preparation, sources: list[Source], fraction: float, given: TextTokenizer | None) -> dict[str, Any]:
    """All that the shards' bytes depend on; kept in the manifest, compared on a rerun."""
    return {
        "sources": [
            {"name": _printable(_source_name(s)), "size": s.size, "split": s.split, "rule": s.separator}
            for s in sources
        ],
        "field": job.field,
        "detokenizer": job.detokenizer,
        "valid_fraction": fraction,
        "shard_tokens": job.shard_tokens,
        "tokenizer": {"train": job.train_tokenizer, "sample_bytes": job.tokenizer_sample}
        if given is None
        else {"hash": given.hash},
    }


def _source_name(source: Source) -> str:
    """What people call it: a file's last part."""
    return Path(source.path).name if source.kind == "dataset" else source.place.name


def _printable(name: str) -> str:
    """A file's name as JSON can hold it: on disk it may be any bytes."""
    return name.encode("utf-8", "backslashreplace").decode()


def _widened(sources: list[Source], fraction: float) -> float:
    """`fraction`, or what makes the likeliest of a few documents one to validate on, where it would leave none.

    Each document's own number decides (`is_valid`), and of 40 documents hardly ever one is below 0.01. The first documents
    tell: of many, one is.
    """
    drawn = [source for source in sources if source.split == "hash"]
    if not drawn:
        return fraction
    numbers: set[float] = set()
    for text in islice(documents(drawn), LOOKED_AT):
        numbers.add(position(text))
        if position(text) < fraction:
            return fraction
    few = 1 < len(numbers) < LOOKED_AT // 2  # the only document is for training
    return math.nextafter(min(numbers), 2.0) if few else fraction


def _finished(out: Place, about: dict[str, Any]) -> PrepareProgress:
    manifest = read_manifest(out)
    require_same(out, about, manifest["preparation"])
    (out / PROGRESS).unlink(missing_ok=True)  # killed between writing the manifest and removing the journal
    splits = {name: SplitInfo.from_json(split) for name, split in manifest["splits"].items()}
    verify_shards(out, [shard for info in splits.values() for shard in info.shards])
    journal = Journal(out / PROGRESS, about, (0, 0), splits)
    return Collector(out, 0, journal, manifest["tokenizer"]["hash"]).progress("done", 0, 0)


def _clear(out: Place) -> None:
    """Remove what an earlier preparation wrote, the manifest first, and nothing else."""
    shards = [path for split in SPLITS for path in out.glob(f"{split}-*.bin")]
    for path in (out / INDEX, out / PROGRESS, *shards, out / TOKENIZER):
        path.unlink(missing_ok=True)


def _trained(job: Preparation, sources: list[Source], fraction: float) -> TextTokenizer:
    """The tokenizer that an earlier run trained, or a new one."""
    out = place(job.out)
    if (out / TOKENIZER).exists():
        return read_tokenizer(out)
    sample = _sample([s for s in sources if s.split != "valid"], job, fraction)
    return TextTokenizer.train(sample, job.train_tokenizer or 0)


def _sample(sources: list[Source], job: Preparation, fraction: float) -> Iterator[str]:
    """The first training documents of every source, an equal share of what is left of the budget each."""
    left = job.tokenizer_sample
    mend = detokenizer(job.detokenizer)
    for number, source in enumerate(sources):
        share = left / (len(sources) - number)
        for text in documents([source]):
            if share <= 0:
                break
            if is_valid(source, text, fraction):
                continue
            text = mend(text) if mend else text
            size = len(text.encode())
            share, left = share - size, left - size
            yield text
